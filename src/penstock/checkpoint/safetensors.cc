#include "penstock/checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/json_events.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr uint64_t kPrefixBytes = 8;

std::optional<Dtype> DtypeOf(std::string_view name) {
  if (name == "F32") return Dtype::kF32;
  if (name == "F16") return Dtype::kF16;
  if (name == "BF16") return Dtype::kBF16;
  if (name == "F8_E4M3") return Dtype::kF8E4M3;
  if (name == "U8") return Dtype::kU8;
  if (name == "I32") return Dtype::kI32;
  if (name == "I64") return Dtype::kI64;
  return std::nullopt;
}

// Builds the list of tensors from a header's events. Extents are relative to the data section, as in the file.
class HeaderListener final : public JsonListener {
 public:
  explicit HeaderListener(SafetensorsMetadata* metadata) : metadata_(metadata) {}

  absl::Status OnObjectBegin() override {
    switch (place_) {
      case Place::kOutside: place_ = Place::kTop; return absl::OkStatus();
      case Place::kTensorValue: {
        if (tensors_.size() == kMaxTensors) return ModelError("the header has more than {} tensors", kMaxTensors);
        place_ = Place::kTensor;
        tensors_.emplace_back().name = key_;
        has_dtype_ = has_shape_ = has_offsets_ = false;
        return absl::OkStatus();
      }
      case Place::kMetadataValue: place_ = Place::kMetadata; return absl::OkStatus();
      default: return Unexpected("an object");
    }
  }

  absl::Status OnObjectEnd() override {
    if (place_ == Place::kTensor) {
      place_ = Place::kTop;
      return FinishTensor();
    }
    if (place_ == Place::kMetadata) {
      place_ = Place::kTop;
      return FinishMetadata();
    }
    place_ = Place::kDone;
    return absl::OkStatus();
  }

  absl::Status OnArrayBegin() override {
    if (place_ == Place::kShapeValue) {
      place_ = Place::kShape;
    } else if (place_ == Place::kOffsetsValue) {
      place_ = Place::kOffsets;
      num_offsets_ = 0;
    } else {
      return Unexpected("an array");
    }
    return absl::OkStatus();
  }

  absl::Status OnArrayEnd() override {
    if (place_ == Place::kOffsets && num_offsets_ != 2) {
      return TensorError("expected 2 data_offsets, found {}", num_offsets_);
    }
    place_ = Place::kTensor;
    return absl::OkStatus();
  }

  absl::Status OnKey(std::string_view key) override {
    if (place_ == Place::kTop) {
      key_ = key;
      if (key != "__metadata__") {
        place_ = Place::kTensorValue;
        return absl::OkStatus();
      }
      if (has_metadata_) return ModelError("key '__metadata__' appears twice");
      has_metadata_ = true;
      place_ = Place::kMetadataValue;
      return absl::OkStatus();
    }
    if (place_ == Place::kMetadata) {
      if (metadata_keys_.size() == kMaxTensors) return ModelError("__metadata__ has more than {} keys", kMaxTensors);
      metadata_keys_.emplace_back(key);
      place_ = Place::kMetadataText;
      return absl::OkStatus();
    }
    if (key == "dtype") return BeginField(key, has_dtype_, Place::kDtypeValue);
    if (key == "shape") return BeginField(key, has_shape_, Place::kShapeValue);
    if (key == "data_offsets") return BeginField(key, has_offsets_, Place::kOffsetsValue);
    return TensorError("unknown field '{}': expected dtype, shape and data_offsets", Excerpt(key));
  }

  absl::Status OnString(std::string_view text) override {
    if (place_ == Place::kMetadataText) {
      if (metadata_ != nullptr) metadata_->emplace_back(metadata_keys_.back(), text);
      place_ = Place::kMetadata;
      return absl::OkStatus();
    }
    if (place_ != Place::kDtypeValue) return Unexpected("a string");
    const std::optional<Dtype> dtype = DtypeOf(text);
    if (!dtype.has_value())
      return TensorError("dtype '{}' is not supported: expected F32, F16, BF16, F8_E4M3, U8, I32 or I64",
                         Excerpt(text));
    tensors_.back().dtype = *dtype;
    place_ = Place::kTensor;
    return absl::OkStatus();
  }

