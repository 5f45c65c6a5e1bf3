// Block formats of GGUF files: a fixed number of weights in a fixed number of bytes, with scales of their own. Pure
// functions of bytes that nobody vouches for: any bytes are some floats, infinities and NaN among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

enum class GgufBlock : uint8_t { kQ8_0, kQ4_0, kQ4_K, kQ6_K };

std::string_view GgufBlockName(GgufBlock type);  // "Q8_0"

constexpr int64_t BlockElements(GgufBlock type) {
  return type == GgufBlock::kQ8_0 || type == GgufBlock::kQ4_0 ? 32 : 256;
}

constexpr int64_t BlockBytes(GgufBlock type) {
  switch (type) {
    case GgufBlock::kQ8_0: return 2 + 32;            // scale (f16), codes
    case GgufBlock::kQ4_0: return 2 + 16;            // scale (f16), codes
    case GgufBlock::kQ4_K: return 2 + 2 + 12 + 128;  // scale, scale of minima (f16), 8 of each in 6 bits, codes
    case GgufBlock::kQ6_K:
      return 128 + 64 + 16 + 2;  // low 4 bits and high 2 bits of codes, 16 scales in 8 bits, scale (f16)
  }
  return 0;
}

// The weights of whole blocks, bit for bit those of gguf.quants.dequantize (but for the payloads of NaN).
// REQUIRES: source.size() / BlockBytes(type) blocks on both sides, without rest.
void DequantiseBlocks(GgufBlock type, std::span<const std::byte> source, std::span<float> target);

// The blocks of weights, bit for bit those of gguf.quants.quantize; for Q8_0 and Q4_0 alone. Where the bytes of that
// one depend on the machine, they are defined here: blocks with NaN or infinities stand for NaN and infinities alone,
// and blocks of weights so small that the inverse of their scale is infinite stand for 0. REQUIRES: as for
// DequantiseBlocks.
void QuantiseBlocks(GgufBlock type, std::span<const float> source, std::span<std::byte> target);

}  // namespace penstock
