// Proves that a budget's account adds up, and that it refuses what does not fit.
#include "penstock/plan/budget.h"

#include <gmock/gmock.h>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

TEST(TierBudget, AccountAddsUpAndRefuses) {
  TierBudget budget(1000);
  ASSERT_TRUE(budget.Reserve(MemoryTag::kDense, 600).ok());
  ASSERT_TRUE(budget.Reserve(MemoryTag::kDense, 100).ok());
  EXPECT_EQ(budget.free_bytes(), 300u);
  const absl::Status refused = budget.Reserve(MemoryTag::kKvCache, 301);
  EXPECT_EQ(FaultOf(refused), Fault::kResources);
  EXPECT_THAT(Message(refused), testing::HasSubstr("dense weights 700 B"));
  EXPECT_EQ(budget.reserved_bytes(MemoryTag::kKvCache), 0u);
  ASSERT_TRUE(budget.Reserve(MemoryTag::kExperts, 300).ok());
  EXPECT_EQ(budget.free_bytes(), 0u);
}

TEST(TierBudget, ASizeToTypeIsEnough) {
  EXPECT_EQ(SizeToType(17510515), "16.7MiB");
  EXPECT_EQ(SizeToType(1), "1B");
  EXPECT_EQ(SizeToType(kMiB), "1.00MiB");
  EXPECT_EQ(SizeToType(kMiB - 1), "1024KiB");
  EXPECT_EQ(SizeToType(5 * kGiB + 1), "5.01GiB");
  EXPECT_EQ(SizeToType(3ull << 40), "3.00TiB");
  for (uint64_t bytes = 1; bytes < 1ull << 50; bytes += bytes / 97 + 1) {
    const absl::StatusOr<uint64_t> typed = ParseBytes(SizeToType(bytes));
    ASSERT_TRUE(typed.ok()) << bytes;
    EXPECT_GE(*typed, bytes);
    EXPECT_LE(static_cast<double>(*typed), 1.011 * static_cast<double>(bytes));
  }
}

TEST(TierBudget, ARefusalOfAPartNamesTheWhole) {
  const absl::Status part = TooSmall({.least_bytes = 3 * kMiB, .account = "1 MiB is too small"});
  EXPECT_EQ(FaultOf(part), Fault::kResources);
  EXPECT_THAT(Message(part), testing::StartsWith("1 MiB is too small; the least budget is 3145728 bytes (give "
                                                 "--memory 3.00MiB or more"));
  EXPECT_THAT(Message(TooSmallForParts(part, 2)),
              testing::StartsWith("1 MiB is too small; with 2 models, the least budget is 6291456 bytes (give --memory "
                                  "6.00MiB or more"));
  const absl::Status device =
      TooSmall({.tier = BudgetShortage::Tier::kDevice, .least_bytes = kGiB, .account = "too small"});
  EXPECT_THAT(Message(TooSmallForParts(device, 2)),
              testing::StartsWith("too small; with 2 models, the least device memory is 2147483648 bytes (give "
                                  "--gpu-memory 2.00GiB or more"));
  EXPECT_EQ(Message(TooSmallForParts(ResourceError("other"), 2)), "other");
}

TEST(TierBudget, ARefusalNamesTheBatchSizeIfASmallerOneHelps) {
  const absl::Status without = TooSmall({.least_bytes = kMiB, .account = "too small"});
  const absl::Status with = TooSmall({.has_batch_size = true, .least_bytes = kMiB, .account = "too small"});
  for (const auto& status : {without, TooSmallForParts(without, 2)}) {
    EXPECT_THAT(Message(status), testing::EndsWith(" or more, or a smaller --context-length)"));
  }
  for (const auto& status : {with, TooSmallForParts(with, 2)}) {
    EXPECT_THAT(Message(status), testing::EndsWith(" or more, or a smaller --context-length or --batch-size)"));
  }
}

}  // namespace
}  // namespace penstock
