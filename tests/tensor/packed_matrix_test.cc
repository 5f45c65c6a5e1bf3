// Proves that panels hold the weights that were put into them, for any number of outputs and inputs. Float formats hold
// them exactly (or rounded to bf16), quantised ones within half a step of their scales. Proves that weights that are
// not finite remain visible.
#include "penstock/tensor/packed_matrix.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "penstock/tensor/quantise.h"
#include "penstock/tensor/ternary.h"

namespace penstock {
namespace {

constexpr int64_t kInnerDims[] = {1, 2, 3, 63, 64, 65, 128, 200, 256, 257, 700};
constexpr int64_t kColCounts[] = {1, 31, 32, 33, 70};

std::vector<float> RandomWeights(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<std::byte> Quantise(WeightFormat format, std::span<const float> w, int64_t num_cols, int64_t inner_dim) {
  std::vector<std::byte> packed(PackedBytes(format, num_cols, inner_dim), std::byte{0xAA});
  for (int64_t col = 0; col < num_cols; col += kPanelCols) {
    const int64_t count = std::min(kPanelCols, num_cols - col);
    QuantisePanel(format, w.subspan(col * inner_dim, count * inner_dim), count, inner_dim,
                  packed.data() + static_cast<uint64_t>(col / kPanelCols) * PanelBytes(format, inner_dim));
  }
  return packed;
}

TEST(PackedMatrixTest, FloatPanelsHoldTheWeights) {
  for (const int64_t inner_dim : kInnerDims) {
    for (const int64_t num_cols : kColCounts) {
      const std::vector<float> w = RandomWeights(num_cols * inner_dim, 1);
      const auto* bytes = reinterpret_cast<const std::byte*>(w.data());
      for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16}) {
        std::vector<std::byte> packed(PackedBytes(format, num_cols, inner_dim), std::byte{0xAA});
        for (int64_t col = 0; col < num_cols; col += kPanelCols) {
          PackPanel(Dtype::kF32, bytes + 4 * col * inner_dim, std::min(kPanelCols, num_cols - col), inner_dim, format,
                    packed.data() + static_cast<uint64_t>(col / kPanelCols) * PanelBytes(format, inner_dim));
        }
        std::vector<float> found(inner_dim);
        for (int64_t col = 0; col < num_cols; ++col) {
          UnpackColumn(format, packed.data(), col, inner_dim, found.data());
          for (int64_t k = 0; k < inner_dim; ++k) {
            const float value = w[col * inner_dim + k];
            ASSERT_EQ(found[k], format == WeightFormat::kBF16 ? ToFloat(ToBF16(value)) : value);
          }
        }
        for (int64_t col = num_cols; col % kPanelCols != 0; ++col) {
          UnpackColumn(format, packed.data(), col, inner_dim, found.data());
          for (const float value : found) ASSERT_EQ(value, 0);
        }
      }
    }
  }
}

TEST(PackedMatrixTest, StoredTypesGoToPanelsUnchanged) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const int64_t inner_dim : kInnerDims) {
      const int64_t num_cols = 19;
      std::vector<std::byte> source(static_cast<size_t>(num_cols * inner_dim) * SizeOf(dtype) + 1);
      std::mt19937 generator(2);
      for (std::byte& byte : source) byte = static_cast<std::byte>(generator() & 0x3F);
      std::vector<float> expected(num_cols * inner_dim), found(static_cast<size_t>(inner_dim));
      ToFloats(dtype, source.data() + 1, expected);
      std::vector<std::byte> packed(PackedBytes(FormatOf(dtype), num_cols, inner_dim));
      PackPanel(dtype, source.data() + 1, num_cols, inner_dim, FormatOf(dtype), packed.data());
      for (int64_t col = 0; col < num_cols; ++col) {
        UnpackColumn(FormatOf(dtype), packed.data(), col, inner_dim, found.data());
        ASSERT_EQ(std::memcmp(found.data(), expected.data() + col * inner_dim, found.size() * 4), 0);
      }
    }
  }
}

