// Proves that errors are weighed as their inputs say, and that quantising by these weights errs less: scales that know
// the inputs, and codes that make up for the errors of others.
#include "penstock/tensor/error_weights.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "penstock/tensor/hqq.h"
#include "penstock/tensor/quantise.h"
#include "tests/effort.h"

namespace penstock {
namespace {

// Inputs that are mixtures of a few common causes, so that they move together.
struct Inputs {
  Inputs(int64_t inner_dim, int64_t num_rows, uint32_t seed) : dim(inner_dim) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const int64_t num_causes = 8;
    std::vector<float> mix(static_cast<size_t>(num_causes * dim));
    for (float& value : mix) value = normal(random);
    for (int64_t row = 0; row < num_rows; ++row) {
      std::vector<float> causes(num_causes);
      for (float& cause : causes) cause = normal(random);
      for (int64_t k = 0; k < dim; ++k) {
        float value = 0.3f * normal(random);
        for (int64_t cause = 0; cause < num_causes; ++cause) value += causes[cause] * mix[cause * dim + k];
        values.push_back(value * (k % 7 == 0 ? 4 : 1));
      }
    }
    squares.resize(static_cast<size_t>(dim));
    products.resize(static_cast<size_t>(dim * kInputBlock));
    for (int64_t row = 0; row < num_rows; ++row) {
      const float* const x = values.data() + row * dim;
      for (int64_t k = 0; k < dim; ++k) {
        squares[k] += x[k] * x[k] / static_cast<float>(num_rows);
        const int64_t first = k / kInputBlock * kInputBlock;
        for (int64_t i = first; i < std::min(first + kInputBlock, dim); ++i) {
          products[k * kInputBlock + i - first] += x[k] * x[i] / static_cast<float>(num_rows);
        }
      }
    }
  }

  int64_t dim;
  std::vector<float> values, squares, products;
};

std::vector<float> RandomRows(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> rows(static_cast<size_t>(count));
  for (float& value : rows) value = normal(random);
  return rows;
}

// Returns the mean square of the errors of all outputs, as `judge` weighs them.
double ErrorOf(WeightFormat format, const std::vector<float>& rows, int64_t inner_dim, const ErrorWeights* weights,
               const ErrorWeights& judge) {
  const int64_t num_cols = std::ssize(rows) / inner_dim;
  std::vector<std::byte> packed(PanelBytes(format, inner_dim));
  QuantisePanel(format, rows, num_cols, inner_dim, packed.data(), weights);
  double sum = 0;
  std::vector<float> found(static_cast<size_t>(inner_dim));
  for (int64_t col = 0; col < num_cols; ++col) {
    UnpackColumn(format, packed.data(), col, inner_dim, found.data());
    for (int64_t k = 0; k < inner_dim; ++k) found[k] -= rows[col * inner_dim + k];
    sum += judge.MeanSquare(found);
  }
  return sum;
}

TEST(ErrorWeightsTest, TheMeanSquareIsThatOfTheOutputs) {
  const Inputs inputs(200, 500, 1);
  const std::vector<float> row = RandomRows(200, 2);
  double expected = 0;
  for (int64_t i = 0; i < 500; ++i) {
    double output = 0;
    for (int64_t k = 0; k < 200; ++k) output += double{row[k]} * inputs.values[i * 200 + k];
    expected += output * output / 500;
  }
  EXPECT_NEAR(ErrorWeights({inputs.squares, inputs.products}).MeanSquare(row), expected, 1e-3 * expected);
}

TEST(ErrorWeightsTest, ErrorsThatKnowTheirInputsAreSmaller) {
  for (const int64_t inner_dim : {64, 224, 256, 600}) {
    if (kSanitized && inner_dim != 224) continue;
    const Inputs inputs(inner_dim, 4000, 3);
    const std::vector<float> rows = RandomRows(32 * inner_dim, 4);
    const ErrorWeights squares({inputs.squares}), all({inputs.squares, inputs.products});
    for (const WeightFormat format :
         {WeightFormat::kHqq4, WeightFormat::kHqq3, WeightFormat::kHqq2, WeightFormat::kTernary}) {
      const double plain = ErrorOf(format, rows, inner_dim, nullptr, all);
      EXPECT_LT(ErrorOf(format, rows, inner_dim, &all, all), 0.6 * plain) << TraitsOf(format).name << inner_dim;
      EXPECT_LT(ErrorOf(format, rows, inner_dim, &squares, squares),
                0.9 * ErrorOf(format, rows, inner_dim, nullptr, squares))
          << TraitsOf(format).name << inner_dim;
    }
  }
}

TEST(ErrorWeightsTest, InputsThatMoveAloneHaveNothingToMakeUpFor) {
  std::vector<float> squares(256, 2.0f), products(256 * kInputBlock);
  for (int64_t k = 0; k < 256; ++k) products[k * kInputBlock + k] = 2;
  const ErrorWeights weights({squares, products});
  ASSERT_NE(weights.compensation(0), nullptr);
  for (const float pull : weights.compensation(0)->pull) EXPECT_EQ(pull, 0);
  const std::vector<float> rows = RandomRows(32 * 256, 5);
  const ErrorWeights alone({squares});
  const double error = ErrorOf(WeightFormat::kHqq3, rows, 256, &weights, weights);
  const double error_alone = ErrorOf(WeightFormat::kHqq3, rows, 256, &alone, weights);
  EXPECT_LE(error, error_alone * 1.0001);
  EXPECT_GT(error, 0.9 * error_alone);  // only scales and zeros fit a little better
}

TEST(ErrorWeightsTest, InputsThatWereNeverSeenCountAlike) {
  const std::vector<float> nothing(300), products(300 * kInputBlock);
  const ErrorWeights weights({nothing, products});
  EXPECT_EQ(weights.compensation(0), nullptr);
  for (const float weight : weights.of_inputs()) EXPECT_EQ(weight, 1);
  const std::vector<float> rows = RandomRows(32 * 300, 6);
  std::vector<std::byte> packed(PanelBytes(WeightFormat::kHqq2, 300));
  QuantisePanel(WeightFormat::kHqq2, rows, 32, 300, packed.data(), &weights);
  EXPECT_EQ(weights.MeanSquare(std::vector<float>(300, 1)), 0);
}

TEST(ErrorWeightsTest, AFittedGroupErrsLessThanAnUnweightedOne) {
  std::mt19937 random(7);
  for (const int bits : {2, 3, 4}) {
    double fitted = 0, solved = 0;
    for (int trial = 0; trial < 200; ++trial) {
      const std::vector<float> weights = RandomRows(64, random());
      std::vector<float> importance(64);
      for (float& value : importance) value = std::exp(std::normal_distribution<float>()(random));
      const auto error_of = [&](HqqGroup group) {
        std::vector<uint8_t> codes(64);
        EncodeGroup(weights, CodeRange::OfBits(bits), group, codes.data());
        double sum = 0;
        for (int i = 0; i < 64; ++i) {
          const double error = double{DequantiseHqq(codes[i], group)} - weights[i];
          sum += importance[i] * error * error;
        }
        return sum;
      };
      const HqqGroup fit = FitGroup(weights, importance, CodeRange::OfBits(bits));
      EXPECT_LE(error_of(fit), error_of(RoundToNearestGroup(weights, bits)) * 1.0001);
      fitted += error_of(fit);
      solved += error_of(SolveHqqGroup(weights, bits));
    }
    EXPECT_LT(fitted, 0.9 * solved) << bits;
  }
}

}  // namespace
}  // namespace penstock
