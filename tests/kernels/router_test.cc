// Proves that routing picks the right experts in the right order with the right weights, that ties and NaNs have a
// defined result, and that the bits agree across instruction sets.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/kernel_testing.h"
#include "penstock/testing/reference/reference.h"

namespace penstock::kernels {
namespace {

struct Routed {
  std::vector<float> probabilities;
  std::vector<int32_t> topk_idx;
  std::vector<float> topk_weights;
};

template <typename Kernel>
Routed Route(Kernel kernel, std::vector<float> logits, int64_t num_topk, const RouterRule& rule,
             const std::vector<float>& selection_bias = {}) {
  Routed routed = {.probabilities = std::move(logits),
                   .topk_idx = std::vector<int32_t>(num_topk, -1),
                   .topk_weights = std::vector<float>(num_topk, -1.0f)};
  kernel(RouterTopkArgs{.num_experts = static_cast<int64_t>(routed.probabilities.size()),
                        .num_topk = num_topk,
                        .scores = routed.probabilities.data(),
                        .rule = rule,
                        .selection_bias = selection_bias.empty() ? nullptr : selection_bias.data(),
                        .topk_idx = routed.topk_idx.data(),
                        .topk_weights = routed.topk_weights.data()});
  return routed;
}

class RouterTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
  const KernelTable& scalar_ = KernelsFor(Isa::kScalar);
};

TEST_P(RouterTest, MatchesTheOracle) {
  for (const int64_t num_experts : {1, 2, 8, 15, 16, 17, 60, 64, 128, 257}) {
    for (const int64_t num_topk : {1, 2, 4, 8}) {
      if (num_topk > num_experts) continue;
      for (const RouterRule& rule : {RouterRule{.renormalises = false}, RouterRule{.scale = 2.5f},
                                     RouterRule{.scoring = RouterRule::Scoring::kSigmoid, .renormalises = false},
                                     RouterRule{.scoring = RouterRule::Scoring::kSigmoid}}) {
        const std::vector<float> logits = RandomFloats(num_experts, static_cast<uint32_t>(num_experts + num_topk));
        const Routed actual = Route(table_.router_topk, logits, num_topk, rule);
        const Routed scalar = Route(scalar_.router_topk, logits, num_topk, rule);
        const Routed expected = Route(reference::RouterTopk, logits, num_topk, rule);
        EXPECT_EQ(actual.topk_idx, expected.topk_idx);
        EXPECT_EQ(actual.topk_idx, scalar.topk_idx);
        ExpectSameBits(actual.topk_weights, scalar.topk_weights);
        ExpectSameBits(actual.probabilities, scalar.probabilities);
        // exp has 2 ulp and an argument rounded once (|logit| < 64, so 32 eps); then the sum of positive terms and the
        // divisions.
        const double relative = (static_cast<double>(num_experts) / 16 + 48) * std::numeric_limits<float>::epsilon();
        for (int64_t j = 0; j < num_topk; ++j) {
          EXPECT_NEAR(actual.topk_weights[j], expected.topk_weights[j], relative * expected.topk_weights[j]);
        }
      }
    }
  }
}

TEST_P(RouterTest, LogitsChooseWhereScoresAreEqual) {
  const RouterRule rule = {.scoring = RouterRule::Scoring::kSigmoid, .renormalises = false, .chooses_by_logits = true};
  const std::vector<float> logits = {20, 30, 25, -1};  // the sigmoids of the first three are 1 in f32
  for (const auto& [bias, chosen] : {std::pair(std::vector<float>(), std::vector<int32_t>{1, 2}),
                                     std::pair(std::vector<float>{0, -12, 0, 0}, std::vector<int32_t>{2, 0})}) {
    for (const auto kernel : {table_.router_topk, &reference::RouterTopk}) {
      const Routed routed = Route(kernel, logits, 2, rule, bias);
      EXPECT_EQ(routed.topk_idx, chosen);
      EXPECT_EQ(routed.topk_weights, (std::vector<float>{1, 1}));
      EXPECT_LT(routed.probabilities[3], 0.3f);
    }
  }
}

TEST_P(RouterTest, WeightsFallAndRenormalisedOnesSumToOne) {
  const Routed routed = Route(table_.router_topk, RandomFloats(60, 5), 8, {});
  EXPECT_TRUE(std::is_sorted(routed.topk_weights.rbegin(), routed.topk_weights.rend()));
  double sum = 0, total = 0;
  for (const float weight : routed.topk_weights) sum += weight;
  for (const float probability : routed.probabilities) total += probability;
  EXPECT_NEAR(sum, 1, 8 * std::numeric_limits<float>::epsilon());
  EXPECT_NEAR(total, 1, 60 * std::numeric_limits<float>::epsilon());
}

TEST_P(RouterTest, BiasesAndGroupsChooseButDoNotWeigh) {
  for (const auto group_score : {RouterRule::GroupScore::kLargest, RouterRule::GroupScore::kTwoLargest}) {
    for (const auto& [num_experts, num_groups, num_topk_groups, num_topk] :
         {std::tuple<int64_t, int, int, int64_t>{8, 4, 2, 3}, {64, 8, 3, 6}, {60, 1, 1, 4}, {128, 64, 5, 8}}) {
      const RouterRule rule = {.scoring = RouterRule::Scoring::kSigmoid,
                               .group_score = group_score,
                               .num_groups = num_groups,
                               .num_topk_groups = num_topk_groups,
                               .scale = 1.5f};
      const std::vector<float> logits = RandomFloats(num_experts, 7), bias = RandomFloats(num_experts, 8);
      const Routed actual = Route(table_.router_topk, logits, num_topk, rule, bias);
      const Routed scalar = Route(scalar_.router_topk, logits, num_topk, rule, bias);
      const Routed expected = Route(reference::RouterTopk, logits, num_topk, rule, bias);
      EXPECT_EQ(actual.topk_idx, expected.topk_idx) << num_experts << " experts";
      ExpectSameBits(actual.topk_weights, scalar.topk_weights);
      std::set<int64_t> groups;
      for (int64_t j = 0; j < num_topk; ++j) {
        groups.insert(actual.topk_idx[j] / (num_experts / num_groups));
        EXPECT_NEAR(actual.topk_weights[j], expected.topk_weights[j], 1e-5);
      }
      EXPECT_LE(std::ssize(groups), num_topk_groups);
    }
  }
}

TEST_P(RouterTest, SparsemixerWeighsAmongLogitsThatAreNear) {
  for (const float jitter : {0.01f, 0.2f, 0.5f}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const RouterRule rule = {.scoring = RouterRule::Scoring::kSparsemixer, .jitter = jitter};
      const std::vector<float> logits = RandomFloats(16, seed);
      const Routed actual = Route(table_.router_topk, logits, 2, rule);
      const Routed scalar = Route(scalar_.router_topk, logits, 2, rule);
      const Routed expected = Route(reference::RouterTopk, logits, 2, rule);
      EXPECT_EQ(actual.topk_idx, expected.topk_idx);
      ExpectSameBits(actual.topk_weights, scalar.topk_weights);
      for (int64_t j = 0; j < 2; ++j) EXPECT_NEAR(actual.topk_weights[j], expected.topk_weights[j], 1e-6);
    }
  }
}

TEST_P(RouterTest, TiesGoToTheLowerIndex) {
  std::vector<float> logits(40, 1.0f);
  logits[33] = 2;
  logits[35] = 2;
  const Routed routed = Route(table_.router_topk, logits, 5, {.renormalises = false});
  EXPECT_EQ(routed.topk_idx, (std::vector<int32_t>{33, 35, 0, 1, 2}));
}

TEST_P(RouterTest, NanAndInfiniteLogitsStillGiveDistinctValidExperts) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const int64_t num_odd : {1, 3, 20}) {
      std::vector<float> logits = RandomFloats(20, 6);
      std::fill_n(logits.begin(), num_odd, odd);
      const Routed routed = Route(table_.router_topk, logits, 6, {});
      const std::set<int32_t> distinct(routed.topk_idx.begin(), routed.topk_idx.end());
      EXPECT_EQ(distinct.size(), 6u);
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RouterTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace penstock::kernels
