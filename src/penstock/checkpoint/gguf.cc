#include "penstock/checkpoint/gguf.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "penstock/base/bytes.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/packed_index.h"

namespace penstock {
namespace {

constexpr size_t kNumTensorsOffset = 8;  // in a file: behind the magic and the version

absl::Status WrongType(const GgufMetadata::Field& field, std::string_view expected) {
  return ModelError("key '{}': expected {}, found {}", field.key, expected, GgufTypeName(field));
}

std::optional<int64_t> IntegerAt(GgufType type, const char* source) {
  switch (type) {
    case GgufType::kUint8: return LoadNumber<uint8_t>(source);
    case GgufType::kInt8: return LoadNumber<int8_t>(source);
    case GgufType::kUint16: return LoadNumber<uint16_t>(source);
    case GgufType::kInt16: return LoadNumber<int16_t>(source);
    case GgufType::kUint32: return LoadNumber<uint32_t>(source);
    case GgufType::kInt32: return LoadNumber<int32_t>(source);
    case GgufType::kInt64: return LoadNumber<int64_t>(source);
    case GgufType::kUint64: {
      const auto value = LoadNumber<uint64_t>(source);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default: return std::nullopt;
  }
}

// A file's position in a split model: NAME-00001-of-00003.gguf.
struct SplitName {
  std::string base;
  int64_t number = 0;  // from 1 on
  int64_t count = 0;
};
std::optional<SplitName> SplitNameOf(std::string_view name) {
  constexpr std::string_view kPattern = "-00001-of-00001.gguf";
  if (name.size() <= kPattern.size()) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kPattern.size());
  const auto number = [&](size_t pos) -> int64_t {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(tail.data() + pos, tail.data() + pos + 5, value);
    return error == std::errc() && end == tail.data() + pos + 5 ? value : 0;
  };
  SplitName split{std::string(name.substr(0, name.size() - tail.size())), number(1), number(10)};
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !tail.ends_with(".gguf") || split.number < 1 ||
      split.count < 1) {
    return std::nullopt;
  }
  return split;
}

// Says whether a file is a model. Image projectors and layers that predict further tokens, which some folders keep
// beside a model, are not.
bool IsModel(std::string_view name) {
  return name.ends_with(".gguf") && !name.starts_with("mmproj") && !name.starts_with("mtp-");
}

// Returns the files of the one model in the folder; none when there is none.
absl::StatusOr<std::vector<std::string>> FileNames(const ModelFolder& folder) {
  const std::vector<std::string> entries = folder.List();
  std::string first = folder.gguf_name();
  if (first.empty() && folder.Has(kPackedIndexFile)) return std::vector<std::string>();
  if (first.empty()) {
    for (const std::string& entry : entries) {
      if (!IsModel(entry)) continue;
      if (first.empty()) first = entry;
      const std::optional<SplitName> a = SplitNameOf(first), b = SplitNameOf(entry);
      const bool same =
          first == entry || (a.has_value() && b.has_value() && a->base == b->base && a->count == b->count);
      if (!same) {
        return UsageError("{}: the folder holds several GGUF models ('{}' and '{}'): give the path of one",
                          folder.path(), first, entry);
      }
    }
    if (first.empty()) return std::vector<std::string>();
    const auto is_weights = [](const std::string& entry) {
      return entry.starts_with("model") && entry.ends_with(".safetensors");
    };
    if (const auto found = std::find_if(entries.begin(), entries.end(), is_weights); found != entries.end()) {
      return UsageError(
          "{}: the folder holds two formats ('{}' and '{}'): keep one of them in it, or give the path of "
          "the GGUF file",
          folder.path(), first, *found);
    }
  }
  const std::optional<SplitName> split = SplitNameOf(first);
  if (!split.has_value()) return std::vector<std::string>{first};
  if (split->count > kMaxShards) return ModelError("{}/{}: {} files", folder.path(), first, split->count);
  std::vector<std::string> names;
  for (int64_t i = 1; i <= split->count; ++i) {
    names.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", split->base, i, split->count));
    if (!folder.Has(names.back())) {
      return ModelError("{}: '{}' of the split model is missing: download it", folder.path(), names.back());
    }
  }
  return names;
}

struct OpenedHeader {
  std::string bytes;
  GgufHeader header;
};

absl::StatusOr<OpenedHeader> OpenHeader(const OpenedFile& file) {
  OpenedHeader result;
  for (uint64_t size = kMiB;; size *= 4) {
    result.bytes.resize(std::min({size, file.size_bytes, kMaxGgufHeaderBytes}));
    PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), std::as_writable_bytes(std::span(result.bytes)), 0, file.path));
    if (result.bytes.starts_with("version https://git-lfs")) {
      return ModelError("{}: this is a Git LFS pointer, not the file: run git lfs pull", file.path);
    }
    absl::StatusOr<std::optional<GgufHeader>> header = ParseGgufHeader(result.bytes, file.size_bytes);
    if (!header.ok()) return Annotate(header.status(), file.path);
    if (header->has_value()) {
      result.header = *std::move(*header);
      result.bytes.resize(result.header.metadata_bytes);
      return result;
    }
    if (result.bytes.size() >= kMaxGgufHeaderBytes) {
      return ModelError("{}: the header is larger than {}", file.path, FormatBytes(kMaxGgufHeaderBytes));
    }
  }
}

