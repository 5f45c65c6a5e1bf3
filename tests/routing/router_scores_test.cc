// Proves that a row's scores below its 2k-th largest count as zeros, that rows count alike, and how choices alone
// count.
#include "penstock/routing/router_scores.h"

#include <gmock/gmock.h>

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::FloatEq;

TEST(MeanTopScores, ScoresBelowTheTopCountAsZeros) {
  MeanTopScores mean(4, 1);
  const float scores[] = {0.5f, 0.25f, 0.125f, 0.125f,  // the first two experts are the largest
                          0.1f, 0.2f,  0.3f,   0.4f};   // the last two experts are the largest
  const int32_t choices[] = {0, 3};
  EXPECT_THAT(mean.Of(scores, choices), ElementsAre(FloatEq(0.25f), FloatEq(0.125f), FloatEq(0.15f), FloatEq(0.2f)));
  // Nothing of the previous call is left.
  EXPECT_THAT(mean.Of(std::span(scores).first(4), std::span(choices).first(1)),
              ElementsAre(FloatEq(0.5f), FloatEq(0.25f), 0, 0));
}

TEST(MeanTopScores, AllCountWhereTheTopIsAll) {
  MeanTopScores mean(3, 2);
  const float scores[] = {0.7f, 0.2f, 0.1f};
  const int32_t choices[] = {0, 1};
  EXPECT_THAT(mean.Of(scores, choices), ElementsAre(FloatEq(0.7f), FloatEq(0.2f), FloatEq(0.1f)));
}

TEST(MeanTopScores, ChoicesAloneCountAlike) {
  MeanTopScores mean(4, 2);
  const int32_t choices[] = {0, 1, 1, 2};
  EXPECT_THAT(mean.Of({}, choices), ElementsAre(FloatEq(0.25f), FloatEq(0.5f), FloatEq(0.25f), 0));
}

}  // namespace
}  // namespace penstock
