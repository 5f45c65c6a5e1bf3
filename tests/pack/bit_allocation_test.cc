// Proves that bytes go where they save most error: against all possible choices on small cases, within the budget, and
// the same each time.
#include "penstock/pack/bit_allocation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max();

std::vector<MatrixChoice> RandomCosts(size_t num_matrices, std::mt19937& random) {
  std::vector<MatrixChoice> matrices(num_matrices);
  for (MatrixChoice& choice : matrices) {
    const double importance = std::exp(std::normal_distribution<double>(0, 2)(random));
    const uint64_t size = 1 + random() % 4;
    for (const uint64_t bits : {2, 3, 4, 8}) {
      choice.formats.push_back(
          {WeightFormat::kInt8, bits * size, importance * std::pow(0.25, static_cast<double>(bits))});
    }
  }
  return matrices;
}

struct Total {
  uint64_t bytes = 0;
  double error = 0;
};
Total TotalOf(const std::vector<MatrixChoice>& matrices, const std::vector<size_t>& chosen) {
  Total total;
  for (size_t i = 0; i < matrices.size(); ++i) {
    total.bytes += matrices[i].formats[chosen[i]].bytes;
    total.error += matrices[i].formats[chosen[i]].error;
  }
  return total;
}

TEST(BitAllocationTest, NoChoiceOfAsManyBytesErrsLess) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const auto matrices = RandomCosts(5, random);
    const uint64_t budget = 30 + random() % 80;
    const auto chosen = AllocateBits(matrices, budget, kAny);
    uint64_t least = 0;
    for (const MatrixChoice& choice : matrices) least += choice.formats[0].bytes;
    ASSERT_EQ(chosen.has_value(), least <= budget);
    if (!chosen.has_value()) continue;
    const Total found = TotalOf(matrices, *chosen);
    EXPECT_LE(found.bytes, budget);
    // All 4^5 choices. Steps that do not fit are passed over, so the bound is the budget less the largest step.
    double best = std::numeric_limits<double>::max();
    for (size_t code = 0; code < 1024; ++code) {
      const Total total = TotalOf(matrices, {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 & 3, code >> 8 & 3});
      if (total.bytes + 16 <= budget) best = std::min(best, total.error);
    }
    EXPECT_LE(found.error, best * (1 + 1e-12));
  }
}

TEST(BitAllocationTest, FormatsThatAreNotWorthTheirBytesAreNotChosen) {
  // The second format is larger than the first and errs more, the third saves little for its bytes.
  const std::vector<MatrixChoice> matrices = {{{{WeightFormat::kHqq2, 10, 1.0},
                                                {WeightFormat::kHqq3, 12, 1.5},
                                                {WeightFormat::kHqq4, 19, 0.99},
                                                {WeightFormat::kInt8, 20, 0.1}}}};
  EXPECT_EQ(AllocateBits(matrices, 9, kAny), std::nullopt);
  EXPECT_EQ(AllocateBits(matrices, 19, kAny), std::vector<size_t>{0});
  EXPECT_EQ(AllocateBits(matrices, 20, kAny), std::vector<size_t>{3});
}

TEST(BitAllocationTest, TiesGoToEarlierMatrices) {
  const std::vector<FormatCost> costs = {{WeightFormat::kHqq2, 2, 4.0}, {WeightFormat::kHqq4, 4, 1.0}};
  std::vector<MatrixChoice> matrices(4, {.formats = costs});
  EXPECT_EQ(AllocateBits(matrices, 12, kAny), (std::vector<size_t>{1, 1, 0, 0}));
  // Only one matrix of a group may grow.
  for (size_t i = 0; i < 4; ++i) matrices[i].group = i < 3 ? 7 : -1;
  EXPECT_EQ(AllocateBits(matrices, 100, 8), (std::vector<size_t>{1, 0, 0, 1}));
  EXPECT_EQ(AllocateBits(matrices, 100, 1), (std::vector<size_t>{0, 0, 0, 1}));
  EXPECT_EQ(AllocateBits({}, 0, kAny), std::vector<size_t>{});
}

}  // namespace
}  // namespace penstock
