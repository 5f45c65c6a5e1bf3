// Proves that every expert of a placement lies somewhere, that ranks hold equally many, that the placement depends on
// nothing but the counts, and that it spreads their load. Also proves which holder computes a choice.
#include "penstock/parallel/expert_placement.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gmock/gmock.h>

namespace penstock {
namespace {

using testing::ElementsAre;

ModelConfig ConfigOfExperts(int64_t num_experts) {
  ModelConfig config;
  config.num_layers = 4;
  config.num_experts = num_experts;
  config.layer_has_experts = {false, true, true, true};
  return config;
}

// Returns counts of which those of the r-th most popular expert are about 1 / r^s, in random order.
ChoiceCounts ZipfCounts(const ModelConfig& config, std::mt19937_64& random) {
  ChoiceCounts counts;
  for (int64_t layer = 0; layer < config.num_moe_layers(); ++layer) {
    const double s = static_cast<double>(random() % 5) / 2;
    std::vector<int64_t>& of_layer = counts.emplace_back();
    for (int64_t r = 1; r <= config.num_experts; ++r) {
      of_layer.push_back(static_cast<int64_t>(1e5 / std::pow(static_cast<double>(r), s)));
    }
    std::shuffle(of_layer.begin(), of_layer.end(), random);
  }
  return counts;
}

// Returns the greatest load of a rank, in choices, if the holders of an expert share its load.
double MaxLoad(const ExpertPlacement& placement, int64_t layer_idx, const std::vector<int64_t>& counts) {
  double max = 0;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    double load = 0;
    for (const int32_t expert_idx : placement.ExpertsOf(layer_idx, rank)) {
      load += static_cast<double>(counts[expert_idx]) /
              static_cast<double>(placement.HoldersOf(layer_idx, expert_idx).size());
    }
    max = std::max(max, load);
  }
  return max;
}

void ExpectIsWhole(const ExpertPlacement& placement, const ModelConfig& config, int64_t num_replicas) {
  for (const int64_t layer_idx : config.moe_layers()) {
    int64_t num_held = 0;
    for (int64_t expert_idx = 0; expert_idx < config.num_experts; ++expert_idx) {
      const auto holders = placement.HoldersOf(layer_idx, expert_idx);
      ASSERT_FALSE(holders.empty());
      // Ascending, so none is there twice.
      EXPECT_TRUE(std::ranges::is_sorted(holders, std::ranges::less_equal()));
      for (const int32_t rank : holders) {
        EXPECT_TRUE(std::ranges::binary_search(placement.ExpertsOf(layer_idx, rank), expert_idx));
      }
      num_held += std::ssize(holders);
    }
    for (int rank = 0; rank < placement.num_ranks(); ++rank) {
      const auto num_experts = std::ssize(placement.ExpertsOf(layer_idx, rank));
      EXPECT_EQ(num_experts - num_replicas, config.num_experts * (rank + 1) / placement.num_ranks() -
                                                config.num_experts * rank / placement.num_ranks());
      num_held -= num_experts;
    }
    EXPECT_EQ(num_held, 0);
  }
  EXPECT_TRUE(placement.ExpertsOf(0, 0).empty());  // a layer without experts
}

TEST(ExpertPlacement, RanksHoldEquallyManyExpertsWithTheLeastLoad) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const ModelConfig config = ConfigOfExperts(1 + static_cast<int64_t>(random() % 40));
    const int num_ranks = 1 + static_cast<int>(random() % std::min<uint64_t>(8, config.num_experts));
    const int64_t max_replicas = ExpertPlacement::MaxReplicas(config, num_ranks);
    const auto num_replicas = static_cast<int64_t>(random() % static_cast<uint64_t>(max_replicas + 1));
    const ChoiceCounts counts = ZipfCounts(config, random);
    const auto contiguous = ExpertPlacement::Contiguous(config, num_ranks);
    const auto balanced = ExpertPlacement::Balanced(config, num_ranks, counts, 0);
    const auto replicated = ExpertPlacement::Balanced(config, num_ranks, counts, num_replicas);
    ExpectIsWhole(contiguous, config, 0);
    ExpectIsWhole(balanced, config, 0);
    ExpectIsWhole(replicated, config, num_replicas);
    for (const int64_t layer_idx : config.moe_layers()) {
      EXPECT_LE(MaxLoad(balanced, layer_idx, counts[layer_idx - 1]),
                MaxLoad(contiguous, layer_idx, counts[layer_idx - 1]));
    }
    EXPECT_EQ(replicated.Digest(), ExpertPlacement::Balanced(config, num_ranks, counts, num_replicas).Digest());
    EXPECT_EQ(replicated.Digest() == balanced.Digest(), num_replicas == 0);
  }
}

TEST(ExpertPlacement, PopularExpertsAreSpreadAndReplicated) {
  const ModelConfig config = ConfigOfExperts(6);
  const ChoiceCounts counts(3, {100, 90, 10, 0, 20, 30});
  const auto balanced = ExpertPlacement::Balanced(config, 2, counts, 0);
  EXPECT_THAT(balanced.ExpertsOf(1, 0), ElementsAre(0, 2, 4));
  EXPECT_THAT(balanced.ExpertsOf(1, 1), ElementsAre(1, 3, 5));
  const auto replicated = ExpertPlacement::Balanced(config, 2, counts, 1);
  EXPECT_THAT(replicated.HoldersOf(1, 0), ElementsAre(0, 1));
  EXPECT_THAT(replicated.HoldersOf(1, 1), ElementsAre(0, 1));
  // Nothing is known, so neighbours stay together.
  const ChoiceCounts nothing(3, std::vector<int64_t>(6));
  EXPECT_EQ(ExpertPlacement::Balanced(config, 2, nothing, 0).Digest(), ExpertPlacement::Contiguous(config, 2).Digest());
}