  absl::Status OnNumber(std::optional<uint64_t> value) override {
    if (place_ == Place::kShape) {
      std::vector<int64_t>& shape = tensors_.back().shape;
      if (!value.has_value() || *value > static_cast<uint64_t>(INT64_MAX)) {
        return TensorError("dimension {} of the shape is not an integer in [0, 2^63)", shape.size());
      }
      if (shape.size() == static_cast<size_t>(kMaxTensorRank)) {
        return TensorError("the shape has more than {} dimensions", kMaxTensorRank);
      }
      shape.push_back(static_cast<int64_t>(*value));
      return absl::OkStatus();
    }
    if (place_ == Place::kOffsets) {
      if (!value.has_value()) return TensorError("data_offsets are not integers in [0, 2^64)");
      if (num_offsets_ < 2) offsets_[num_offsets_] = *value;
      ++num_offsets_;
      return absl::OkStatus();
    }
    return Unexpected("a number");
  }

  absl::Status OnLiteral() override { return Unexpected("true, false or null"); }

  std::vector<TensorInfo> Release() { return std::move(tensors_); }

 private:
  // The last event, which decides which events may follow. k...Value: a key was read, its value is next.
  enum class Place {
    kOutside,
    kTop,
    kTensorValue,
    kTensor,
    kDtypeValue,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kDone,
  };

  template <typename... Args>
  absl::Status TensorError(fmt::format_string<Args...> format, Args&&... args) {
    return ModelError("tensor '{}': {}", Excerpt(key_), fmt::format(format, std::forward<Args>(args)...));
  }

  absl::Status Unexpected(std::string_view found) {
    switch (place_) {
      case Place::kOutside: return ModelError("the header must be a JSON object, found {}", found);
      case Place::kTensorValue: return TensorError("expected an object, found {}", found);
      case Place::kDtypeValue: return TensorError("dtype must be a string, found {}", found);
      case Place::kShapeValue: return TensorError("the shape must be an array, found {}", found);
      case Place::kShape: return TensorError("the shape must hold integers, found {}", found);
      case Place::kOffsetsValue: return TensorError("data_offsets must be an array, found {}", found);
      case Place::kOffsets: return TensorError("data_offsets must be integers, found {}", found);
      case Place::kMetadataValue: return ModelError("__metadata__ must be an object, found {}", found);
      case Place::kMetadataText:
        return ModelError("__metadata__: the value of '{}' must be a string, found {}", Excerpt(metadata_keys_.back()),
                          found);
      default: return ModelError("unexpected {}", found);
    }
  }

  absl::Status BeginField(std::string_view field, bool& has_field, Place place) {
    if (has_field) return TensorError("field '{}' appears twice", field);
    has_field = true;
    place_ = place;
    return absl::OkStatus();
  }

  absl::Status FinishMetadata() {
    std::sort(metadata_keys_.begin(), metadata_keys_.end());
    const auto twin = std::adjacent_find(metadata_keys_.begin(), metadata_keys_.end());
    if (twin != metadata_keys_.end()) return ModelError("__metadata__: key '{}' appears twice", Excerpt(*twin));
    metadata_keys_ = {};
    return absl::OkStatus();
  }

  absl::Status FinishTensor() {
    TensorInfo& tensor = tensors_.back();
    if (!has_dtype_) return TensorError("the field 'dtype' is missing");
    if (!has_shape_) return TensorError("the field 'shape' is missing");
    if (!has_offsets_) return TensorError("the field 'data_offsets' is missing");
    if (offsets_[0] > offsets_[1]) {
      return TensorError("data_offsets are reversed: begin {}, end {}", offsets_[0], offsets_[1]);
    }
    std::optional<uint64_t> num_bytes = SizeOf(tensor.dtype);
    for (const int64_t dim : tensor.shape) {
      if (num_bytes.has_value()) num_bytes = CheckedMul(*num_bytes, static_cast<uint64_t>(dim));
    }
    if (!num_bytes.has_value()) {
      return TensorError("the size of shape [{}] overflows 64 bits", fmt::join(tensor.shape, ", "));
    }
    tensor.extent = {.offset_bytes = offsets_[0], .size_bytes = offsets_[1] - offsets_[0]};
    if (*num_bytes != tensor.extent.size_bytes) {
      return TensorError("shape [{}] of {} takes {} bytes, but data_offsets [{}, {}] hold {}",
                         fmt::join(tensor.shape, ", "), DtypeName(tensor.dtype), *num_bytes, offsets_[0], offsets_[1],
                         tensor.extent.size_bytes);
    }
    tensor.shape.shrink_to_fit();
    return absl::OkStatus();
  }

  Place place_ = Place::kOutside;
  std::vector<TensorInfo> tensors_;
  std::string key_;  // the current tensor's name
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  uint64_t offsets_[2] = {0, 0};
  int64_t num_offsets_ = 0;
  bool has_metadata_ = false;
  std::vector<std::string> metadata_keys_;
  SafetensorsMetadata* metadata_;
};

absl::Status CheckNames(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  if (twin != names.end()) return ModelError("tensor '{}' appears twice in the header", Excerpt(*twin));
  return absl::OkStatus();
}

