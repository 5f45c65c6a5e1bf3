// Feeds bytes as a GGUF file, whole and as a part of a larger one. The tensors of accepted input must stay inside the
// file. Every value must be readable by its type, as a model's config, and as a vocabulary.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/checkpoint/gguf.h"
#include "penstock/model/gguf_model.h"
#include "penstock/tokenizer/formats/gguf_tokenizer.h"

namespace {

void ReadAll(const penstock::GgufMetadata& metadata) {
  for (const penstock::GgufMetadata::Field& field : metadata.fields()) {
    if (metadata.Find(field.key) == nullptr) std::abort();
    const bool any = metadata.Integer(field.key).ok() || metadata.Number(field.key).ok() ||
                     metadata.Bool(field.key).ok() || metadata.String(field.key).ok() ||
                     metadata.Integers(field.key).ok() || metadata.Floats(field.key).ok() ||
                     metadata.Strings(field.key).ok();
    const bool is_odd =
        field.type == penstock::GgufType::kUint64 || field.type == penstock::GgufType::kInt64 ||
        (field.is_array && (field.type == penstock::GgufType::kBool || field.type == penstock::GgufType::kFloat64));
    if (!any && !is_odd) std::abort();
  }
}

void CheckFile(std::string_view bytes, uint64_t file_bytes) {
  auto header = penstock::ParseGgufHeader(bytes, file_bytes);
  if (!header.ok() || !header->has_value()) return;
  uint64_t end = (*header)->metadata_bytes;
  if (end > bytes.size()) std::abort();
  for (const penstock::TensorInfo& tensor : (*header)->tensors) {
    if (tensor.extent.offset_bytes < end || tensor.extent.offset_bytes > file_bytes) std::abort();
    if (tensor.extent.size_bytes > file_bytes - tensor.extent.offset_bytes) std::abort();
    end = tensor.extent.offset_bytes + tensor.extent.size_bytes;
  }
  penstock::Gguf gguf;
  gguf.tensors = (*header)->tensors;
  gguf.files.emplace_back().path = "fuzz";
  // The file of the tensors' floats does not exist: configs that read such floats end with an error.
  gguf.metadata = penstock::GgufMetadata(std::string(bytes.substr(0, (*header)->metadata_bytes)), (*header)->fields);
  ReadAll(gguf.metadata);
  (void)penstock::ReadGgufConfig(gguf);
  (void)penstock::ReadGgufVocabulary(gguf.metadata);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  CheckFile(bytes, size);
  CheckFile(bytes, size + 4096);
  return 0;
}
