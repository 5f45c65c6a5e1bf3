// Block formats: a fixed number of weights in a fixed number of bytes, with scales of their own. A row of a matrix is
// blocks one after the other, so files that have such rows are computed as they lie.
//
//   kFp8     128 weights: scale (f32), codes (F8E4M3): the rows of a checkpoint whose scales lie apart (block-scaled
//            FP8, DeepSeek-V3), brought together
//   kMxfp4   32: power of two (E8M0), codes (E2M1) as GGUF's MXFP4 has them
//   kQ8_0 .. kQ5_1   those of GGUF files
//
// Pure functions of bytes that nobody vouches for: any bytes are some floats, infinities and NaN among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// In all of these REQUIRES: IsBlocks(format).
constexpr int64_t BlockElements(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8: return 128;
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
    case WeightFormat::kQ6_K: return 256;
    default: return 32;
  }
}

constexpr int64_t BlockBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8: return 4 + 128;
    case WeightFormat::kMxfp4: return 1 + 16;
    case WeightFormat::kQ8_0: return 2 + 32;                 // scale (f16), codes
    case WeightFormat::kQ4_0: return 2 + 16;                 // scale (f16), codes
    case WeightFormat::kQ4_1: return 2 + 2 + 16;             // scale, least weight (f16), codes
    case WeightFormat::kQ5_0: return 2 + 4 + 16;             // scale (f16), high bits of codes, low 4 bits
    case WeightFormat::kQ5_1: return 2 + 2 + 4 + 16;         // scale, least weight (f16), high bits, low 4 bits
    case WeightFormat::kQ4_K: return 2 + 2 + 12 + 128;       // scale, scale of minima (f16), 8 of each in 6 bits, codes
    case WeightFormat::kQ5_K: return 2 + 2 + 12 + 32 + 128;  // the same, high bits of codes, low 4 bits
    case WeightFormat::kQ6_K:
      return 128 + 64 + 16 + 2;  // low 4 bits and high 2 bits of codes, 16 scales in 8 bits,
                                 // scale (f16)
    default: return 0;
  }
}

// Bytes of a row of `inner_dim` weights. The last block may have fewer than it has room for.
constexpr uint64_t BlockRowBytes(WeightFormat format, int64_t inner_dim) {
  const int64_t elements = BlockElements(format);
  return static_cast<uint64_t>((inner_dim + elements - 1) / elements * BlockBytes(format));
}

// The weights of whole blocks; of GGUF's formats bit for bit those of gguf.quants.dequantize (but for the payloads of
// NaN). REQUIRES: source.size() / BlockBytes(format) blocks on both sides, without rest.
void DequantiseBlocks(WeightFormat format, std::span<const std::byte> source, std::span<float> target);

// The first target.size() weights of a row of blocks.
void DequantiseRow(WeightFormat format, const std::byte* row, std::span<float> target);

// The blocks of weights, bit for bit those of gguf.quants.quantize; for kQ8_0 and kQ4_0 alone. Where the bytes of that
// one depend on the machine, they are defined here: blocks with NaN or infinities stand for NaN and infinities alone,
// and blocks of weights so small that the inverse of their scale is infinite stand for 0. REQUIRES: as for
// DequantiseBlocks.
void QuantiseBlocks(WeightFormat format, std::span<const float> source, std::span<std::byte> target);

// A row of kFp8 from its codes and one scale for each 128 of them.
void MakeFp8Row(std::span<const std::byte> codes, std::span<const float> scales, std::byte* target);

// A row of kMxfp4 from codes of which two neighbours share a byte, the first in its low half, and one E8M0 power for
// each 32 of them, as Hugging Face's checkpoints have them.
void MakeMxfp4Row(std::span<const std::byte> codes, std::span<const std::byte> powers, std::byte* target);

// 2^(power - 127) / 2, by which the codes of kMxfp4 that count halves are multiplied. E8M0's NaN (255) is 2^127, as in
// GGUF and in the model's own code.
float HalfPower(uint8_t power);

// What the codes of E2M1 stand for, in halves.
inline constexpr int8_t kE2M1Halves[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Scales and minima of the 8 groups of a kQ4_K or kQ5_K block.
struct KGroups {
  float scales[8];
  float minima[8];
};
KGroups ReadKGroups(const std::byte* block);

}  // namespace penstock
