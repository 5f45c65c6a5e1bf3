// Proves that generated routings are legal (different experts for each row), repeatable whoever asks for which rows,
// and as skewed as they were asked to be.
#include "penstock/routing/generated_routing.h"

#include <set>
#include <vector>

#include <gmock/gmock.h>

namespace penstock {
namespace {

std::vector<int32_t> Copy(std::span<const int32_t> choices) { return {choices.begin(), choices.end()}; }

TEST(GeneratedRouting, RowsChooseDifferentExperts) {
  for (const double skew : {1.0, 1.5, 50.0}) {
    GeneratedRouting routing(8, 3, skew, 1);
    const std::vector<int32_t> choices = Copy(routing.Choices(2, 0, 200));
    ASSERT_EQ(choices.size(), 600u);
    for (size_t row = 0; row < 200; ++row) {
      const std::set<int32_t> chosen(choices.begin() + static_cast<int64_t>(row) * 3,
                                     choices.begin() + static_cast<int64_t>(row) * 3 + 3);
      EXPECT_EQ(chosen.size(), 3u);
      EXPECT_TRUE(*chosen.begin() >= 0 && *chosen.rbegin() < 8);
    }
  }
}

TEST(GeneratedRouting, DependsOnSeedStepLayerAndRowAlone) {
  GeneratedRouting routing(16, 2, 1.2, 7), same(16, 2, 1.2, 7), other(16, 2, 1.2, 8);
  const std::vector<int32_t> all = Copy(routing.Choices(1, 0, 50));
  EXPECT_EQ(Copy(same.Choices(3, 4, 9)), Copy(routing.Choices(3, 4, 9)));
  EXPECT_EQ(Copy(same.Choices(1, 20, 5)), std::vector<int32_t>(all.begin() + 40, all.begin() + 50));
  EXPECT_NE(Copy(other.Choices(1, 0, 50)), all);
  EXPECT_NE(Copy(routing.Choices(2, 0, 50)), all);
  routing.NextStep();
  EXPECT_NE(Copy(routing.Choices(1, 0, 50)), all);
}

TEST(GeneratedRouting, IsAsSkewedAsAsked) {
  GeneratedRouting even(8, 1, 1, 3), skewed(8, 1, 2, 3);
  std::vector<int> even_counts(8), skewed_counts(8);
  for (const int32_t expert : Copy(even.Choices(0, 0, 8000))) ++even_counts[static_cast<size_t>(expert)];
  for (const int32_t expert : Copy(skewed.Choices(0, 0, 8000))) ++skewed_counts[static_cast<size_t>(expert)];
  EXPECT_THAT(even_counts, testing::Each(testing::AllOf(testing::Gt(850), testing::Lt(1150))));
  // 1/2, 1/4, ...
  std::sort(skewed_counts.begin(), skewed_counts.end(), std::greater<>());
  EXPECT_NEAR(skewed_counts[0], 4016, 200);
  EXPECT_NEAR(skewed_counts[1], 2008, 150);
}

}  // namespace
}  // namespace penstock
