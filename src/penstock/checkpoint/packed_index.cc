#include "penstock/checkpoint/packed_index.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <xxhash.h>

#include "penstock/base/checked.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/tensor/block_panels.h"
#include "penstock/tensor/exponent_code.h"

namespace penstock {
namespace {

constexpr int64_t kMaxDim = kMaxVocabSize;
constexpr size_t kMaxFiles = 100;
constexpr std::string_view kCompressedPanels = "compressed panels";

const json::value* Field(const json::object& object, std::string_view key) { return object.if_contains(key); }

absl::StatusOr<uint64_t> Unsigned(const json::object& object, std::string_view key) {
  const json::value* value = Field(object, key);
  boost::system::error_code error;
  const uint64_t number = value == nullptr ? 0 : value->to_number<uint64_t>(error);
  if (value == nullptr || error || !(value->is_int64() || value->is_uint64())) {
    return ModelError("{}: expected an integer of at least 0", key);
  }
  return number;
}

absl::StatusOr<std::string> Text(const json::object& object, std::string_view key) {
  const json::value* value = Field(object, key);
  if (value == nullptr || !value->is_string()) return ModelError("{}: expected a string", key);
  return std::string(value->get_string());
}

absl::StatusOr<uint64_t> Hex(const json::object& object, std::string_view key) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, Text(object, key));
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) {
    return ModelError("{}: expected 16 hexadecimal digits, found '{}'", key, Excerpt(text));
  }
  return number;
}

absl::StatusOr<std::vector<int64_t>> Shape(const json::object& object) {
  const json::value* value = Field(object, "shape");
  if (value == nullptr || !value->is_array()) return ModelError("shape: expected an array");
  std::vector<int64_t> shape;
  for (const json::value& dim : value->get_array()) {
    if (!dim.is_int64() || dim.get_int64() < 1 || dim.get_int64() > kMaxDim) {
      return ModelError("shape: expected integers of 1 to {}", kMaxDim);
    }
    shape.push_back(dim.get_int64());
  }
  if (shape.empty() || shape.size() > 3) return ModelError("shape: expected 1 to 3 dims, found {}", shape.size());
  if (shape.size() == 3 && shape[0] > kMaxHeads) return ModelError("shape: expected at most {} matrices", kMaxHeads);
  return shape;
}

// The product of two dims of at most 2^21, kMaxHeads and an element's few bytes fits 64 bits.
uint64_t BytesOf(const TensorInfo& tensor) {
  if (tensor.packed.has_value()) return PackedStoreBytes(tensor, *tensor.packed);
  uint64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= static_cast<uint64_t>(dim);
  return count * SizeOf(tensor.dtype);
}

std::string_view PanelsLayout(WeightFormat format) { return HasNewPanels(format) ? "panels-2" : "panels"; }

absl::Status ReadTensor(const json::object& object, TensorInfo& tensor) {
  PENSTOCK_ASSIGN_OR_RETURN(tensor.shape, Shape(object));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string layout, Text(object, "layout"));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string format_name, Text(object, "format"));
  const std::optional<WeightFormat> format = WeightFormatOf(format_name);
  if (!format.has_value()) return ModelError("format '{}' is unknown", Excerpt(format_name));
  if (layout == "panels" && HasNewPanels(*format)) {
    return ModelError("an older program stored {} in another order: pack the model again", format_name);
  }
  if (layout == PanelsLayout(*format) && tensor.shape.size() >= 2) {
    tensor.packed = *format;
  } else if (layout == kCompressedPanels && tensor.shape.size() == 2 && format == WeightFormat::kBF16) {
    tensor.packed = *format;
    tensor.is_compressed = true;
  } else if (layout == "rows" && IsFloat(*format)) {
    tensor.dtype = DtypeOf(*format);
  } else {
    return ModelError(
        "layout '{}' does not fit format {} and {} dims: expected panels of 2 or 3 dims, "
        "compressed panels of bf16 and 2 dims, or rows of floats",
        Excerpt(layout), format_name, tensor.shape.size());
  }
  PENSTOCK_ASSIGN_OR_RETURN(tensor.extent.offset_bytes, Unsigned(object, "offset"));
  PENSTOCK_ASSIGN_OR_RETURN(tensor.xxh3, Hex(object, "xxh3"));
  tensor.extent.size_bytes = BytesOf(tensor);
  if (tensor.is_compressed) {
    const uint64_t max_bytes = MaxCompressedBytes(tensor.extent.size_bytes);
    PENSTOCK_ASSIGN_OR_RETURN(tensor.extent.size_bytes, Unsigned(object, "bytes"));
    if (tensor.extent.size_bytes < kExponentHeaderBytes || tensor.extent.size_bytes > max_bytes) {
      return ModelError("bytes: expected {} to {}, found {}", kExponentHeaderBytes, max_bytes,
                        tensor.extent.size_bytes);
    }
  }
  if (tensor.extent.offset_bytes % 64 != 0) return ModelError("offset: expected a multiple of 64");
  return absl::OkStatus();
}

absl::Status CheckExtents(PackedIndex& index) {
  std::sort(index.tensors.begin(), index.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.extent.offset_bytes < b.extent.offset_bytes; });
  uint64_t end = 0;
  for (const TensorInfo& tensor : index.tensors) {
    const std::optional<uint64_t> tensor_end = CheckedAdd(tensor.extent.offset_bytes, tensor.extent.size_bytes);
    if (tensor.extent.offset_bytes < end) return ModelError("tensor '{}' overlaps another", Excerpt(tensor.name));
    if (!tensor_end.has_value() || *tensor_end > index.weights_bytes) {
      return ModelError("tensor '{}' ends beyond the {} bytes of {}", Excerpt(tensor.name), index.weights_bytes,
                        kPackedWeightsFile);
    }
    end = *tensor_end;
  }
  return absl::OkStatus();
}

}  // namespace

