// Feeds bytes as a whole safetensors file, and as an index. Tensors of accepted input must stay inside the file.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/base/limits.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/checkpoint/shard_index.h"

namespace {

void CheckFile(std::string_view file) {
  const auto header_bytes = penstock::SafetensorsHeaderBytes(file.substr(0, 8), file.size());
  if (!header_bytes.ok()) return;
  if (*header_bytes > file.size() - 8) std::abort();
  const auto tensors = penstock::ParseSafetensorsHeader(file.substr(8, *header_bytes), file.size());
  if (!tensors.ok()) return;
  uint64_t end = 8 + *header_bytes;
  for (const penstock::TensorInfo& tensor : *tensors) {
    if (tensor.extent.offset_bytes != end || tensor.extent.size_bytes > file.size() - end) std::abort();
    if (tensor.shape.size() > static_cast<size_t>(penstock::kMaxTensorRank)) std::abort();
    end += tensor.extent.size_bytes;
    uint64_t size = penstock::SizeOf(tensor.dtype);
    for (const int64_t dim : tensor.shape) size *= static_cast<uint64_t>(dim);
    if (size != tensor.extent.size_bytes) std::abort();
  }
  if (end != file.size()) std::abort();
}

// Parses a header for a file exactly as long as the last offset, which passes the length check.
void CheckHeader(std::string_view header) {
  for (const uint64_t data_bytes : {0, 4, 8, 24, 1000}) {
    const auto tensors = penstock::ParseSafetensorsHeader(header, 8 + header.size() + data_bytes);
    if (!tensors.ok()) continue;
    uint64_t sum = 0;
    for (const penstock::TensorInfo& tensor : *tensors) sum += tensor.extent.size_bytes;
    if (sum != data_bytes) std::abort();
  }
}

void CheckIndex(std::string_view text) {
  const auto index = penstock::ParseShardIndex(text);
  if (!index.ok()) return;
  for (const std::string& shard : index->shards) {
    if (!penstock::IsSafeFileName(shard)) std::abort();
  }
  for (const penstock::ShardIndex::Entry& entry : index->entries) {
    if (entry.shard_idx < 0 || static_cast<size_t>(entry.shard_idx) >= index->shards.size()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  CheckFile(bytes);
  CheckHeader(bytes);
  CheckIndex(bytes);
  return 0;
}
