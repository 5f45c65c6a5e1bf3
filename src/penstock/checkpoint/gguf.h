// GGUF files (version 3): metadata (typed values by key) and tensors in one file, or tensors in several.
//
// Parsing and validating are one pure function over the header's bytes; no tensor byte is touched before every extent
// of every file has been checked.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// Bytes of a number; of a string, of its length.
constexpr uint64_t WidthOf(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool: return 1;
    case GgufType::kUint16:
    case GgufType::kInt16: return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32: return 4;
    default: return 8;
  }
}

// A number wherever it lies; the format is little-endian.
template <typename T>
T LoadNumber(const char* source) {
  T value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

// Values by key. Each getter gives nothing for a key that is not there, and kModel (naming key, expected and found
// type) for one of another type.
class GgufMetadata {
 public:
  // A value as it lies in the header: `count` elements of `type` from `offset` on (1 unless it is an array).
  struct Field {
    std::string_view key;
    uint64_t key_offset = 0;
    GgufType type = GgufType::kUint8;
    bool is_array = false;
    uint64_t count = 1;
    uint64_t offset = 0;
  };

  GgufMetadata() = default;
  // `header` is what the fields' offsets count in; their keys may point anywhere.
  GgufMetadata(std::string header, std::vector<Field> fields);
  GgufMetadata(GgufMetadata&& other) noexcept;
  GgufMetadata& operator=(GgufMetadata&& other) noexcept;

  const Field* Find(std::string_view key) const;
  const std::vector<Field>& fields() const { return fields_; }
  const std::string& header() const { return header_; }

  // Any integer type that holds it; a bool is none.
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view key) const;
  // A float type, or an integer.
  absl::StatusOr<std::optional<double>> Number(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(std::string_view key) const;
  // Arrays; empty when the key is not there.
  absl::StatusOr<std::vector<int64_t>> Integers(std::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key) const;

 private:
  void SetKeys();

  std::string header_;
  std::vector<Field> fields_;
};

// "u32", "array of strings": for messages.
std::string GgufTypeName(const GgufMetadata::Field& field);

struct GgufHeader {
  std::vector<GgufMetadata::Field> fields;  // keys point into the bytes that were parsed
  uint64_t metadata_bytes = 0;              // from the start of the file
  std::vector<TensorInfo> tensors;          // in the order of their offsets, file_idx 0
};

// Parses the first bytes of a file of `file_bytes` bytes; nothing when they end before the header does. Refuses
// (kModel, naming key or tensor): other versions and byte orders, counts and lengths beyond the file, unknown types,
// keys that are empty, longer than 65,535 bytes, no printable ASCII or there twice, nested arrays, bools that are no
// 0 or 1, an alignment that is no power of two from 8 to 2^20, tensors of no or more than 4 dims, of dims below 1 or of
// rows that are no whole blocks, sizes that overflow, offsets that are not aligned, overlap or reach beyond the file.
absl::StatusOr<std::optional<GgufHeader>> ParseGgufHeader(std::string_view first_bytes, uint64_t file_bytes);

struct Gguf {
  std::vector<OpenedFile> files;
  GgufMetadata metadata;            // of the first file
  std::vector<TensorInfo> tensors;  // of all files
  std::string fingerprint;          // of the metadata (xxh3, hex)

  const TensorInfo* Find(std::string_view name) const;  // looks at all of them
};

// The GGUF file of the folder, or all files of its split; nothing when there is none. kUsage when there are several
// models, or safetensors as well; kModel when a file of a split is missing or belongs to another.
absl::StatusOr<std::optional<Gguf>> OpenGguf(const ModelFolder& folder);

// The floats of a tensor of f32; kModel when there are more. REQUIRES: it is one of gguf.tensors.
absl::StatusOr<std::vector<float>> ReadFloats(const Gguf& gguf, const TensorInfo& tensor, uint64_t max_count);

}  // namespace penstock
