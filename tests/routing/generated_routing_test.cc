// Proves that generated routings are legal (different experts for each row) and do not depend on the order of calls.
// They have the requested skew, repetition and gate accuracy.
#include "penstock/routing/generated_routing.h"

#include <set>
#include <vector>

#include <gmock/gmock.h>

namespace penstock {
namespace {

std::vector<int32_t> Copy(std::span<const int32_t> choices) { return {choices.begin(), choices.end()}; }

TEST(GeneratedRouting, RowsChooseDifferentExperts) {
  for (const double skew : {0.0, 0.8, 9.0}) {
    GeneratedRouting routing(8, 3, {.skew = skew, .seed = 1});
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
  const RoutingSpec spec = {.skew = 0.5, .seed = 7};
  GeneratedRouting routing(16, 2, spec), same(16, 2, spec), other(16, 2, {.skew = 0.5, .seed = 8});
  const std::vector<int32_t> all = Copy(routing.Choices(1, 0, 50));
  EXPECT_EQ(Copy(same.Choices(3, 4, 9)), Copy(routing.Choices(3, 4, 9)));
  EXPECT_EQ(Copy(same.Choices(1, 20, 5)), std::vector<int32_t>(all.begin() + 40, all.begin() + 50));
  EXPECT_NE(Copy(other.Choices(1, 0, 50)), all);
  EXPECT_NE(Copy(routing.Choices(2, 0, 50)), all);
  routing.NextStep();
  EXPECT_NE(Copy(routing.Choices(1, 0, 50)), all);
}

TEST(GeneratedRouting, SharedDrawsAreThoseOfALoneRouting) {
  const RoutingSpec typical = TypicalRouting();
  RoutingSpec of_other_rank = typical;
  of_other_rank.first_row = 1000;
  DrawnChoices drawn;
  for (const RoutingSpec& spec : {typical, of_other_rank}) {
    // The second routing asks for rows that the first one has drawn, for more rows of a step, and for rows behind a
    // gap.
    GeneratedRouting alone(16, 3, spec), first(16, 3, spec, {}, &drawn), second(16, 3, spec, {}, &drawn);
    for (int step = 0; step < 3; ++step) {
      for (const int64_t layer_idx : {0, 1}) {
        EXPECT_EQ(Copy(first.Choices(layer_idx, 0, 20)), Copy(alone.Choices(layer_idx, 0, 20)));
        EXPECT_EQ(Copy(second.Choices(layer_idx, 5, 30)), Copy(alone.Choices(layer_idx, 5, 30)));
        EXPECT_EQ(Copy(second.Choices(layer_idx, 50, 2)), Copy(alone.Choices(layer_idx, 50, 2)));
        EXPECT_EQ(Copy(first.Choices(layer_idx, 0, 60)), Copy(alone.Choices(layer_idx, 0, 60)));
      }
      for (GeneratedRouting* routing : {&alone, &first, &second}) routing->NextStep();
    }
  }
}

TEST(GeneratedRouting, DrawsWithoutRoomAreNotKept) {
  DrawnChoices full;
  while (full.Reserve(1 << 20)) {
  }
  const RoutingSpec spec = TypicalRouting();
  GeneratedRouting alone(16, 3, spec), shared(16, 3, spec, {}, &full);
  EXPECT_EQ(Copy(shared.Choices(1, 4, 20)), Copy(alone.Choices(1, 4, 20)));
  EXPECT_TRUE(full.RowsOf(0, 0, 1).experts.empty());
}

TEST(GeneratedRouting, RowsThatChooseAllExpertsNeedNoDraws) {
  // A draw would hardly ever find the last expert.
  GeneratedRouting routing(7, 7, {.skew = 40, .repeat = 0.1, .follow = 0.4});
  const std::vector<int32_t> choices = Copy(routing.Choices(3, 0, 100'000));
  for (size_t row = 0; row < 100'000; ++row) {
    const auto begin = choices.begin() + static_cast<int64_t>(row) * 7;
    ASSERT_THAT(std::vector<int32_t>(begin, begin + 7), testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6));
  }
}

TEST(GeneratedRouting, FollowsTheCountsOfARecordedRun) {
  GeneratedRouting routing(4, 1, {.seed = 3, .counts = {{0, 3000, 6000, 1000}, {5000, 5000, 0, 0}}}, {1, 4});
  for (const auto& [layer_idx, expected] :
       {std::pair(1, std::vector<int>{0, 3000, 6000, 1000}), std::pair(4, std::vector<int>{5000, 5000, 0, 0})}) {
    std::vector<int> counts(4);
    for (const int32_t expert : Copy(routing.Choices(layer_idx, 0, 10'000))) ++counts[expert];
    for (size_t expert = 0; expert < counts.size(); ++expert) EXPECT_NEAR(counts[expert], expected[expert], 200);
  }
  // Experts that were never chosen are chosen where nothing else is left.
  GeneratedRouting all(3, 3, {.counts = {{1'000'000, 0, 0}}}, {0});
  EXPECT_THAT(Copy(all.Choices(0, 0, 1)), testing::UnorderedElementsAre(0, 1, 2));
}

TEST(GeneratedRouting, FollowsPlacesInTheOrderOfTheCounts) {
  const std::vector<std::vector<int64_t>> counts = {{10, 40, 30, 20}, {300, 100, 200, 400}};
  GeneratedRouting routing(4, 1, {.seed = 3, .follow = 0.9, .counts = counts}, {0, 1});
  const std::vector<int32_t> first = Copy(routing.Choices(0, 0, 10'000)), second = Copy(routing.Choices(1, 0, 10'000));
  const std::vector<int32_t> same_place = {1, 3, 0, 2};  // of the second layer, by the expert of the first
  int num_same = 0;
  std::vector<int> chosen(4);
  for (size_t row = 0; row < first.size(); ++row) {
    num_same += second[row] == same_place[first[row]] ? 1 : 0;
    ++chosen[second[row]];
  }
  // The rest has the same place by chance in 30 % of the cases: 0.4^2 + 0.3^2 + 0.2^2 + 0.1^2.
  EXPECT_NEAR(num_same, 9300, 200);
  for (size_t expert = 0; expert < 4; ++expert) EXPECT_NEAR(chosen[expert], 10 * counts[1][expert], 250);
}

TEST(GeneratedRouting, IsAsSkewedAsAsked) {
  GeneratedRouting even(8, 1, {.seed = 3}), skewed(8, 1, {.skew = 1, .seed = 3});
  std::vector<int> even_counts(8), skewed_counts(8);
  for (const int32_t expert : Copy(even.Choices(0, 0, 8000))) ++even_counts[expert];
  for (const int32_t expert : Copy(skewed.Choices(0, 0, 8000))) ++skewed_counts[expert];
  EXPECT_THAT(even_counts, testing::Each(testing::AllOf(testing::Gt(850), testing::Lt(1150))));
  // Expected shares: 1 / (r * (1 + 1/2 + ... + 1/8)).
  std::sort(skewed_counts.begin(), skewed_counts.end(), std::greater<>());
  EXPECT_NEAR(skewed_counts[0], 2943, 200);
  EXPECT_NEAR(skewed_counts[1], 1472, 150);
  EXPECT_NEAR(skewed_counts[7], 368, 80);
}

TEST(GeneratedRouting, RepeatsChoicesAsOftenAsAsked) {
  for (const double skew : {0.0, 2.0}) {
    GeneratedRouting routing(64, 6, {.skew = skew, .seed = 2, .repeat = 0.6});
    std::vector<int32_t> last = Copy(routing.Choices(1, 0, 50));
    int64_t num_kept = 0, num_chosen = 0;
    for (int step = 0; step < 40; ++step) {
      routing.NextStep();
      const std::vector<int32_t> now = Copy(routing.Choices(1, 0, 50));
      EXPECT_EQ(Copy(routing.Choices(1, 7, 3)), std::vector<int32_t>(now.begin() + 42, now.begin() + 60));
      for (size_t i = 0; i < now.size(); ++i) {
        num_kept += now[i] == last[i] ? 1 : 0;
        ++num_chosen;
      }
      for (size_t row = 0; row < 50; ++row) {
        const auto begin = now.begin() + static_cast<int64_t>(row) * 6;
        EXPECT_EQ(std::set<int32_t>(begin, begin + 6).size(), 6u);
      }
      last = now;
    }
    if (skew == 0) {
      EXPECT_NEAR(static_cast<double>(num_kept) / static_cast<double>(num_chosen), 0.6, 0.03);
    }
    EXPECT_GT(num_kept, num_chosen / 2);
  }
}

// A choice tells which choice of the next layer is likely, in a rule of this pair of layers. Popularity stays as asked.
TEST(GeneratedRouting, FollowsTheLayerBeforeAsOftenAsAsked) {
  constexpr int64_t kRows = 20'000, kExperts = 16;
  GeneratedRouting routing(kExperts, 1, {.skew = 0.8, .seed = 4, .follow = 0.5}, {0, 2});
  const std::vector<int32_t> before = Copy(routing.Choices(0, 0, kRows)), chosen = Copy(routing.Choices(2, 0, kRows));
  std::vector<std::vector<int>> counts(kExperts, std::vector<int>(kExperts));
  std::vector<int> first(kExperts), second(kExperts);
  for (size_t row = 0; row < before.size(); ++row) {
    ++counts[before[row]][chosen[row]];
    ++first[before[row]];
    ++second[chosen[row]];
  }
  std::set<int64_t> partners;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    const auto partner = std::max_element(counts[expert].begin(), counts[expert].end()) - counts[expert].begin();
    partners.insert(partner);
    // One half follows; of the other half, some choose the partner by chance.
    const double share = 0.5 + 0.5 * second[partner] / static_cast<double>(kRows);
    EXPECT_NEAR(static_cast<double>(counts[expert][partner]) / first[expert], share, 0.1) << expert;
  }
  EXPECT_EQ(std::ssize(partners), kExperts);
  std::sort(first.begin(), first.end(), std::greater<>());
  std::sort(second.begin(), second.end(), std::greater<>());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first[i], second[i], 0.02 * kRows);
}

TEST(GeneratedRouting, GatesNameWhatIsChosenAsOftenAsAsked) {
  GeneratedRouting routing(64, 4, {.seed = 5, .gate_accuracy = 0.8}, {0, 1, 3});
  for (const int64_t ahead : {1, 2}) {
    const std::vector<int32_t> named = Copy(routing.ChoicesAhead(0, ahead, 0, 2000));
    const std::vector<int32_t> chosen = Copy(routing.Choices(ahead == 1 ? 1 : 3, 0, 2000));
    ASSERT_EQ(named.size(), chosen.size());
    int num_right = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const auto row = named.begin() + static_cast<int64_t>(i / 4 * 4);
      num_right += std::find(row, row + 4, chosen[i]) != row + 4 ? 1 : 0;
    }
    EXPECT_NEAR(num_right / 8000.0, ahead == 1 ? 0.8 : 0.64, 0.03);
  }
  EXPECT_TRUE(routing.ChoicesAhead(0, 3, 0, 1).empty());
  EXPECT_TRUE(routing.ChoicesAhead(3, 1, 0, 1).empty());
  EXPECT_TRUE(GeneratedRouting(64, 4, {}, {0, 1}).ChoicesAhead(0, 1, 0, 1).empty());
}

}  // namespace
}  // namespace penstock
