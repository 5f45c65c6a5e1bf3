// Proves that outputs of experts survive their way between ranks: f32 exactly, bf16 and int8 within their steps, and
// decoded rows equal rounded ones, bit for bit.
#include "penstock/tensor/output_codes.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr CommFormat kCommFormats[] = {CommFormat::kF32, CommFormat::kBF16, CommFormat::kInt8};

std::vector<float> RandomRows(int64_t num_rows, int64_t dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(num_rows * dim);
  for (float& value : rows) value = normal(random);
  return rows;
}

// Encodes rows, copies the codes to a buffer with room for floats, and decodes them there.
std::vector<float> Travel(CommFormat format, const std::vector<float>& rows, int64_t dim) {
  std::vector<std::byte> codes(OutputRowBytes(format, dim) * (std::ssize(rows) / dim));
  EncodeOutputs(format, rows, dim, codes.data());
  std::vector<float> arrived(rows.size(), -1);
  std::memcpy(arrived.data(), codes.data(), codes.size());
  DecodeOutputs(format, arrived, dim);
  return arrived;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(OutputCodes, DecodedRowsEqualRoundedOnes) {
  for (const CommFormat format : kCommFormats) {
    for (const int64_t dim : {2, 3, 64, 100}) {
      for (const int64_t num_rows : {1, 2, 17}) {
        const std::vector<float> rows = RandomRows(num_rows, dim, 7);
        std::vector<float> rounded = rows;
        RoundOutputs(format, rounded, dim);
        EXPECT_TRUE(SameBits(Travel(format, rows, dim), rounded)) << static_cast<int>(format) << " " << dim;
        EXPECT_TRUE(format != CommFormat::kF32 || SameBits(rounded, rows));
      }
    }
  }
}

TEST(OutputCodes, ErrorsAreAtMostHalfAStep) {
  const int64_t dim = 256;
  const std::vector<float> rows = RandomRows(8, dim, 3);
  const std::vector<float> bf16 = Travel(CommFormat::kBF16, rows, dim), int8 = Travel(CommFormat::kInt8, rows, dim);
  for (size_t i = 0; i < rows.size(); ++i) {
    float max = 0;
    for (int64_t j = 0; j < dim; ++j) max = std::max(max, std::abs(rows[i / dim * dim + j]));
    EXPECT_LE(std::abs(bf16[i] - rows[i]), std::abs(rows[i]) / 256);
    EXPECT_LE(std::abs(int8[i] - rows[i]), 0.5001f * max / 127);
  }
}

TEST(OutputCodes, ZerosStayZerosAndWhatIsNotFiniteBecomesNan) {
  std::vector<float> rows(16, 0);
  rows[8 + 3] = std::numeric_limits<float>::infinity();
  const std::vector<float> arrived = Travel(CommFormat::kInt8, rows, 8);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(arrived[i], 0);
  for (size_t i = 8; i < 16; ++i) EXPECT_TRUE(std::isnan(arrived[i]));
  const std::vector<float> tiny = Travel(CommFormat::kInt8, std::vector<float>(4, 1e-44f), 4);
  for (const float value : tiny) EXPECT_LE(std::abs(value), 1e-43f);
}

}  // namespace
}  // namespace penstock