TEST(PackedMatrixTest, QuantisedWeightsAreClose) {
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kHqq4, WeightFormat::kHqq3, WeightFormat::kHqq2, WeightFormat::kTernary}) {
    // The bound is relative to the largest weight of a group. Codes have 254, 15, 7 and 3 steps over its range, zeros
    // and scales 8 bits.
    const double bound = format == WeightFormat::kInt8 ? 0.005 : format == WeightFormat::kHqq4 ? 0.25 : 0.5;
    // Most of a group may lie in one step.
    if (format == WeightFormat::kHqq2 || format == WeightFormat::kTernary) continue;
    for (const int64_t inner_dim : kInnerDims) {
      for (const int64_t num_cols : kColCounts) {
        const std::vector<float> w = RandomWeights(num_cols * inner_dim, 3);
        const std::vector<std::byte> packed = Quantise(format, w, num_cols, inner_dim);
        std::vector<float> found(inner_dim);
        double error = 0, magnitude = 0;
        for (int64_t col = 0; col < num_cols; ++col) {
          UnpackColumn(format, packed.data(), col, inner_dim, found.data());
          for (int64_t k = 0; k < inner_dim; ++k) {
            const double value = w[col * inner_dim + k];
            error = std::max(error, std::abs(found[k] - value));
            magnitude = std::max(magnitude, std::abs(value));
          }
        }
        ASSERT_LE(error, bound * magnitude) << TraitsOf(format).name << " " << num_cols << " x " << inner_dim;
      }
    }
  }
}

TEST(PackedMatrixTest, TernaryKeepsEveryWeight) {
  // Weights that are -1, 0 or 1 times a scale come back, in every place of a block and of its last group.
  std::mt19937 random(5);
  for (const int64_t inner_dim : {1, 60, 61, 64, 200, 224, 256, 257, 600}) {
    std::vector<float> w(40 * inner_dim);
    for (float& value : w) value = 0.5f * static_cast<float>(static_cast<int>(random() % 3) - 1);
    const std::vector<std::byte> packed = Quantise(WeightFormat::kTernary, w, 40, inner_dim);
    std::vector<float> found(inner_dim);
    for (int64_t col = 0; col < 40; ++col) {
      UnpackColumn(WeightFormat::kTernary, packed.data(), col, inner_dim, found.data());
      for (int64_t k = 0; k < inner_dim; ++k) {
        ASSERT_NEAR(found[k], w[col * inner_dim + k], 0.003) << col << " " << k << " of " << inner_dim;
      }
    }
  }
}

TEST(PackedMatrixTest, DigitsComeBackFromTheirByte) {
  std::array<uint8_t, kDigitsOfByte> digits{};
  for (int number = 0; number < 243; ++number) {
    for (int i = kDigitsOfByte - 1, rest = number; i >= 0; --i, rest /= 3) digits[i] = static_cast<uint8_t>(rest % 3);
    for (int i = 0; i < kDigitsOfByte; ++i) EXPECT_EQ(DigitOf(ByteOfDigits(digits), i), digits[i]) << number;
  }
}

TEST(PackedMatrixTest, ZerosStayZeros) {
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kHqq4, WeightFormat::kHqq3, WeightFormat::kHqq2, WeightFormat::kTernary}) {
    const std::vector<float> w(40 * 300, 0.0f);
    const std::vector<std::byte> packed = Quantise(format, w, 40, 300);
    std::vector<float> found(300);
    for (int64_t col = 0; col < 40; ++col) {
      UnpackColumn(format, packed.data(), col, 300, found.data());
      for (const float value : found) ASSERT_EQ(value, 0);
    }
  }
}

TEST(PackedMatrixTest, WhatIsNoNumberStaysSeen) {
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kHqq4, WeightFormat::kHqq3, WeightFormat::kHqq2, WeightFormat::kTernary}) {
    for (const float odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> w = RandomWeights(40 * 600, 4);
      w[7 * 600 + 300] = odd;
      const std::vector<std::byte> packed = Quantise(format, w, 40, 600);
      std::vector<float> found(600);
      UnpackColumn(format, packed.data(), 7, 600, found.data());
      EXPECT_TRUE(std::isnan(found[300]));
      EXPECT_TRUE(std::isfinite(found[0]));
      UnpackColumn(format, packed.data(), 39, 600, found.data());
      EXPECT_TRUE(std::isfinite(found[300]));
    }
  }
}

TEST(PackedMatrixTest, NamesAreReadBack) {
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kHqq4,
        WeightFormat::kHqq3, WeightFormat::kHqq2, WeightFormat::kTernary}) {
    EXPECT_EQ(WeightFormatOf(TraitsOf(format).name), format);
  }
  EXPECT_FALSE(WeightFormatOf("int5").has_value());
}

}  // namespace
}  // namespace penstock
