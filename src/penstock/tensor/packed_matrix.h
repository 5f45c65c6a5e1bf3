// The layout of weight matrices for computation: panels of 32 outputs, each one contiguous run of memory.
//
// A matrix w [num_cols, inner_dim] (outputs, inputs) is cut into ceil(num_cols / 32) panels; missing outputs of the
// last panel are zeros. A panel is read once, from its first byte to its last, for one row as for hundreds. Every
// output has its own lane, so no sum crosses lanes:
//
//   kF32, kF16  [inner_dim rounded up to 2][32] elements
//   kBF16       [inner_dim / 2 rounded up][32][2] elements: the pairs that VDPBF16PS takes
//   kInt8       blocks of 128 inputs: codes [32][32][4] (u8, code - 128 = value / scale; the operand order of VDPBUSD),
//               then scales [32] (bf16)
//   kHqq4,      blocks of up to 256 inputs, that is 4 groups of 64: { float scale_step, scale_min, zero_step, zero_min;
//   kHqq3,      48 bytes of padding }, scale codes [4][32] (u8), zero codes [4][32] (u8), then the groups. A group of
//   kHqq2       kHqq4 is [8][32][4] bytes: byte j of row i has input 8 i + j in its low half and 8 i + 4 + j in its
//               high half. A group of kHqq3 is [4][32][4] bytes with the two low bits, inputs 16 i + 4 t + j at bit 2
//               t, then [2][32][4] bytes with the third bits, inputs 32 i + 4 t + j at bit t. A group of kHqq2 has
//               only the two low bits. scale = fma(scale code, scale_step, scale_min), zero likewise, weight =
//               (code - zero) * scale.
//   kTernary    as kHqq2, but codes are 0 to 2, and every zero is 1. A group is [3][32][4] bytes: byte j of row i has
//               inputs 20 i + 4 t + j, t = 0 to 4, as digits to base 3 (ternary.h). The header has quads [32][4] in
//               place of zero codes: inputs 60 + j of group g at bit 2 g. It has no zero_step and zero_min.
//   block formats (block_formats.h)  blocks of 32 outputs, interleaved piece by piece (block_panels.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/tensor/dtype.h"

