// The safetensors format: an 8-byte length, a JSON header, and the tensors' bytes.
//
// Parsing and validating are one pure function over the header's bytes; no tensor byte is touched before
// every extent of every file has been checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/tensor/dtype.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// A byte range in a file.
struct FileExtent {
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// Where the rows of a tensor lie in its extent, when they do not just follow each other: in a stored matrix that has
// other rows, too. Of a tensor of several matrices, in one stored matrix after the other.
struct RowPlaces {
  int32_t stored_rows = 0;
  int32_t matrix_rows = 0;  // of several: from the start of one stored matrix to the next, in rows as they lie there
  int32_t first = 0;        // row r is row first + r * step there
  int32_t step = 1;
  bool is_transposed = false;  // it lies there as [inputs, stored_rows]
  // Not 0: heads of so many rows, in which the two rows that RoPE rotates together are neighbours (GGUF of Llama's
  // kind): row i of the first half is row 2 i there, row i of the second half row 2 i + 1.
  int32_t head_rows = 0;
};

// The scales of a tensor of codes, where they are a tensor of their own. Of a tensor of several matrices, those of all.
struct Scales {
  WeightFormat format = WeightFormat::kFp8;  // kFp8, kMxfp4: a row's codes and scales become blocks of it
  Dtype dtype = Dtype::kF32;                 // a float, or kU8: powers (E8M0)
  int file_idx = 0;
  FileExtent extent = {};  // [rows / block_rows, inputs / BlockElements(format)], both rounded up
  int32_t block_rows = 1;  // that share a scale
  int32_t first_row = 0;   // of those that `extent` is of, the one with which the codes begin
};

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;                // of a row-major tensor
  std::optional<WeightFormat> packed = {};  // set: the bytes are panels of this format, and `dtype` means nothing
  std::vector<int64_t> shape = {};
  int file_idx = 0;        // into Checkpoint::files()
  FileExtent extent = {};  // from the start of the file
  std::optional<RowPlaces> places = {};
  std::optional<Scales> scales = {};  // set: `dtype` is that of codes
  bool as_floats = false;             // codes, or blocks, that become f32 as they are read
  std::optional<uint64_t> xxh3 = {};  // checksum (XXH3, 64 bits) of the bytes, where the file has one
};

// Number of header bytes that follow the first 8. `first_bytes` are the file's first min(8, file_bytes)
// bytes.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::string_view first_bytes, uint64_t file_bytes);

// Parses `header` (without the 8-byte length) of a file of `file_bytes` bytes. Tensors are returned in the
// order of their offsets with file_idx 0. Refuses (kModel, naming the tensor): duplicate names, unknown
// dtypes, offsets that are no integers, reversed, beyond the file, overlapping or leaving holes, sizes that
// disagree with shape and dtype, overflow, rank > kMaxTensorRank, more than kMaxTensors tensors, names longer
// than kMaxTensorNameBytes.
absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::string_view header, uint64_t file_bytes);

}  // namespace penstock
