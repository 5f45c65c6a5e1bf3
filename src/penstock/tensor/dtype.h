// Element types of tensors and conversions between them.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

enum class Dtype : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // codes; multiplied by their scales they are numbers
  kU8,
  kI32,  // several codes
  kI64,  // of no weight
};

constexpr uint64_t SizeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kI32: return 4;
    case Dtype::kF16:
    case Dtype::kBF16: return 2;
    case Dtype::kF8E4M3:
    case Dtype::kU8: return 1;
    case Dtype::kI64: return 8;
  }
  return 1;
}
constexpr bool IsFloat(Dtype dtype) { return dtype <= Dtype::kBF16; }
std::string_view DtypeName(Dtype dtype);  // "f32", "f16", "bf16", "f8_e4m3", "u8", "i32", "i64"

// A bfloat16 is the upper half of a float.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float ToFloat(BF16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
inline BF16 ToBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

float ToFloat(F16 x);

// OCP 8-bit floating point E4M3: four bits of exponent, three of mantissa, no infinities.
struct F8E4M3 {
  uint8_t bits;
};
// Multiplying by 2^120 moves the exponent's bias from 7 to 127, and converts subnormal numbers correctly, too.
inline float ToFloat(F8E4M3 x) {
  const uint32_t magnitude = x.bits & 0x7F;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80) << 24;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000);
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}

// Converts `count` elements of `dtype` at `source` (no alignment needed) to floats.
void ToFloats(Dtype dtype, const std::byte* source, std::span<float> target);

// Rounds `count` elements of `dtype` to bf16. `target` may equal `source`.
void ToBF16s(Dtype dtype, const std::byte* source, int64_t count, std::byte* target);

}  // namespace penstock