TEST(ExpertPlacement, FewerLayersKeepTheFirstOnes) {
  const ModelConfig config = ConfigOfExperts(6);
  const auto placement =
      ExpertPlacement::Balanced(config, 2, {{6, 5, 4, 3, 2, 1}, {1, 1, 1, 9, 9, 9}, {0, 0, 0, 0, 0, 1}}, 1);
  ModelConfig fewer = config;
  fewer.num_layers = 2;
  fewer.layer_has_experts = {true, true};
  const auto of_fewer = placement.OfFewerLayers(fewer);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(std::ranges::equal(of_fewer.ExpertsOf(0, rank), placement.ExpertsOf(1, rank)));
    EXPECT_TRUE(std::ranges::equal(of_fewer.ExpertsOf(1, rank), placement.ExpertsOf(2, rank)));
  }
}

TEST(ExpertPlacement, AChoiceIsComputedAtHomeOrDealtEvenly) {
  const ModelConfig config = ConfigOfExperts(6);
  // Popular experts lie on two ranks each.
  const auto placement = ExpertPlacement::Balanced(config, 3, ChoiceCounts(3, {100, 1, 90, 1, 80, 1}), 1);
  ASSERT_EQ(placement.HoldersOf(1, 0).size(), 2);
  std::mt19937_64 random(1);
  std::vector<std::vector<int32_t>> choices(3);
  for (std::vector<int32_t>& of_rank : choices) {
    for (int i = 0; i < 200; ++i) of_rank.push_back(static_cast<int32_t>(random() % 6));
  }
  const auto ranks = placement.RanksOf(1, choices, 1);
  std::vector<int64_t> loads(3);
  for (int32_t home = 0; home < 3; ++home) {
    ASSERT_EQ(ranks[home].size(), choices[home].size());
    for (size_t i = 0; i < choices[home].size(); ++i) {
      const auto holders = placement.HoldersOf(1, choices[home][i]);
      EXPECT_TRUE(std::ranges::binary_search(holders, ranks[home][i]));
      EXPECT_TRUE(ranks[home][i] == home || !std::ranges::binary_search(holders, home));
      ++loads[ranks[home][i]];
    }
  }
  EXPECT_LE(std::ranges::max(loads) - std::ranges::min(loads), 20);
  EXPECT_EQ(placement.RanksOf(1, choices, 1), ranks);
}

TEST(ExpertPlacement, FewRowsOfAnExpertAreComputedByOneHolder) {
  const ModelConfig config = ConfigOfExperts(6);
  const auto placement = ExpertPlacement::Balanced(config, 2, ChoiceCounts(3, {6, 5, 4, 3, 2, 1}), 3);  // all on both
  const std::vector<std::vector<int32_t>> choices = {{0, 1, 0, 2, 0, 3}, {0, 1, 0, 2, 0, 3}};
  const auto ranks = placement.RanksOf(1, choices, /*rows_of_weights=*/4);
  std::vector<int64_t> num_experts(2);
  for (const int32_t expert_idx : {0, 1, 2, 3}) {
    std::vector<int32_t> of_expert;
    for (size_t home = 0; home < 2; ++home) {
      for (size_t i = 0; i < choices[home].size(); ++i) {
        if (choices[home][i] == expert_idx) of_expert.push_back(ranks[home][i]);
      }
    }
    EXPECT_THAT(of_expert, testing::Each(of_expert[0]));
    ++num_experts[of_expert[0]];
  }
  EXPECT_THAT(num_experts, ElementsAre(2, 2));
  // Six rows of expert 0 are worth two reads now, one on each rank.
  const auto at_home = placement.RanksOf(1, choices, /*rows_of_weights=*/3);
  EXPECT_EQ(at_home[0][0], 0);
  EXPECT_EQ(at_home[1][0], 1);
}

// The last two of eight experts return their input: they lie on no rank, whatever their counts, and stay at home.
TEST(ExpertPlacement, IdentityExpertsStayWithTheirRows) {
  ModelConfig config = ConfigOfExperts(8);
  config.num_identity_experts = 2;
  EXPECT_EQ(ExpertPlacement::MaxReplicas(config, 2), 3);
  const ChoiceCounts counts(3, {1, 2, 3, 4, 5, 6, 1000, 1000});
  for (const int64_t num_replicas : {0, 2}) {
    const auto placement = ExpertPlacement::Balanced(config, 2, counts, num_replicas);
    for (const int rank : {0, 1}) {
      EXPECT_EQ(placement.ExpertsOf(1, rank).size(), static_cast<size_t>(3 + num_replicas));
      EXPECT_LT(placement.ExpertsOf(1, rank).back(), 6);
    }
    const auto ranks = placement.RanksOf(1, std::vector<std::vector<int32_t>>{{6, 0, 7, 5}, {7, 6, 0, 6}}, 1);
    EXPECT_EQ(ranks[0][0], 0);
    EXPECT_EQ(ranks[0][2], 0);
    EXPECT_EQ(ranks[1][0], 1);
    EXPECT_EQ(ranks[1][1], 1);
    EXPECT_EQ(ranks[1][3], 1);
  }
  EXPECT_THAT(ExpertPlacement::Contiguous(config, 3).ExpertsOf(2, 2), ElementsAre(4, 5));
}

}  // namespace
}  // namespace penstock
