// Block formats: a fixed number of weights in a fixed number of bytes, with scales of their own. A matrix row in a file
// is a run of consecutive blocks. Kernels compute on panels of them (block_panels.h).
//
//   kFp8     128 weights: scale (f32), codes (F8E4M3). A block-scaled FP8 checkpoint (DeepSeek-V3) stores the scales
//            separately; here each block begins with its scale
//   kMxfp4   32: power of two (E8M0), codes (E2M1) in the order of GGUF's MXFP4
//   kU4      32: scale (f16), zero point (u8), codes in the order of kQ4_0; weight = (code - zero point) * scale
//   kNvfp4   256: scale of scales (f32), a scale (F8E4M3) for each 16 weights, codes (E2M1) in the order of kMxfp4
//   kQ8_0 .. kIq4_Xs   GGUF's formats
//
// Pure functions of untrusted bytes: any bytes decode to some floats, possibly infinities and NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// All of these functions: REQUIRES: IsBlocks(format).
constexpr int64_t BlockElements(WeightFormat format) { return TraitsOf(format).block_elements; }
constexpr int64_t BlockBytes(WeightFormat format) { return TraitsOf(format).block_bytes; }
inline constexpr int64_t kMaxBlockBytes = 210;  // of kQ6_K

// Returns the bytes of a row of `inner_dim` weights. The last block may be only partly used.
constexpr uint64_t BlockRowBytes(WeightFormat format, int64_t inner_dim) {
  const int64_t elements = BlockElements(format);
  return static_cast<uint64_t>((inner_dim + elements - 1) / elements * BlockBytes(format));
}

// Decodes whole blocks. GGUF's formats give bit for bit the floats of gguf.quants.dequantize, except for the payloads
// of NaN. REQUIRES: source.size() / BlockBytes(format) blocks on both sides, with no remainder.
void DequantiseBlocks(WeightFormat format, std::span<const std::byte> source, std::span<float> target);

// Decodes the first target.size() weights of a row of blocks.
void DequantiseRow(WeightFormat format, const std::byte* row, std::span<float> target);

// Encodes weights as blocks, bit for bit as gguf.quants.quantize does; supports kQ8_0 and kQ4_0 only. If gguf's bytes
// depend on the machine, this function defines them: blocks with NaN or infinities decode to NaN and infinities only.
// Blocks whose weights are so small that the inverse of their scale is infinite decode to 0. REQUIRES: as for
// DequantiseBlocks.
void QuantiseBlocks(WeightFormat format, std::span<const float> source, std::span<std::byte> target);

// Makes a row of kFp8 from its codes and one scale for each `group` of them. REQUIRES: group is a multiple of 128, or
// at least the number of codes.
void MakeFp8Row(std::span<const std::byte> codes, std::span<const float> scales, int64_t group, std::byte* target);

// Makes a row of kMxfp4 from codes and one E8M0 power for each 32 of them, as Hugging Face's checkpoints store them.
// Two neighbouring codes share a byte, the first in its low half.
void MakeMxfp4Row(std::span<const std::byte> codes, std::span<const std::byte> powers, std::byte* target);

// Makes a row of kQ4_0 from codes, weight = (code - 8) * scale, and one scale for each `group` of them, which are
// rounded to f16. Two neighbouring codes share a byte, the first in its low half. REQUIRES: group is a multiple of 32.
void MakeQ4_0Row(std::span<const std::byte> codes, std::span<const float> scales, int64_t group, std::byte* target);

// Makes a row of kQ8_0 from codes of 8 bits, weight = (code - 128) * scale, with scales as above. REQUIRES: group is a
// multiple of 32.
void MakeQ8_0Row(std::span<const std::byte> codes, std::span<const float> scales, int64_t group, std::byte* target);

// Makes a row of kU4 from codes as those of MakeQ4_0Row, with a scale and a zero point for each `group` of them.
// REQUIRES: group is a multiple of 32.
void MakeU4Row(std::span<const std::byte> codes, std::span<const float> scales, std::span<const uint8_t> zeros,
               int64_t group, std::byte* target);

// Makes a row of kNvfp4 from codes and one E4M3 scale for each 16 of them. Two neighbouring codes share a byte, the
// first in its low half. weight = code * (scale * scale_of_scales).
void MakeNvfp4Row(std::span<const std::byte> codes, std::span<const std::byte> scales, float scale_of_scales,
                  std::byte* target);

// Returns 2^(power - 127) / 2, the factor for the codes of kMxfp4, which count halves. E8M0's NaN (255) is 2^127, as in
// GGUF and in the model's own code.
float HalfPower(uint8_t power);

// The values of the E2M1 codes, in halves.
inline constexpr int8_t kE2M1Halves[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The values that the codes of kIq4_Nl and kIq4_Xs name.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Scales and minima of the 8 groups of a kQ4_K or kQ5_K block.
struct KGroups {
  float scales[8];
  float minima[8];
};
KGroups ReadKGroups(const std::byte* block);

}  // namespace penstock
