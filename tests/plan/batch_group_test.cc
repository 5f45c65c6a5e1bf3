// Proves that the number of batches is the least one that satisfies each of Klotski's inequalities. There is none where
// computing never takes as long as transfers.
#include "penstock/plan/batch_group.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(LeastBatches, SatisfiesEachInequality) {
  // A batch's attention takes 2.6 ms, an expert's transfer 21 ms (Klotski, section 1). With hot experts only, (5)
  // requires n (2.6 + 0.1) >= 2 * 21 + 0.01.
  LayerTimes times{.attention_s = 2.6e-3,
                   .gate_s = 0.1e-3,
                   .expert_s = 1e-3,
                   .gate_transfer_s = 0.01e-3,
                   .expert_transfer_s = 21e-3,
                   .num_hot = 2};
  EXPECT_EQ(MinBatches(times, 100), 16);
  // All eight experts are chosen: (7) requires n (2.7 + 8 * 1) >= 8 * 21 + 5, and (5) must still hold.
  times.num_cold = 6;
  times.attention_transfer_s = 5e-3;
  EXPECT_EQ(MinBatches(times, 100), 17);
  // With a long expert computation only (5) matters.
  times.expert_s = 20e-3;
  EXPECT_EQ(MinBatches(times, 100), 16);
  // (6): the first cold expert must arrive while the hot ones are computed.
  times.num_cold = 1;
  times.num_hot = 0;
  times.expert_s = 0.1e-3;
  times.attention_transfer_s = 0;
  EXPECT_EQ(MinBatches(times, 100), 8);
  // (4) alone.
  EXPECT_EQ(MinBatches({.attention_s = 1, .gate_transfer_s = 2.5}, 100), 3);
}

TEST(LeastBatches, AreNoneWhereTransfersTakeLonger) {
  EXPECT_EQ(MinBatches({.attention_s = 1e-6, .expert_transfer_s = 1, .num_hot = 2}, 1000), std::nullopt);
  EXPECT_EQ(MinBatches({}, 10), 1);
}

}  // namespace
}  // namespace penstock
