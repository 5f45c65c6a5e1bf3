// Proves that the expert pipeline takes its rules from EPS-MoE: one group is the plain sum, the best number of groups
// is never slower than one, and follows N* = sqrt(C / k).
#include "penstock/schedule/ranks/expert_pipeline.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace penstock {
namespace {

constexpr int64_t kMaxGroups = 64;

PipelineTimes AnyTimes() {
  const auto milliseconds = [] { return 1e-3 * *rc::gen::inRange(0, 10'000); };
  return {.rows_s = milliseconds(),
          .compute_s = milliseconds(),
          .outputs_s = milliseconds(),
          .group_s = 1e-3 * *rc::gen::inRange(0, 100),
          .choices_per_row = static_cast<double>(*rc::gen::inRange(1, 9))};
}

// EPS-MoE's N* = sqrt(C / k): C is the shorter of exchange and computation, and k what a group costs.
double PaperExpertGroups(const PipelineTimes& times) {
  return std::sqrt(std::min(times.rows_s + times.outputs_s, times.compute_s) / times.group_s);
}

TEST(ExpertPipeline, OneGroupIsTheSumOfTheParts) {
  EXPECT_DOUBLE_EQ(PipelineSeconds({.rows_s = 1, .compute_s = 2, .outputs_s = 4, .group_s = 0.1}, 1), 7.3);
}

TEST(ExpertPipeline, GroupsHideTheExchangeUnderTheComputation) {
  const PipelineTimes times{.rows_s = 1, .compute_s = 4, .outputs_s = 1, .group_s = 0};
  EXPECT_DOUBLE_EQ(PipelineSeconds(times, 4), 0.25 + 4 + 0.25);
  EXPECT_EQ(BestExpertGroups(times, 8), 8);
}

TEST(ExpertPipeline, ExpensiveGroupsAreNotUsed) {
  EXPECT_EQ(BestExpertGroups({.rows_s = 1, .compute_s = 1, .outputs_s = 1, .group_s = 1}, 8), 1);
}

RC_GTEST_PROP(ExpertPipeline, TheBestNumberIsNeverSlowerThanOneGroupOrFasterThanItsLongestPart, ()) {
  const PipelineTimes times = AnyTimes();
  const double best_s = PipelineSeconds(times, BestExpertGroups(times, kMaxGroups));
  RC_ASSERT(best_s <= PipelineSeconds(times, 1));
  RC_ASSERT(best_s >= std::max(times.compute_s, times.rows_s + times.outputs_s) * (1 - 1e-9));
}

// The estimate leaves out that rows and outputs share a link, so it is near the best, not equal.
RC_GTEST_PROP(ExpertPipeline, ThePapersNumberIsNearlyAsFastAsTheBest, ()) {
  PipelineTimes times = AnyTimes();
  times.group_s = std::max(times.group_s, 1e-4);
  const auto of_paper = std::clamp<int64_t>(std::llround(PaperExpertGroups(times)), 1, kMaxGroups);
  RC_ASSERT(PipelineSeconds(times, of_paper) <= 1.5 * PipelineSeconds(times, BestExpertGroups(times, kMaxGroups)));
}

}  // namespace
}  // namespace penstock
