// Block formats: a fixed number of weights in a fixed number of bytes, with scales of their own. A matrix row is a run
// of consecutive blocks, so kernels compute on such files without repacking.
//
//   kFp8     128 weights: scale (f32), codes (F8E4M3): rows of a block-scaled FP8 checkpoint (DeepSeek-V3), whose
//            scales are stored separately, with scales and codes brought together
//   kMxfp4   32: power of two (E8M0), codes (E2M1) in the order of GGUF's MXFP4
//   kQ8_0 .. kQ5_1   GGUF's formats
//
// Pure functions of untrusted bytes: any bytes decode to some floats, possibly infinities and NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// All of these functions: REQUIRES: IsBlocks(format).
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

// Encodes weights as blocks, bit for bit as gguf.quants.quantize does; supports kQ8_0 and kQ4_0 only. Where gguf's
// bytes depend on the machine, this function defines them: blocks with NaN or infinities decode to NaN and infinities
// only. Blocks whose weights are so small that the inverse of their scale is infinite decode to 0. REQUIRES: as for
// DequantiseBlocks.
void QuantiseBlocks(WeightFormat format, std::span<const float> source, std::span<std::byte> target);

// Makes a row of kFp8 from its codes and one scale for each 128 of them.
void MakeFp8Row(std::span<const std::byte> codes, std::span<const float> scales, std::byte* target);

// Makes a row of kMxfp4 from codes and one E8M0 power for each 32 of them, as Hugging Face's checkpoints store them.
// Two neighbouring codes share a byte, the first in its low half.
void MakeMxfp4Row(std::span<const std::byte> codes, std::span<const std::byte> powers, std::byte* target);

// Returns 2^(power - 127) / 2, the factor for the codes of kMxfp4, which count halves. E8M0's NaN (255) is 2^127, as in
// GGUF and in the model's own code.
float HalfPower(uint8_t power);

// The values of the E2M1 codes, in halves.
inline constexpr int8_t kE2M1Halves[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Scales and minima of the 8 groups of a kQ4_K or kQ5_K block.
struct KGroups {
  float scales[8];
  float minima[8];
};
KGroups ReadKGroups(const std::byte* block);

}  // namespace penstock
