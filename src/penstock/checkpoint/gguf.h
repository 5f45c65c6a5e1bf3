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

// Returns the bytes of a number; for a string, the bytes of its length field.
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

// Reads a little-endian number, which may be unaligned.
template <typename T>
T LoadNumber(const char* source) {
  T value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

// The metadata: values by key. A getter returns nothing for a missing key, and kModel (naming key, expected and found
// type) for a value of another type.
class GgufMetadata {
 public:
  // A value's position in the header: `count` elements of `type` from `offset` on (1 unless it is an array).
  struct Field {
    std::string_view key;
    uint64_t key_offset = 0;
    GgufType type = GgufType::kUint8;
    bool is_array = false;
    uint64_t count = 1;
    uint64_t offset = 0;
  };

  GgufMetadata() = default;
  // The offsets of `fields` refer to `header`; their keys may point anywhere.
  GgufMetadata(std::string header, std::vector<Field> fields);
  GgufMetadata(GgufMetadata&& other) noexcept;
  GgufMetadata& operator=(GgufMetadata&& other) noexcept;

  const Field* Find(std::string_view key) const;
  const std::vector<Field>& fields() const { return fields_; }
  const std::string& header() const { return header_; }

  // Accepts any integer type whose value fits; a bool is not an integer.
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view key) const;
  // Accepts a float type or an integer.
  absl::StatusOr<std::optional<double>> Number(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(std::string_view key) const;
  // Getters for arrays; empty when the key is missing.
  absl::StatusOr<std::vector<int64_t>> Integers(std::string_view key) const;
  absl::StatusOr<std::vector<bool>> Bools(std::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key) const;

 private:
  void SetKeys();

  std::string header_;
  std::vector<Field> fields_;
};

// Returns a type for messages, such as "u32" or "array of strings".
std::string GgufTypeName(const GgufMetadata::Field& field);

struct GgufHeader {
  std::vector<GgufMetadata::Field> fields;  // keys point into the bytes that were parsed
  uint64_t metadata_bytes = 0;              // from the start of the file
  std::vector<TensorInfo> tensors;          // in the order of their offsets, file_idx 0
};

// Parses the first bytes of a file of `file_bytes` bytes. Returns nothing when the given bytes end before the header
// does. Refuses with kModel, naming key or tensor:
// - other versions and byte orders, and counts and lengths beyond the file;
// - unknown types, nested arrays, bools other than 0 and 1;
// - keys that are empty, longer than 65,535 bytes, not printable ASCII, or duplicates;
// - an alignment other than a power of two from 8 to 2^20;
// - tensors of no dims or more than 4, with dims below 1 or with rows that are not whole blocks;
// - sizes that overflow, and offsets that are not aligned, overlap or reach beyond the file.
absl::StatusOr<std::optional<GgufHeader>> ParseGgufHeader(std::string_view first_bytes, uint64_t file_bytes);

struct Gguf {
  std::vector<OpenedFile> files;
  GgufMetadata metadata;            // of the first file
  std::vector<TensorInfo> tensors;  // of all files
  std::string fingerprint;          // of the metadata (xxh3, hex)

  const TensorInfo* Find(std::string_view name) const;  // linear search
};

// Opens the GGUF file of the folder, or all files of its split; returns nothing when there is none. Returns kUsage when
// the folder holds several models, or safetensors as well. Returns kModel when a file of a split is missing or belongs
// to another split.
absl::StatusOr<std::optional<Gguf>> OpenGguf(const ModelFolder& folder);

// The file of a packed store with the metadata of the GGUF file that it was made from: that file's header, with no
// tensors. Its name does not end in .gguf, so nothing takes it for a model.
inline constexpr std::string_view kGgufMetadataFile = "gguf_metadata.bin";

// Returns the content of kGgufMetadataFile.
std::string SerializeGgufMetadata(const GgufMetadata& metadata);

// Reads kGgufMetadataFile; returns nothing when the folder has none. The result has no tensors.
absl::StatusOr<std::optional<Gguf>> OpenGgufMetadata(const ModelFolder& folder);

// Returns the floats of an f32 tensor; kModel when it has more than `max_count`. REQUIRES: it is one of gguf.tensors.
absl::StatusOr<std::vector<float>> ReadFloats(const Gguf& gguf, const TensorInfo& tensor, uint64_t max_count);

}  // namespace penstock
