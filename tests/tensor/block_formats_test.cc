// Proves that GGUF's block formats are read and written bit for bit as by the Python package gguf (golden vectors,
// tests/tensor/gguf_blocks/README.md). Proves that any bytes decode to weights, and that weights survive quantisation.
#include "penstock/tensor/block_formats.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "penstock/tensor/dtype.h"

namespace penstock {
namespace {

// Every type of blocks that GGUF has.
const std::vector<WeightFormat> kTypes = [] {
  std::vector<WeightFormat> types;
  for (const WeightFormatTraits& format : kWeightFormats) {
    if (format.gguf_type >= 0) types.push_back(format.value);
  }
  return types;
}();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string GoldenName(WeightFormat type) {
  std::string name(TraitsOf(type).name);
  std::transform(name.begin(), name.end(), name.begin(), ::toupper);
  return name;
}

std::vector<std::byte> ReadGolden(const std::string& name) {
  std::ifstream file(std::string(PENSTOCK_SOURCE_DIR "/tests/tensor/gguf_blocks/") + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<float> ReadGoldenFloats(const std::string& name) {
  const std::vector<std::byte> bytes = ReadGolden(name);
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

std::vector<float> Dequantise(WeightFormat type, const std::vector<std::byte>& bytes) {
  std::vector<float> weights(bytes.size() / BlockBytes(type) * BlockElements(type));
  DequantiseBlocks(type, bytes, weights);
  return weights;
}

std::vector<std::byte> Quantise(WeightFormat type, const std::vector<float>& weights) {
  std::vector<std::byte> bytes(weights.size() / BlockElements(type) * BlockBytes(type));
  QuantiseBlocks(type, weights, bytes);
  return bytes;
}

TEST(BlockFormats, WeightsAreThoseOfThePackage) {
  for (const WeightFormat type : kTypes) {
    const std::string name(GoldenName(type));
    const std::vector<float> expected = ReadGoldenFloats(name + ".weights");
    const std::vector<float> weights = Dequantise(type, ReadGolden(name + ".blocks"));
    ASSERT_EQ(weights.size(), expected.size()) << name;
    int64_t num_nan = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      num_nan += std::isnan(expected[i]);
      if (std::isnan(expected[i]) && std::isnan(weights[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(weights[i]), std::bit_cast<uint32_t>(expected[i])) << name << " weight " << i;
    }
    EXPECT_EQ(num_nan > 0, type != WeightFormat::kMxfp4) << name;  // its scales cannot be NaN
    EXPECT_LT(num_nan, std::ssize(weights) / 2) << name;
  }
}

TEST(BlockFormats, BlocksAreThoseOfThePackage) {
  const std::vector<float> weights = ReadGoldenFloats("weights");
  for (const WeightFormat type : {WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
    const std::string name(GoldenName(type));
    const std::vector<std::byte> expected = ReadGolden(name + ".quantised");
    ASSERT_GT(expected.size(), 1000u);
    EXPECT_EQ(Quantise(type, weights), expected) << name;
  }
}

TEST(BlockFormats, NamesAndSizes) {
  for (const WeightFormat type : kTypes) {
    const std::string name(GoldenName(type));
    const int64_t num_bytes = std::ssize(ReadGolden(name + ".blocks"));
    EXPECT_EQ(num_bytes % BlockBytes(type), 0) << name;
    EXPECT_EQ(num_bytes / BlockBytes(type) * BlockElements(type), std::ssize(ReadGoldenFloats(name + ".weights")))
        << name;
  }
  DequantiseBlocks(WeightFormat::kQ8_0, {}, {});  // no blocks are fine
  QuantiseBlocks(WeightFormat::kQ8_0, {}, {});
}

TEST(BlockFormatsDeathTest, BlocksWithARest) {
  std::vector<std::byte> bytes(2 * 34);
  std::vector<float> weights(64);
  EXPECT_DEATH(DequantiseBlocks(WeightFormat::kQ8_0, std::span(bytes).first(67), weights), "check failed");
  EXPECT_DEATH(DequantiseBlocks(WeightFormat::kQ8_0, bytes, std::span(weights).first(63)), "check failed");
  EXPECT_DEATH(QuantiseBlocks(WeightFormat::kQ8_0, std::span(weights).first(32), bytes), "check failed");
  EXPECT_DEATH(QuantiseBlocks(WeightFormat::kQ6_K, {}, {}), "check failed");
}

// A sub-block has at most as many different weights as it has codes, whatever the bytes.
RC_GTEST_PROP(BlockFormats, AnyBytesAreWeightsOfTheirCodes, (uint32_t seed)) {
  std::mt19937 random(seed);
  const WeightFormat type = kTypes[seed % std::size(kTypes)];
  const bool is_halved = type == WeightFormat::kQ6_K || type == WeightFormat::kQ2_K || type == WeightFormat::kQ3_K;
  const int64_t sub_block = is_halved ? 16 : 32;
  std::vector<std::byte> bytes(static_cast<size_t>(BlockBytes(type)) * (1 + random() % 3));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const std::vector<float> weights = Dequantise(type, bytes);
  for (size_t start = 0; start < weights.size(); start += sub_block) {
    std::vector<float> values(weights.begin() + start, weights.begin() + start + sub_block);
    const bool broken = std::any_of(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
    if (broken || type == WeightFormat::kQ8_0) continue;
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    RC_ASSERT(values.size() <=
              (type == WeightFormat::kQ6_K                                                                 ? 64u
               : type == WeightFormat::kQ2_K                                                               ? 4u
               : type == WeightFormat::kQ3_K                                                               ? 8u
               : type == WeightFormat::kQ5_K || type == WeightFormat::kQ5_0 || type == WeightFormat::kQ5_1 ? 32u
                                                                                                           : 16u));
    if (type == WeightFormat::kMxfp4) continue;
    RC_ASSERT(std::all_of(values.begin(), values.end(), [](float x) { return std::abs(x) < 65504.0f * 128 * 128; }));
  }
}

// The error is at most half a step, plus f16's rounding of the step for each of up to `levels` steps. Q4_0 has no code
// for the opposite of the largest weight, which is off by a step.
RC_GTEST_PROP(BlockFormats, WeightsSurvive, (uint32_t seed)) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, std::ldexp(1.0f, static_cast<int>(seed % 16) - 10));
  std::vector<float> weights(32);
  for (float& weight : weights) weight = normal(random);
  float largest = 0;
  for (const float weight : weights) largest = std::max(largest, std::abs(weight));
  const std::vector<float> from_8 = Dequantise(WeightFormat::kQ8_0, Quantise(WeightFormat::kQ8_0, weights));
  const std::vector<float> from_4 = Dequantise(WeightFormat::kQ4_0, Quantise(WeightFormat::kQ4_0, weights));
  constexpr float kMinHalf = 1.0f / (1 << 24);  // the spacing of f16's denormals
  for (size_t i = 0; i < weights.size(); ++i) {
    const float of_scale = largest / 2048;
    RC_ASSERT(std::abs(from_8[i] - weights[i]) <= largest / 127 * 0.501f + of_scale + 127 * kMinHalf);
    RC_ASSERT(std::abs(from_4[i] - weights[i]) <= largest / 8 * 1.001f + of_scale + 8 * kMinHalf);
  }
  // Weights that are exactly representable do not change.
  RC_ASSERT(Dequantise(WeightFormat::kQ4_0, Quantise(WeightFormat::kQ4_0, from_4)) == from_4);
}

// Fixes what gguf leaves to the machine: blocks with NaN and infinities decode to NaN (or infinities), tiny ones to 0.
TEST(BlockFormats, OddWeightsAreDefined) {
  for (const WeightFormat type : {WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
    for (const float odd : {kNaN, kInfinity, -kInfinity}) {
      for (const size_t place : {0u, 13u, 31u}) {
        std::vector<float> weights(32, 1.0f);
        weights[place] = odd;
        for (const float weight : Dequantise(type, Quantise(type, weights))) EXPECT_FALSE(std::isfinite(weight)) << odd;
      }
    }
    const std::vector<float> tiny(32, -std::numeric_limits<float>::denorm_min());
    for (const float weight : Dequantise(type, Quantise(type, tiny))) EXPECT_EQ(weight, 0);
  }
}

// Follows OCP's table of E4M3: exponent bias 7, no infinities, one NaN of each sign.
TEST(Fp8, EveryCode) {
  for (int bits = 0; bits < 256; ++bits) {
    const float found = ToFloat(F8E4M3{static_cast<uint8_t>(bits)});
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(found)) << bits;
      continue;
    }
    const double magnitude =
        exponent == 0 ? mantissa * std::ldexp(1.0, -9) : (8 + mantissa) * std::ldexp(1.0, exponent - 10);
    EXPECT_EQ(found, bits < 128 ? magnitude : -magnitude) << bits;
    EXPECT_EQ(std::signbit(found), bits >= 128) << bits;
  }
  EXPECT_EQ(ToFloat(F8E4M3{0x7E}), 448);
  EXPECT_EQ(ToFloat(F8E4M3{0x01}), std::ldexp(1.0f, -9));
}

TEST(Fp8, RowsOfCodesAndScales) {
  std::vector<std::byte> codes(300);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 7);
  const std::vector<float> scales = {0.5f, kInfinity, -3e-40f};  // one of them is subnormal
  std::vector<std::byte> row(BlockRowBytes(WeightFormat::kFp8, 300), std::byte{0xAA});
  ASSERT_EQ(row.size(), 3u * 132);
  MakeFp8Row(codes, scales, 128, row.data());
  std::vector<float> weights(300);
  DequantiseRow(WeightFormat::kFp8, row.data(), weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    const float expected = ToFloat(F8E4M3{static_cast<uint8_t>(codes[i])}) * scales[i / 128];
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(weights[i])) << i;
    } else {
      EXPECT_EQ(weights[i], expected) << i;
    }
  }
  EXPECT_TRUE(std::all_of(row.begin() + 2 * 132 + 4 + 44, row.end(), [](std::byte x) { return x == std::byte{0}; }));
}

TEST(Mxfp4, RowsOfCodesAndPowers) {
  const std::vector<std::byte> powers = {std::byte{127}, std::byte{0}, std::byte{255}};
  std::vector<std::byte> codes(48);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 37 + 5);
  std::vector<std::byte> row(BlockRowBytes(WeightFormat::kMxfp4, 96));
  MakeMxfp4Row(codes, powers, row.data());
  std::vector<float> weights(96);
  DequantiseRow(WeightFormat::kMxfp4, row.data(), weights);
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (size_t i = 0; i < weights.size(); ++i) {
    const int code = static_cast<int>(codes[i / 2]) >> (i % 2 * 4) & 15;
    const double value = (code < 8 ? 1 : -1) * kValues[code % 8];
    EXPECT_EQ(weights[i], static_cast<float>(std::ldexp(value, static_cast<int>(powers[i / 32]) - 127))) << i;
  }
}

// Returns weight `i` of a row of codes, two in a byte.
int CodeOf(const std::vector<std::byte>& codes, size_t i) { return static_cast<int>(codes[i / 2]) >> (i % 2 * 4) & 15; }

std::vector<float> RowOf(WeightFormat format, const std::vector<std::byte>& row, size_t count) {
  std::vector<float> weights(count);
  DequantiseRow(format, row.data(), weights);
  return weights;
}

TEST(U4, EveryWeightIsExact) {
  // Scales of 11 bits of mantissa, large, small and subnormal, and every zero point and code.
  for (const float scale : {1.9990234375f, -0.00030493736267089844f, 65504.0f, 1023 * 0x1p-24f, 0.0f}) {
    std::vector<std::byte> codes(32);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 37 + 5);
    for (uint8_t zero = 0; zero < 16; ++zero) {
      const std::vector<float> scales = {0.5f, scale};
      const std::vector<uint8_t> zeros = {3, zero};
      std::vector<std::byte> row(BlockRowBytes(WeightFormat::kU4, 64));
      MakeU4Row(codes, scales, zeros, 32, row.data());
      const std::vector<float> weights = RowOf(WeightFormat::kU4, row, 64);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double expected = static_cast<double>(scales[i / 32]) * (CodeOf(codes, i) - zeros[i / 32]);
        EXPECT_EQ(weights[i], expected) << scale << " zero " << int{zero} << " weight " << i;
      }
    }
  }
}

