// Proves that counts of a generated routing give its popularity and repetition back, and that new counts outweigh many
// earlier ones.
#include "penstock/routing/routing_counts.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>

namespace penstock {
namespace {

// Counts 100 sequences of 100 tokens in two layers.
RoutingCounts CountsOf(const RoutingSpec& spec, int64_t num_experts, int64_t num_topk) {
  constexpr int64_t kSequences = 100, kTokens = 100;
  RoutingCounts counts(2, num_experts);
  for (int64_t layer = 0; layer < 2; ++layer) {
    GeneratedRouting steps(num_experts, num_topk, spec, {0, 1});
    std::vector<std::vector<int32_t>> of_steps;
    for (int64_t i = 0; i < kTokens; ++i, steps.NextStep()) {
      const std::span<const int32_t> choices = steps.Choices(layer, 0, kSequences);
      of_steps.emplace_back(choices.begin(), choices.end());
    }
    for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
      std::vector<int32_t> prompt;
      for (const std::vector<int32_t>& step : of_steps) {
        prompt.insert(prompt.end(), step.begin() + sequence * num_topk, step.begin() + (sequence + 1) * num_topk);
      }
      counts.Add(layer, prompt, std::vector<uint32_t>(kTokens, static_cast<uint32_t>(sequence)));
    }
  }
  return counts;
}

TEST(RoutingCounts, GiveBackWhatWasGenerated) {
  for (const double repeat : {0.0, 0.3, 0.6}) {
    const RoutingCounts counts = CountsOf({.skew = 0.8, .seed = 5, .repeat = repeat}, 32, 4);
    EXPECT_EQ(counts.num_choices(), 100 * 100 * 4);
    const RoutingSpec learned = counts.ToSpec(4);
    EXPECT_NEAR(learned.repeat, repeat, 0.06);
    EXPECT_EQ(learned.skew, 0);
    const RoutingCounts again = CountsOf(learned, 32, 4);
    for (size_t layer = 0; layer < 2; ++layer) {
      for (size_t i = 0; i < 32; ++i) {
        EXPECT_NEAR(static_cast<double>(again.chosen[layer][i]), static_cast<double>(counts.chosen[layer][i]), 600);
      }
    }
  }
}

TEST(RoutingCounts, OnlyTokensOfOneSequenceRepeatEachOther) {
  RoutingCounts counts(1, 4);
  const std::vector<int32_t> choices = {0, 1, 1, 2, 1, 0};
  counts.Add(0, choices, std::vector<uint32_t>{7, 7, 8});
  EXPECT_THAT(counts.chosen[0], testing::ElementsAre(2, 3, 1, 0));
  EXPECT_EQ(counts.num_following, 2);
  EXPECT_EQ(counts.num_repeated, 1);
}

TEST(RoutingCounts, NewWorkOutweighsManyEarlierCounts) {
  RoutingCounts counts(1, 2), earlier(1, 2);
  counts.chosen = {{50'000, 0}};
  earlier.chosen = {{0, 10'000'000}};
  counts.AddEarlier(earlier);
  EXPECT_EQ(counts.chosen[0][0], 50'000);
  EXPECT_GT(counts.chosen[0][1], 90'000);
  EXPECT_LE(counts.chosen[0][1], 100'000);
  // Few are kept as they are.
  RoutingCounts sum(1, 2), few(1, 2);
  few.chosen = {{3, 4}};
  sum.AddEarlier(few);
  EXPECT_THAT(sum.chosen[0], testing::ElementsAre(3, 4));
}

}  // namespace
}  // namespace penstock