GgufMetadata MetadataOf(OpenedHeader opened) {
  return GgufMetadata(std::move(opened.bytes), std::move(opened.header.fields));
}

std::string FingerprintOf(const GgufMetadata& metadata) {
  return fmt::format("{:016x}", XXH3_64bits(metadata.header().data(), metadata.header().size()));
}

absl::Status CheckSplit(const GgufMetadata& metadata, int64_t idx, int64_t count, std::string_view path) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto own_idx, metadata.Integer("split.no"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto own_count, metadata.Integer("split.count"));
  if (count == 1 && own_count.value_or(1) <= 1) return absl::OkStatus();
  if (own_idx.value_or(-1) == idx && own_count.value_or(-1) == count) return absl::OkStatus();
  return ModelError("{}: file {} of {} by its name, but {} of {} by its keys split.no and split.count", path, idx + 1,
                    count, own_idx.value_or(-1) + 1, own_count.value_or(0));
}

}  // namespace

GgufMetadata::GgufMetadata(std::string header, std::vector<Field> fields)
    : header_(std::move(header)), fields_(std::move(fields)) {
  SetKeys();
  std::sort(fields_.begin(), fields_.end(), [](const Field& a, const Field& b) { return a.key < b.key; });
}

GgufMetadata::GgufMetadata(GgufMetadata&& other) noexcept
    : header_(std::move(other.header_)), fields_(std::move(other.fields_)) {
  SetKeys();
}

GgufMetadata& GgufMetadata::operator=(GgufMetadata&& other) noexcept {
  header_ = std::move(other.header_);
  fields_ = std::move(other.fields_);
  SetKeys();
  return *this;
}

// A short string's bytes move with the string object, so the keys have to point into it again.
void GgufMetadata::SetKeys() {
  for (Field& field : fields_) field.key = std::string_view(header_).substr(field.key_offset, field.key.size());
}

const GgufMetadata::Field* GgufMetadata::Find(std::string_view key) const {
  const auto at = std::lower_bound(fields_.begin(), fields_.end(), key,
                                   [](const Field& field, std::string_view wanted) { return field.key < wanted; });
  return at == fields_.end() || at->key != key ? nullptr : &*at;
}

absl::StatusOr<std::optional<int64_t>> GgufMetadata::Integer(std::string_view key) const {
  const Field* field = Find(key);
  if (field == nullptr) return std::nullopt;
  const std::optional<int64_t> value =
      field->is_array ? std::nullopt : IntegerAt(field->type, header_.data() + field->offset);
  if (!value.has_value()) return WrongType(*field, "an integer below 2^63");
  return value;
}

absl::StatusOr<std::optional<double>> GgufMetadata::Number(std::string_view key) const {
  const Field* field = Find(key);
  if (field == nullptr) return std::nullopt;
  if (field->is_array) return WrongType(*field, "a number");
  const char* source = header_.data() + field->offset;
  if (field->type == GgufType::kFloat32) return LoadNumber<float>(source);
  if (field->type == GgufType::kFloat64) return LoadNumber<double>(source);
  const std::optional<int64_t> value = IntegerAt(field->type, source);
  if (!value.has_value()) return WrongType(*field, "a number");
  return static_cast<double>(*value);
}

absl::StatusOr<std::optional<bool>> GgufMetadata::Bool(std::string_view key) const {
  const Field* field = Find(key);
  if (field == nullptr) return std::nullopt;
  if (field->is_array || field->type != GgufType::kBool) return WrongType(*field, "bool");
  return header_[field->offset] != 0;
}

absl::StatusOr<std::optional<std::string>> GgufMetadata::String(std::string_view key) const {
  const Field* field = Find(key);
  if (field == nullptr) return std::nullopt;
  if (field->is_array || field->type != GgufType::kString) return WrongType(*field, "string");
  return header_.substr(field->offset + 8, LoadNumber<uint64_t>(header_.data() + field->offset));
}

absl::StatusOr<std::vector<int64_t>> GgufMetadata::Integers(std::string_view key) const {
  std::vector<int64_t> values;
  const Field* field = Find(key);
  if (field == nullptr) return values;
  if (!field->is_array) return WrongType(*field, "an array of integers");
  for (uint64_t i = 0; i < field->count; ++i) {
    const std::optional<int64_t> value =
        IntegerAt(field->type, header_.data() + field->offset + i * WidthOf(field->type));
    if (!value.has_value()) return WrongType(*field, "an array of integers");
    values.push_back(*value);
  }
  return values;
}