// Checks that every byte of the data section belongs to exactly one tensor. `tensors` are in the order of their
// offsets.
absl::Status CheckExtents(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t end = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t begin = tensor.extent.offset_bytes;
    if (begin < end) {
      return ModelError("tensor '{}' begins at {}, inside tensor '{}', which ends at {}", Excerpt(tensor.name), begin,
                        Excerpt(previous->name), end);
    }
    if (begin > end) {
      return ModelError("tensor '{}' begins at {}, which leaves a hole of {} bytes after {}", Excerpt(tensor.name),
                        begin, begin - end,
                        previous == nullptr ? "the header" : fmt::format("tensor '{}'", Excerpt(previous->name)));
    }
    end = begin + tensor.extent.size_bytes;  // equal to the end in the header, so it cannot overflow
    previous = &tensor;
  }
  if (end == data_bytes) return absl::OkStatus();
  if (end < data_bytes) return ModelError("{} bytes at the end of the file belong to no tensor", data_bytes - end);
  const auto is_cut = [&](const TensorInfo& tensor) {
    return tensor.extent.offset_bytes + tensor.extent.size_bytes > data_bytes;
  };
  return ModelError("the file is {} bytes short (tensor '{}' is the first that is cut): download it again",
                    end - data_bytes, Excerpt(std::find_if(tensors.begin(), tensors.end(), is_cut)->name));
}

// Returns what a file that is not safetensors is, judging by its first bytes; empty when they do not tell.
std::string_view DiagnoseForeignFile(std::string_view first_bytes) {
  const auto starts_with = [&](std::string_view magic) { return first_bytes.substr(0, magic.size()) == magic; };
  if (starts_with("version ")) return "a Git LFS pointer, not the weights: run git lfs pull";
  if (starts_with("GGUF")) return "a GGUF file, not safetensors";
  if (starts_with("PK\x03\x04")) return "a zip archive (pickled PyTorch weights?), not safetensors";
  if (starts_with("<!DOCTYP") || starts_with("<!doctyp") || starts_with("<html")) {
    return "a web page, not the weights: download the file again";
  }
  return "";
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::string_view first_bytes, uint64_t file_bytes) {
  if (file_bytes < kPrefixBytes || first_bytes.size() < kPrefixBytes) {
    return ModelError("the file has {} bytes, too few for a safetensors file: download it again", file_bytes);
  }
  const std::string_view diagnosis = DiagnoseForeignFile(first_bytes);
  if (!diagnosis.empty()) return ModelError("this is {}", diagnosis);
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<uint8_t>(first_bytes[i]);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return ModelError("the header would have {} bytes, more than the format's limit of {}: not a safetensors file",
                      header_bytes, kMaxSafetensorsHeaderBytes);
  }
  if (header_bytes < 2) {
    return ModelError("the header has {} bytes, too few for a JSON object: download the file again", header_bytes);
  }
  if (header_bytes > file_bytes - kPrefixBytes) {
    return ModelError("the header has {} bytes, but the file has only {} after its first 8: download it again",
                      header_bytes, file_bytes - kPrefixBytes);
  }
  return header_bytes;
}

absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::string_view header, uint64_t file_bytes,
                                                               SafetensorsMetadata* metadata) {
  const std::optional<uint64_t> data_offset = CheckedAdd(kPrefixBytes, header.size());
  if (!data_offset.has_value() || *data_offset > file_bytes) {
    return ModelError("the header has {} bytes, more than the file's {}", header.size(), file_bytes);
  }
  if (header.empty() || header[0] != '{') return ModelError("header byte 0: the header must begin with '{{'");
  HeaderListener listener(metadata);
  const JsonEventOptions options = {.max_depth = 4,  // one more than is legal, so that the refusal names the tensor
                                    .max_key_bytes = kMaxTensorNameBytes,
                                    .place = JsonEventOptions::Place::kByte};
  if (absl::Status status = ParseJsonEvents(header, Fault::kModel, options, listener); !status.ok()) {
    return Annotate(status, "header");
  }
  std::vector<TensorInfo> tensors = listener.Release();
  PENSTOCK_RETURN_IF_ERROR(CheckNames(tensors));
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    if (a.extent.offset_bytes != b.extent.offset_bytes) return a.extent.offset_bytes < b.extent.offset_bytes;
    if (a.extent.size_bytes != b.extent.size_bytes) return a.extent.size_bytes < b.extent.size_bytes;
    return a.name < b.name;
  });
  PENSTOCK_RETURN_IF_ERROR(CheckExtents(tensors, file_bytes - *data_offset));
  for (TensorInfo& tensor : tensors) tensor.extent.offset_bytes += *data_offset;
  return tensors;
}

}  // namespace penstock
