#include "penstock/tensor/gguf_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "penstock/base/check.h"
#include "penstock/tensor/dtype.h"

namespace penstock {
namespace {

uint32_t Byte(const std::byte* source, int64_t idx) { return static_cast<uint32_t>(source[idx]); }
float SignedByte(const std::byte* source, int64_t idx) { return static_cast<float>(static_cast<int8_t>(source[idx])); }

float LoadF16(const std::byte* source) {
  return ToFloat(F16{static_cast<uint16_t>(Byte(source, 0) | Byte(source, 1) << 8)});
}

// Rounds to nearest, ties to even; NaN stays NaN.
void StoreF16(float x, std::byte* target) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t half = 0;
  if (magnitude > 0x7F800000) {
    half = 0x7E00;
  } else if (magnitude >= 0x477FF000) {  // 65520, half way to what would be the next number
    half = 0x7C00;
  } else if (magnitude < 0x38800000) {  // below the least normal number: one unit is the last bit of floats from 0.5 on
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    half = (magnitude + 0xFFF + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  }
  half |= bits >> 16 & 0x8000;
  target[0] = static_cast<std::byte>(half & 0xFF);
  target[1] = static_cast<std::byte>(half >> 8);
}

void DequantiseQ8_0(const std::byte* source, float* target) {
  const float scale = LoadF16(source);
  for (int64_t i = 0; i < 32; ++i) target[i] = SignedByte(source, 2 + i) * scale;
}

void DequantiseQ4_0(const std::byte* source, float* target) {
  const float scale = LoadF16(source);
  for (int64_t i = 0; i < 16; ++i) {
    const uint32_t codes = Byte(source, 2 + i);
    target[i] = scale * (static_cast<float>(codes & 15) - 8);
    target[i + 16] = scale * (static_cast<float>(codes >> 4) - 8);
  }
}

// Eight sub-blocks of 32 weights: code * scale - min. Bytes 0 to 3 hold the low 6 bits of scales 0 to 3, bytes 4 to 7
// of minima 0 to 3; bytes 8 to 11 the low 4 bits of scales and minima 4 to 7, whose high 2 bits are the high bits of
// bytes 0 to 7.
void DequantiseQ4_K(const std::byte* source, float* target) {
  const float scale_of_scales = LoadF16(source);
  const float scale_of_minima = LoadF16(source + 2);
  const std::byte* packed = source + 4;
  const std::byte* codes = packed + 12;
  for (int64_t sub = 0; sub < 8; ++sub) {
    uint32_t scale_code = 0;
    uint32_t min_code = 0;
    if (sub < 4) {
      scale_code = Byte(packed, sub) & 63;
      min_code = Byte(packed, sub + 4) & 63;
    } else {
      scale_code = (Byte(packed, sub + 4) & 15) | (Byte(packed, sub - 4) >> 6 << 4);
      min_code = (Byte(packed, sub + 4) >> 4) | (Byte(packed, sub) >> 6 << 4);
    }
    const float scale = scale_of_scales * static_cast<float>(scale_code);
    const float min = scale_of_minima * static_cast<float>(min_code);
    for (int64_t i = 0; i < 32; ++i) {
      const uint32_t code = Byte(codes, sub / 2 * 32 + i) >> (sub % 2 * 4) & 15;
      target[sub * 32 + i] = scale * static_cast<float>(code) - min;
    }
  }
}

// Two halves of 128 weights. In each, weight i has its low 4 bits in byte i % 64 of 64, and its high 2 bits in byte i %
// 32 of 32.
void DequantiseQ6_K(const std::byte* source, float* target) {
  const std::byte* low = source;
  const std::byte* high = low + 128;
  const std::byte* scales = high + 64;
  const float scale_of_scales = LoadF16(scales + 16);
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t half = i / 128;
    const uint32_t low_bits = Byte(low, half * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
    const uint32_t high_bits = Byte(high, half * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const float scale = scale_of_scales * SignedByte(scales, i / 16);
    target[i] = scale * (static_cast<float>(low_bits | high_bits << 4) - 32);
  }
}

// 1 / scale, or 0 where no code means anything: the scale is 0, NaN, infinite or the inverse of nothing finite.
float Inverse(float scale) {
  const float inverse = 1 / scale;
  return std::isfinite(inverse) ? inverse : 0;
}

void QuantiseQ8_0(const float* source, std::byte* target) {
  float largest = 0;
  for (int64_t i = 0; i < 32; ++i) {
    const float magnitude = std::abs(source[i]);
    if (magnitude > largest || std::isnan(magnitude)) largest = magnitude;  // and a NaN stays
  }
  const float scale = largest / 127;
  const float inverse = Inverse(scale);
  StoreF16(scale, target);
  for (int64_t i = 0; i < 32; ++i) {
    const float code = std::round(source[i] * inverse);
    target[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::isnan(code) ? 0 : code));
  }
}

void QuantiseQ4_0(const float* source, std::byte* target) {
  float largest = source[0];  // by magnitude, with its sign; the first of those alike
  for (int64_t i = 1; i < 32; ++i) {
    if (std::isnan(largest)) break;
    if (std::abs(source[i]) > std::abs(largest) || std::isnan(source[i])) largest = source[i];
  }
  const float scale = largest / -8;
  const float inverse = Inverse(scale);
  const auto encode = [inverse](float weight) {
    const float exact = weight * inverse + 8.5f;
    return std::isnan(exact) ? 0u : std::min(static_cast<uint32_t>(exact), 15u);
  };
  StoreF16(scale, target);
  for (int64_t i = 0; i < 16; ++i)
    target[2 + i] = static_cast<std::byte>(encode(source[i]) | encode(source[i + 16]) << 4);
}

int64_t NumBlocks(GgufBlock type, size_t num_bytes, size_t num_weights) {
  const int64_t num_blocks = static_cast<int64_t>(num_bytes) / BlockBytes(type);
  PENSTOCK_CHECK(static_cast<int64_t>(num_bytes) == num_blocks * BlockBytes(type));
  PENSTOCK_CHECK(static_cast<int64_t>(num_weights) == num_blocks * BlockElements(type));
  return num_blocks;
}

}  // namespace

std::string_view GgufBlockName(GgufBlock type) {
  switch (type) {
    case GgufBlock::kQ8_0: return "Q8_0";
    case GgufBlock::kQ4_0: return "Q4_0";
    case GgufBlock::kQ4_K: return "Q4_K";
    case GgufBlock::kQ6_K: return "Q6_K";
  }
  return "unknown";
}

void DequantiseBlocks(GgufBlock type, std::span<const std::byte> source, std::span<float> target) {
  const int64_t num_blocks = NumBlocks(type, source.size(), target.size());
  for (int64_t block = 0; block < num_blocks; ++block) {
    const std::byte* bytes = source.data() + block * BlockBytes(type);
    float* weights = target.data() + block * BlockElements(type);
    switch (type) {
      case GgufBlock::kQ8_0: DequantiseQ8_0(bytes, weights); break;
      case GgufBlock::kQ4_0: DequantiseQ4_0(bytes, weights); break;
      case GgufBlock::kQ4_K: DequantiseQ4_K(bytes, weights); break;
      case GgufBlock::kQ6_K: DequantiseQ6_K(bytes, weights); break;
    }
  }
}

void QuantiseBlocks(GgufBlock type, std::span<const float> source, std::span<std::byte> target) {
  PENSTOCK_CHECK(type == GgufBlock::kQ8_0 || type == GgufBlock::kQ4_0);
  const int64_t num_blocks = NumBlocks(type, target.size(), source.size());
  for (int64_t block = 0; block < num_blocks; ++block) {
    const float* weights = source.data() + block * BlockElements(type);
    std::byte* bytes = target.data() + block * BlockBytes(type);
    type == GgufBlock::kQ8_0 ? QuantiseQ8_0(weights, bytes) : QuantiseQ4_0(weights, bytes);
  }
}

}  // namespace penstock