std::string SerializePackedIndex(const PackedIndex& index) {
  json::object tensors;
  for (const TensorInfo& tensor : index.tensors) {
    const std::string_view plain_layout = tensor.packed.has_value() ? PanelsLayout(*tensor.packed) : "rows";
    json::object& written =
        (tensors[tensor.name] = json::object{{"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                                             {"layout", tensor.is_compressed ? kCompressedPanels : plain_layout},
                                             {"format", tensor.packed.has_value() ? TraitsOf(*tensor.packed).name
                                                                                  : DtypeName(tensor.dtype)},
                                             {"offset", tensor.extent.offset_bytes},
                                             {"xxh3", fmt::format("{:016x}", tensor.xxh3.value_or(0))}})
            .as_object();
    if (tensor.is_compressed) written["bytes"] = tensor.extent.size_bytes;
  }
  json::object files;
  for (const auto& [name, xxh3] : index.files) files[name] = fmt::format("{:016x}", xxh3);
  return json::serialize(json::object{{"penstock_packed_store", kPackedStoreVersion},
                                      {"quantize", index.quantize},
                                      {"source", index.source},
                                      {"weights_bytes", index.weights_bytes},
                                      {"files", std::move(files)},
                                      {"tensors", std::move(tensors)}}) +
         "\n";
}

absl::StatusOr<PackedIndex> ParsePackedIndex(std::string_view text) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value root, ParseJson(text, Fault::kModel));
  if (!root.is_object()) return ModelError("expected an object, found {}", JsonTypeName(root));
  const json::object& object = root.get_object();
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t version, Unsigned(object, "penstock_packed_store"));
  if (version != kPackedStoreVersion) {
    return ModelError("packed store of version {}, this program reads version {}: pack the model again", version,
                      kPackedStoreVersion);
  }
  PackedIndex index;
  PENSTOCK_ASSIGN_OR_RETURN(index.quantize, Text(object, "quantize"));
  PENSTOCK_ASSIGN_OR_RETURN(index.source, Text(object, "source"));
  PENSTOCK_ASSIGN_OR_RETURN(index.weights_bytes, Unsigned(object, "weights_bytes"));
  if (const json::value* files = Field(object, "files"); files != nullptr) {
    if (!files->is_object() || files->get_object().size() > kMaxFiles) {
      return ModelError("files: expected an object of at most {} files", kMaxFiles);
    }
    for (const auto& [name, unused] : files->get_object()) {
      PENSTOCK_ASSIGN_OR_RETURN(index.files[std::string(name)], Hex(files->get_object(), name));
    }
  }
  const json::value* tensors = Field(object, "tensors");
  if (tensors == nullptr || !tensors->is_object()) return ModelError("tensors: expected an object");
  if (tensors->get_object().size() > kMaxTensors) return ModelError("more than {} tensors", kMaxTensors);
  for (const auto& [name, value] : tensors->get_object()) {
    TensorInfo tensor;
    tensor.name = std::string(name);
    if (tensor.name.size() > kMaxTensorNameBytes) return ModelError("a tensor's name has {} bytes", tensor.name.size());
    const absl::Status status =
        value.is_object() ? ReadTensor(value.get_object(), tensor) : ModelError("expected an object");
    if (!status.ok()) return Annotate(status, fmt::format("tensor '{}'", Excerpt(tensor.name)));
    index.tensors.push_back(std::move(tensor));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckExtents(index));
  return index;
}

absl::StatusOr<PackedIndex> ReadPackedIndex(const ModelFolder& folder) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, folder.Read(kPackedIndexFile, kMaxIndexBytes));
  absl::StatusOr<PackedIndex> index = ParsePackedIndex(text);
  if (!index.ok()) return Annotate(index.status(), fmt::format("{}/{}", folder.path(), kPackedIndexFile));
  for (const auto& [name, expected] : index->files) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string content, folder.Read(name, kMaxTokenizerBytes));
    const uint64_t found = XXH3_64bits(content.data(), content.size());
    if (found == expected) continue;
    return ModelError(
        "{}/{}: has the checksum {:016x}, expected {:016x}: the file is damaged, copy it again or pack the model again "
        "(if you changed it on purpose, remove its checksum from \"files\" in {})",
        folder.path(), name, found, expected, kPackedIndexFile);
  }
  return index;
}

absl::Status CheckSum(const TensorInfo& tensor, uint64_t found) {
  if (!tensor.xxh3.has_value() || *tensor.xxh3 == found) return absl::OkStatus();
  return ModelError(
      "{}: tensor '{}' has the checksum {:016x}, expected {:016x}: the file is damaged, copy it again or "
      "pack the model again",
      kPackedWeightsFile, tensor.name, found, *tensor.xxh3);
}

absl::Status CannotDecompress(const TensorInfo& tensor) {
  return ModelError(
      "{}: tensor '{}' cannot be decompressed, though its checksum is right: the memory or the store is damaged, copy "
      "it again or pack the model again",
      kPackedWeightsFile, tensor.name);
}

}  // namespace penstock
