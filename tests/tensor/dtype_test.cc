// Proves the conversions of 16-bit floats exhaustively: every f16 and bf16 against arithmetic on its fields, and the
// rounding to bf16 at and around every boundary between two neighbours.
#include "penstock/tensor/dtype.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace penstock {
namespace {

// Returns the value of a small float from its fields: sign, exponent of `exponent_bits`, mantissa of `mantissa_bits`.
double FieldValue(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const bool negative = (bits >> (mantissa_bits + exponent_bits) & 1) != 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

void ExpectSame(float actual, double expected, uint32_t bits) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << bits;
    return;
  }
  ASSERT_EQ(actual, expected) << bits;
  ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << bits;
}

TEST(Dtype, EveryF16) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    ExpectSame(ToFloat(F16{static_cast<uint16_t>(bits)}), FieldValue(bits, 5, 10), bits);
  }
}

TEST(Dtype, EveryBF16AndBack) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = ToFloat(BF16{static_cast<uint16_t>(bits)});
    ExpectSame(value, FieldValue(bits, 8, 7), bits);
    const BF16 back = ToBF16(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(ToFloat(back)));
      ASSERT_EQ(back.bits & 0x8000, bits & 0x8000);
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

// Returns the nearest bf16 by comparing distances in double, ties to the even one.
uint16_t NearestBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t toward_zero = static_cast<uint16_t>(bits >> 16);
  const uint16_t away = static_cast<uint16_t>(toward_zero + 1);
  const double below = FieldValue(toward_zero, 8, 7);
  // Beyond the largest number, the step counts as if the exponents continued; such results are infinite.
  const double above = (away & 0x7FFF) == 0x7F80 ? std::copysign(std::ldexp(1.0, 128), x) : FieldValue(away, 8, 7);
  const double to_below = std::abs(x - below);
  const double to_above = std::abs(above - x);
  if (to_below != to_above) return to_below < to_above ? toward_zero : away;
  return toward_zero % 2 == 0 ? toward_zero : away;
}

TEST(Dtype, RoundsToNearestEvenAtEveryBoundary) {
  for (uint32_t upper = 0; upper <= 0xFFFF; ++upper) {
    if ((upper & 0x7F80) == 0x7F80) continue;  // infinities and NaN
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      ASSERT_EQ(ToBF16(x).bits, NearestBF16(x)) << std::hexfloat << x;
    }
  }
}

TEST(Dtype, NaNStaysNaN) {
  for (const uint32_t bits : {0x7F800001u, 0x7F80FFFFu, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u}) {
    EXPECT_TRUE(std::isnan(ToFloat(ToBF16(std::bit_cast<float>(bits))))) << bits;
  }
  EXPECT_EQ(ToBF16(std::numeric_limits<float>::max()).bits, 0x7F80);  // rounds to infinity
  EXPECT_EQ(ToBF16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
}

RC_GTEST_PROP(Dtype, RoundsToNearestEven, (uint32_t bits)) {
  RC_PRE((bits & 0x7F800000) != 0x7F800000u);
  const float x = std::bit_cast<float>(bits);
  RC_ASSERT(ToBF16(x).bits == NearestBF16(x));
}

TEST(Dtype, ArraysConvertUnalignedAndInPlace) {
  const std::vector<float> values = {0.0f, -1.5f, 3.14159f, 1e30f, 65504.0f};
  std::vector<std::byte> storage(1 + values.size() * 4);
  std::byte* odd = storage.data() + 1;
  std::memcpy(odd, values.data(), values.size() * 4);
  std::vector<float> floats(values.size());
  ToFloats(Dtype::kF32, odd, floats);
  EXPECT_EQ(floats, values);
  ToBF16s(Dtype::kF32, odd, static_cast<int64_t>(values.size()), odd);
  ToFloats(Dtype::kBF16, odd, floats);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(floats[i], ToFloat(ToBF16(values[i])));

  const std::vector<uint16_t> halves = {0x3C00, 0xC000, 0x0001, 0x7BFF};  // 1, -2, the smallest, the largest
  std::memcpy(odd, halves.data(), halves.size() * 2);
  floats.resize(halves.size());
  ToFloats(Dtype::kF16, odd, floats);
  EXPECT_EQ(floats, (std::vector<float>{1.0f, -2.0f, std::ldexp(1.0f, -24), 65504.0f}));
  ToBF16s(Dtype::kF16, odd, static_cast<int64_t>(halves.size()), odd);
  ToFloats(Dtype::kBF16, odd, floats);
  EXPECT_EQ(floats, (std::vector<float>{1.0f, -2.0f, std::ldexp(1.0f, -24), 65536.0f}));
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(SizeOf(Dtype::kF32), 4u);
  EXPECT_EQ(SizeOf(Dtype::kF16), 2u);
  EXPECT_EQ(SizeOf(Dtype::kBF16), 2u);
  EXPECT_EQ(DtypeName(Dtype::kF32), "f32");
  EXPECT_EQ(DtypeName(Dtype::kF16), "f16");
  EXPECT_EQ(DtypeName(Dtype::kBF16), "bf16");
}

}  // namespace
}  // namespace penstock
