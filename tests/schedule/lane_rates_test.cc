// Proves that a link's bandwidth follows its transfers: soon away from a wrong guess, and later away from old rates.
#include "penstock/schedule/lane_rates.h"

#include <gmock/gmock.h>

namespace penstock {
namespace {

TEST(LearnedBandwidth, IsTheGuessUntilSomethingMoved) {
  LearnedBandwidth bandwidth(2e9);
  EXPECT_DOUBLE_EQ(bandwidth.bytes_per_s(), 2e9);
  bandwidth.Learn(0, 1);
  bandwidth.Learn(100, 0);
  EXPECT_DOUBLE_EQ(bandwidth.bytes_per_s(), 2e9);
}

TEST(LearnedBandwidth, ForgetsAWrongGuessAndOldRates) {
  LearnedBandwidth bandwidth(50e9);
  for (int i = 0; i < 10; ++i) bandwidth.Learn(20'000'000, 0.02);  // 1 GB/s for 0.2 s
  EXPECT_GT(bandwidth.bytes_per_s(), 1e9);
  EXPECT_LT(bandwidth.bytes_per_s(), 2.5e9);
  for (int i = 0; i < 200; ++i) bandwidth.Learn(20'000'000, 0.02);
  EXPECT_NEAR(bandwidth.bytes_per_s(), 1e9, 1e8);
  for (int i = 0; i < 200; ++i) bandwidth.Learn(60'000'000, 0.02);
  EXPECT_NEAR(bandwidth.bytes_per_s(), 3e9, 5e8);
}

}  // namespace
}  // namespace penstock