namespace penstock {

enum class WeightFormat : uint8_t {
#define PENSTOCK_WEIGHT_FORMAT(format, ...) k##format,
#define PENSTOCK_BLOCK_FORMAT(format, ...) k##format,
#include "penstock/tensor/weight_formats.def"
};

// kFloat weights are multiplied by floats, kCodes and kBlocks by rows of codes or floats.
enum class WeightKind : uint8_t { kFloat, kCodes, kBlocks };

// A row of the table of formats (weight_formats.def).
struct WeightFormatTraits {
  WeightFormat value;
  std::string_view name;     // "q4_k"
  std::string_view summary;  // one line for people
  WeightKind kind;
  int16_t block_elements = 0;  // weights of a block; kBlocks only
  int16_t block_bytes = 0;     // bytes of a block; kBlocks only
  int16_t gguf_type = -1;      // ggml's number of the type; -1: GGUF files do not have it
  bool is_of_gpus = true;      // kernels of GPUs multiply it
};
inline constexpr WeightFormatTraits kWeightFormats[] = {
#define PENSTOCK_WEIGHT_FORMAT(format, called, which, line) \
  {.value = WeightFormat::k##format, .name = called, .summary = line, .kind = WeightKind::which},
#define PENSTOCK_BLOCK_TRAITS(gpus, format, called, elements, bytes, gguf, line) \
  {.value = WeightFormat::k##format,                                             \
   .name = called,                                                               \
   .summary = line,                                                              \
   .kind = WeightKind::kBlocks,                                                  \
   .block_elements = elements,                                                   \
   .block_bytes = bytes,                                                         \
   .gguf_type = gguf,                                                            \
   .is_of_gpus = gpus},
#define PENSTOCK_BLOCK_FORMAT(...) PENSTOCK_BLOCK_TRAITS(true, __VA_ARGS__)
#define PENSTOCK_HOST_BLOCK_FORMAT(...) PENSTOCK_BLOCK_TRAITS(false, __VA_ARGS__)
#include "penstock/tensor/weight_formats.def"
#undef PENSTOCK_BLOCK_TRAITS
};
constexpr const WeightFormatTraits& TraitsOf(WeightFormat format) {
  return kWeightFormats[static_cast<size_t>(format)];
}

inline constexpr int64_t kPanelCols = 32;
inline constexpr int64_t kInt8Group = 128;  // inputs that share a scale
inline constexpr int64_t kHqqBlock = 256;   // inputs that share a header
inline constexpr int64_t kHqqHeaderBytes = 320;
inline constexpr int64_t kInt8BlockBytes = kInt8Group * kPanelCols + 2 * kPanelCols;  // codes and scales
inline constexpr int64_t kHqq4GroupBytes = 1024;
inline constexpr int64_t kHqq3GroupBytes = 768;
inline constexpr int64_t kHqq2GroupBytes = 512;
inline constexpr int64_t kTernaryGroupBytes = 384;
inline constexpr int64_t kTernaryLastQuads = 192;  // where they begin in the header
// Formats of blocks with a header.
constexpr bool IsHqq(WeightFormat format) {
  return format == WeightFormat::kHqq4 || format == WeightFormat::kHqq3 || format == WeightFormat::kHqq2 ||
         format == WeightFormat::kTernary;
}
// Returns the largest code. REQUIRES: IsHqq(format), like the next one.
constexpr int HqqLevels(WeightFormat format) {
  return format == WeightFormat::kHqq4 ? 15 : format == WeightFormat::kHqq3 ? 7 : format == WeightFormat::kHqq2 ? 3 : 2;
}
constexpr int64_t HqqGroupBytes(WeightFormat format) {
  return format == WeightFormat::kHqq4   ? kHqq4GroupBytes
         : format == WeightFormat::kHqq3 ? kHqq3GroupBytes
         : format == WeightFormat::kHqq2 ? kHqq2GroupBytes
                                         : kTernaryGroupBytes;
}

std::optional<WeightFormat> WeightFormatOf(std::string_view name);
constexpr bool IsFloat(WeightFormat format) { return TraitsOf(format).kind == WeightKind::kFloat; }
constexpr bool IsBlocks(WeightFormat format) { return TraitsOf(format).kind == WeightKind::kBlocks; }
constexpr bool IsCodes(WeightFormat format) { return TraitsOf(format).kind == WeightKind::kCodes; }
// Says whether rows of codes can be multiplied by weights of this format. FP8 codes are floats themselves.
constexpr bool MultipliesInt8Rows(WeightFormat format) {
  return IsCodes(format) || (IsBlocks(format) && format != WeightFormat::kFp8);
}
WeightFormat FormatOf(Dtype dtype);
// REQUIRES: IsFloat(format).
Dtype DtypeOf(WeightFormat format);

// Returns the bytes of one panel: a multiple of 64, or of 32 for kMxfp4 and kU4. REQUIRES: inner_dim >= 1.
uint64_t PanelBytes(WeightFormat format, int64_t inner_dim);
inline int64_t NumPanels(int64_t num_cols) { return (num_cols + kPanelCols - 1) / kPanelCols; }
uint64_t PackedBytes(WeightFormat format, int64_t num_cols, int64_t inner_dim);

// Returns the number of inputs between which panels can be cut, such that a part of a panel is a panel of fewer inputs:
// from input `first` on, at PanelBytes(format, first). A multiple of kPanelCols. REQUIRES: !IsBlocks(format).
constexpr int64_t PanelCutUnit(WeightFormat format) {
  if (format == WeightFormat::kInt8) return kInt8Group;
  return IsFloat(format) ? kPanelCols : kHqqBlock;
}

// Writes one panel from `num_cols` <= 32 consecutive rows of stored elements, each `inner_dim` long. Rounds the values
// if the format has fewer bits. `source` and `target` must not overlap; `source` needs no alignment. REQUIRES:
// IsFloat(format).
void PackPanel(Dtype dtype, const std::byte* source, int64_t num_cols, int64_t inner_dim, WeightFormat format,
               std::byte* target);

// Writes the weights of output `col` as floats to target[inner_dim].
void UnpackColumn(WeightFormat format, const std::byte* packed, int64_t col, int64_t inner_dim, float* target);

}  // namespace penstock
