// The safetensors format: an 8-byte length, a JSON header, and the tensors' bytes.
//
// Parsing and validating are one pure function over the header's bytes; no tensor byte is touched before
// every extent of every file has been checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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

// Where the rows of a tensor lie in its extent when they are not simply consecutive: inside a stored matrix that has
// other rows, too. A tensor of several matrices has one stored matrix after another.
struct RowPlaces {
  int32_t stored_rows = 0;
  int32_t matrix_rows = 0;  // several matrices: rows from the start of one stored matrix to the next
  int32_t first = 0;        // row r of the tensor is stored row first + r * step
  int32_t step = 1;
  bool is_transposed = false;  // stored as [inputs, stored_rows]
  // If not 0: the matrix consists of heads of this many rows, in which the two rows that RoPE rotates together are
  // neighbours (GGUF of Llama's kind). Row i of a head's first half is stored row 2 i, row i of the second half stored
  // row 2 i + 1.
  int32_t head_rows = 0;
  // If not 0: instead, heads begin at each `head_stride` stored rows, and rows of other tensors lie between them. Row i
  // is stored row first + i / head_rows * head_stride + i % head_rows.
  int32_t head_stride = 0;
};

// How the codes of a matrix follow each other. A word has 4 bytes: 8 codes of four bits or 4 of eight, the first in its
// lowest bits.
enum class CodeOrder : uint8_t {
  kRows,        // row by row
  kInputWords,  // [words of neighbouring inputs, rows] (GPTQ)
  kRowWords,    // [inputs, words of eight neighbouring rows], in the order 0, 2, 4, 6, 1, 3, 5, 7 (AWQ)
};

struct TensorInfo;

// The scales of a tensor of codes, stored as a tensor of their own. They cover all matrices of a tensor.
struct Scales {
  // A row's codes and scales become blocks of this format: kFp8, kMxfp4, kNvfp4, kQ4_0, kU4, or kQ8_0. Two codes of
  // four bits share a byte of kU8, the first in its low half.
  WeightFormat format = WeightFormat::kFp8;
  Dtype dtype = Dtype::kF32;  // a float, kF8E4M3, or kU8: powers (E8M0)
  uint16_t group_units = 0;   // inputs that share a scale, in units of 16; 0: all inputs of a row
  uint16_t file_idx = 0;
  CodeOrder order = CodeOrder::kRows;
  bool divides : 1 = false;           // kNvfp4: the scale of scales divides them. Otherwise it multiplies them.
  bool zeros_are_less_1 : 1 = false;  // kU4: words hold zero points less 1
  int32_t block_rows = 1;             // rows that share a scale
  int32_t first_row = 0;              // which of the rows that `extent` covers is the first row of codes
  // [rows / block_rows, inputs / group], both rounded up; [groups, rows] unless the order is kRows.
  FileExtent extent = {};
  // The other tensor that codes need. kU4: words of the zero points of 8 neighbouring rows, ordered as in the codes'
  // words: [words, groups] for kRows, [groups, words] otherwise. kNvfp4: the scale of scales, one f32. Null: none.
  const TensorInfo* extra = nullptr;
  // The group of each input, i32 [inputs], where neighbours need not share a scale (GPTQ's desc_act). No block holds
  // such codes, so they become f32. Null: each `group` neighbours share one.
  const TensorInfo* groups = nullptr;

  static constexpr int64_t kGroupUnit = 16;
  // Returns how many inputs share a scale.
  int64_t group(int64_t num_inputs) const { return group_units == 0 ? num_inputs : group_units * kGroupUnit; }
};

// The meaning of a vector's stored values.
enum class VectorForm : uint8_t {
  kPlain,
  kOffset,        // distances from 1, which is added when they are loaded
  kNegativeRate,  // -exp(x) of each weight x (GGUF's rates of decay)
};

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;                // of a row-major tensor
  std::optional<WeightFormat> packed = {};  // set: the bytes are panels of this format, and `dtype` means nothing
  std::vector<int64_t> shape = {};
  int file_idx = 0;        // into Checkpoint::files()
  bool as_floats = false;  // codes or blocks become f32 when they are read
  VectorForm form = VectorForm::kPlain;
  bool is_compressed = false;  // panels of bf16 whose exponents are coded (tensor/exponent_code.h)
  FileExtent extent = {};      // from the start of the file
  std::optional<RowPlaces> places = {};
  std::optional<Scales> scales = {};  // if set, `dtype` is that of the codes
  std::optional<uint64_t> xxh3 = {};  // checksum (XXH3, 64 bits) of the bytes, where the file has one
};

// Returns the number of header bytes that follow the first 8. `first_bytes` are the file's first min(8, file_bytes)
// bytes.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::string_view first_bytes, uint64_t file_bytes);

// The keys and values of __metadata__.
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

// Parses `header` (without the 8-byte length) of a file of `file_bytes` bytes. Returns the tensors in the order of
// their offsets, with file_idx 0, and appends the metadata unless `metadata` is null. Refuses with kModel, naming the
// tensor:
// - duplicate names, names longer than kMaxTensorNameBytes, unknown dtypes;
// - offsets that are not integers, are reversed, reach beyond the file, overlap or leave holes;
// - sizes that overflow or disagree with shape and dtype;
// - rank > kMaxTensorRank, more than kMaxTensors tensors.
absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::string_view header, uint64_t file_bytes,
                                                               SafetensorsMetadata* metadata = nullptr);

}  // namespace penstock