TEST(U4, RowsOfPartsOfBlocks) {
  std::vector<std::byte> codes(50);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 29 + 11);
  std::vector<std::byte> row(BlockRowBytes(WeightFormat::kU4, 100));
  ASSERT_EQ(row.size(), 4u * 19);
  const std::vector<float> scales = {0.25f, -2.0f};
  const std::vector<uint8_t> zeros = {15, 1};
  MakeU4Row(codes, scales, zeros, 64, row.data());
  const std::vector<float> weights = RowOf(WeightFormat::kU4, row, 128);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(weights[i], scales[i / 64] * static_cast<float>(CodeOf(codes, i) - zeros[i / 64])) << i;
  }
  for (size_t i = 100; i < 128; ++i) EXPECT_EQ(weights[i], 0) << i;
}

TEST(Q8_0, RowsOfCodesAndScales) {
  std::vector<std::byte> codes(70);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 73);
  const std::vector<float> scales = {0.5f, 3.0f, -0.125f};
  std::vector<std::byte> row(BlockRowBytes(WeightFormat::kQ8_0, 70));
  MakeQ8_0Row(codes, scales, 32, row.data());
  const std::vector<float> weights = RowOf(WeightFormat::kQ8_0, row, 96);
  for (size_t i = 0; i < 70; ++i) {
    EXPECT_EQ(weights[i], scales[i / 32] * static_cast<float>(static_cast<int>(codes[i]) - 128)) << i;
  }
  for (size_t i = 70; i < 96; ++i) EXPECT_EQ(weights[i], 0) << i;
}

TEST(Nvfp4, RowsOfCodesAndScales) {
  constexpr size_t kInputs = 256 + 48;
  constexpr float kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::vector<std::byte> codes(kInputs / 2), scales(kInputs / 16);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 37 + 5);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(i * 5 + 1);  // one is subnormal
  for (const float scale_of_scales : {0.00123456789f, 3.0f, 0.0f}) {
    std::vector<std::byte> row(BlockRowBytes(WeightFormat::kNvfp4, kInputs), std::byte{0xAA});
    ASSERT_EQ(row.size(), 2u * 148);
    MakeNvfp4Row(codes, scales, scale_of_scales, row.data());
    const std::vector<float> weights = RowOf(WeightFormat::kNvfp4, row, 512);
    for (size_t i = 0; i < kInputs; ++i) {
      const int code = CodeOf(codes, i);
      const float scale = ToFloat(F8E4M3{static_cast<uint8_t>(scales[i / 16])}) * scale_of_scales;
      EXPECT_EQ(weights[i], (code < 8 ? kValues[code] : -kValues[code - 8]) * scale) << i;
    }
    for (size_t i = kInputs; i < 512; ++i) EXPECT_EQ(weights[i], 0) << i;
  }
}

}  // namespace
}  // namespace penstock
