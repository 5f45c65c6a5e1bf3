// Proves that a budget's account adds up, and that it refuses what does not fit.
#include "penstock/plan/budget.h"

#include <gmock/gmock.h>

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

}  // namespace
}  // namespace penstock