absl::StatusOr<std::vector<bool>> GgufMetadata::Bools(std::string_view key) const {
  const Field* field = Find(key);
  if (field == nullptr) return std::vector<bool>();
  if (!field->is_array || field->type != GgufType::kBool) return WrongType(*field, "an array of bools");
  std::vector<bool> values;
  for (uint64_t i = 0; i < field->count; ++i) values.push_back(header_[field->offset + i] != 0);
  return values;
}

absl::StatusOr<std::vector<float>> GgufMetadata::Floats(std::string_view key) const {
  const Field* field = Find(key);
  if (field == nullptr) return std::vector<float>();
  if (!field->is_array || field->type != GgufType::kFloat32) return WrongType(*field, "an array of f32");
  std::vector<float> values(field->count);
  std::memcpy(values.data(), header_.data() + field->offset, values.size() * sizeof(float));
  return values;
}

absl::StatusOr<std::vector<std::string>> GgufMetadata::Strings(std::string_view key) const {
  std::vector<std::string> values;
  const Field* field = Find(key);
  if (field == nullptr) return values;
  if (!field->is_array || field->type != GgufType::kString) return WrongType(*field, "an array of strings");
  values.reserve(field->count);
  uint64_t offset = field->offset;
  for (uint64_t i = 0; i < field->count; ++i) {
    const auto size = LoadNumber<uint64_t>(header_.data() + offset);
    values.push_back(header_.substr(offset + 8, size));
    offset += 8 + size;
  }
  return values;
}

const TensorInfo* Gguf::Find(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TensorInfo& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

absl::StatusOr<std::optional<Gguf>> OpenGguf(const ModelFolder& folder) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FileNames(folder));
  if (names.empty()) return std::nullopt;
  Gguf gguf;
  for (const std::string& name : names) {
    PENSTOCK_ASSIGN_OR_RETURN(OpenedFile file, folder.OpenFile(name));
    PENSTOCK_ASSIGN_OR_RETURN(OpenedHeader opened, OpenHeader(file));
    const auto idx = static_cast<int>(gguf.files.size());
    if (gguf.tensors.size() + opened.header.tensors.size() > kMaxTensors) {
      return ModelError("{}: the model has more than {} tensors", file.path, kMaxTensors);
    }
    for (TensorInfo& tensor : opened.header.tensors) {
      tensor.file_idx = idx;
      gguf.tensors.push_back(std::move(tensor));
    }
    GgufMetadata metadata = MetadataOf(std::move(opened));
    PENSTOCK_RETURN_IF_ERROR(CheckSplit(metadata, idx, std::ssize(names), file.path));
    if (idx == 0) gguf.metadata = std::move(metadata);
    gguf.files.push_back(std::move(file));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const auto num_tensors, gguf.metadata.Integer("split.tensors.count"));
  if (num_tensors.has_value() && *num_tensors != std::ssize(gguf.tensors)) {
    return ModelError(
        "{}: key 'split.tensors.count' says {} tensors, but the files have {}: they belong to different models",
        gguf.files[0].path, *num_tensors, gguf.tensors.size());
  }
  gguf.fingerprint = FingerprintOf(gguf.metadata);
  return gguf;
}

std::string SerializeGgufMetadata(const GgufMetadata& metadata) {
  std::string bytes = metadata.header();
  const uint64_t num_tensors = 0;
  std::memcpy(bytes.data() + kNumTensorsOffset, &num_tensors, sizeof(num_tensors));
  return bytes;
}

absl::StatusOr<std::optional<Gguf>> OpenGgufMetadata(const ModelFolder& folder) {
  if (!folder.Has(kGgufMetadataFile)) return std::nullopt;
  Gguf gguf;
  PENSTOCK_ASSIGN_OR_RETURN(OpenedFile file, folder.OpenFile(kGgufMetadataFile));
  PENSTOCK_ASSIGN_OR_RETURN(OpenedHeader opened, OpenHeader(file));
  if (!opened.header.tensors.empty()) return ModelError("{}: expected no tensors", file.path);
  gguf.metadata = MetadataOf(std::move(opened));
  gguf.files.push_back(std::move(file));
  gguf.fingerprint = FingerprintOf(gguf.metadata);
  return gguf;
}

absl::StatusOr<std::vector<float>> ReadFloats(const Gguf& gguf, const TensorInfo& tensor, uint64_t max_count) {
  if (tensor.packed.has_value() || tensor.dtype != Dtype::kF32) {
    return ModelError("tensor '{}': expected F32", tensor.name);
  }
  if (tensor.extent.size_bytes / sizeof(float) > max_count) {
    return ModelError("tensor '{}': {} values, expected at most {}", tensor.name,
                      tensor.extent.size_bytes / sizeof(float), max_count);
  }
  const OpenedFile& file = gguf.files[tensor.file_idx];
  std::vector<float> values(tensor.extent.size_bytes / sizeof(float));
  PENSTOCK_RETURN_IF_ERROR(
      PreadFully(file.fd.get(), std::as_writable_bytes(std::span(values)), tensor.extent.offset_bytes, file.path));
  return values;
}

}  // namespace penstock
