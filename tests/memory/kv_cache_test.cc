// Proves that KV pages are given out once, come back and never overlap. The budget's account adds up, and the budget
// refuses what does not fit.
#include "penstock/memory/kv_cache.h"

#include <set>

#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/memory/budget.h"

namespace penstock {
namespace {

ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 20;
  return config;
}

TEST(KvCache, PagesAreHandedOutOnce) {
  const ModelConfig config = SmallConfig();
  KvCache cache = KvCache::Create(HostMemory(), config, KvFormat::kBF16, 10).value();
  // K of 20 dimensions and V of 32, 16 tokens, 2 bytes.
  EXPECT_EQ(KvCache::PageBytes(config, KvFormat::kBF16), 3u * 2 * 16 * (20 + 32) * 2);
  std::set<std::byte*> seen;
  const auto first = cache.Reserve(33);  // three pages
  ASSERT_EQ(first.size(), 3u);
  const auto second = cache.Reserve(16 * 7);
  ASSERT_EQ(second.size(), 7u);
  seen.insert(first.begin(), first.end());
  seen.insert(second.begin(), second.end());
  EXPECT_EQ(seen.size(), 10u);
  std::byte* last = nullptr;
  for (std::byte* page : seen) {
    if (last != nullptr) {
      EXPECT_GE(page - last, static_cast<int64_t>(KvCache::PageBytes(config, KvFormat::kBF16)));
    }
    last = page;
  }
  EXPECT_TRUE(cache.Reserve(1).empty());
  cache.Free(first);
  EXPECT_EQ(cache.num_free_pages(), 3);
  EXPECT_TRUE(cache.Reserve(49).empty());
  EXPECT_EQ(cache.Reserve(48).size(), 3u);
}

TEST(KvCache, BlocksLieBehindEachOther) {
  const ModelConfig config = SmallConfig();
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
    const KvCache cache = KvCache::Create(HostMemory(), config, format, 1).value();
    const int64_t block = KvBlock{format, config.head_dim}.bytes();
    EXPECT_EQ(block % 64, 0);
    EXPECT_EQ(cache.layer(0).head_offset_bytes(0), 0);
    EXPECT_EQ(cache.layer(0).head_offset_bytes(1), block);
    EXPECT_EQ(cache.layer(1).head_offset_bytes(0), 2 * block);
    EXPECT_EQ(cache.layer(2).head_offset_bytes(1) + block, static_cast<int64_t>(KvCache::PageBytes(config, format)));
  }
}

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
