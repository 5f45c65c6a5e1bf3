// Proves that every sequence is in exactly one micro-batch, that no micro-batch is too large, and that there are as few
// as possible. They are balanced as Algorithm 2 promises: no two differ by more than the longest sequence.
#include "penstock/schedule/micro_batches.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

namespace penstock {
namespace {

TEST(MicroBatches, AnExample) {
  // 9 and 8 open the micro-batches, 5 joins 8, 4 joins 9. Both then have 13 tokens, and 3 joins the first.
  const int64_t tokens[] = {3, 9, 4, 8, 5};
  EXPECT_THAT(BalanceMicroBatches(tokens, 3),
              testing::ElementsAre(testing::ElementsAre(0, 1, 2), testing::ElementsAre(3, 4)));
  EXPECT_THAT(BalanceMicroBatches({}, 3), testing::IsEmpty());
}

RC_GTEST_PROP(MicroBatches, AreAPartition, (std::vector<uint16_t> lengths)) {
  const std::vector<int64_t> tokens(lengths.begin(), lengths.end());
  const int64_t max = *rc::gen::inRange<int64_t>(1, 20);
  const auto micro_batches = BalanceMicroBatches(tokens, max);
  const auto num_sequences = static_cast<int64_t>(tokens.size());
  RC_ASSERT(static_cast<int64_t>(micro_batches.size()) == (num_sequences + max - 1) / max);
  std::vector<size_t> all;
  for (const auto& micro_batch : micro_batches) {
    RC_ASSERT(!micro_batch.empty() && static_cast<int64_t>(micro_batch.size()) <= max);
    RC_ASSERT(std::is_sorted(micro_batch.begin(), micro_batch.end()));
    all.insert(all.end(), micro_batch.begin(), micro_batch.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<size_t> expected(tokens.size());
  std::iota(expected.begin(), expected.end(), size_t{0});
  RC_ASSERT(all == expected);
}

// Sequences of equal length are dealt out one by one.
RC_GTEST_PROP(MicroBatches, EqualSequencesMakeEqualMicroBatches, (uint8_t num_sequences, uint16_t length)) {
  const std::vector<int64_t> tokens(num_sequences, length + 1);
  const int64_t max = *rc::gen::inRange<int64_t>(1, 20);
  size_t min = 20, largest = 0;
  for (const auto& micro_batch : BalanceMicroBatches(tokens, max)) {
    min = std::min(min, micro_batch.size());
    largest = std::max(largest, micro_batch.size());
  }
  RC_ASSERT(tokens.empty() || largest - min <= 1u);
}

}  // namespace
}  // namespace penstock
