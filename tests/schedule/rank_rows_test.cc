// Proves that ranks which share the heads learn each other's rows and pages, and repeat copies of pages.
#include "penstock/schedule/ranks/rank_rows.h"

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>

namespace penstock {
namespace {

ModelConfig TwoHeads() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  return config;
}

TEST(RankRows, AllRanksLearnTheRowsPagesAndCopiesOfAll) {
  constexpr int kNumRanks = 3;
  constexpr int64_t kNumPages = 6;
  const auto communicators = MakeLocalCommunicators(kNumRanks);
  std::vector<KvCache> caches;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const RankSplit split{.rank = rank, .num_ranks = kNumRanks, .by_heads = true};
    caches.push_back(KvCache::Create(HostMemory(), TwoHeads(), KvFormat::kF32, kNumPages, split).value());
  }
  const uint64_t page_bytes = KvCache::PageBytes(TwoHeads(), KvFormat::kF32);
  const auto bytes_of = [&](int holder, int owner, int32_t page) {
    return std::span(caches[holder].AddressOf(owner, KvPageId{page}), page_bytes);
  };
  // Rank r has r rows in the first micro-batch, all of one sequence, and one row in the second.
  std::vector<std::vector<std::byte*>> lists(kNumRanks);
  std::vector<RankRows> rows(kNumRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    for (int holder = 0; holder < kNumRanks; ++holder) {
      std::ranges::fill(bytes_of(holder, rank, 1), static_cast<std::byte>(16 * holder + rank + 1));
    }
    lists[rank] = {caches[rank].address(KvPageId{5}), caches[rank].address(KvPageId{rank})};
  }
  for (int rank = 0; rank < kNumRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_TRUE(caches[rank].Copy(KvPageId{1}, KvPageId{4}).ok());
      RowBatch batch;
      for (int64_t pos = 0; pos < rank; ++pos) batch.AddRow(7, pos, lists[rank], 40, {}, 12);
      batch.AddRow(7, 20, lists[rank], 41, {}, 13);
      auto gathered = GatherRankRows(*communicators[rank], batch, std::vector<RowRange>{{0, rank}, {rank, rank + 1}},
                                     &caches[rank]);
      ASSERT_TRUE(gathered.ok()) << gathered.status();
      rows[rank] = *std::move(gathered);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int holder = 0; holder < kNumRanks; ++holder) {
    const RankRows& all = rows[holder];
    ASSERT_EQ(all.micro_batches.size(), 2u);
    EXPECT_EQ(all.micro_batches[0].all, (RowRange{0, 3}));
    EXPECT_EQ(all.micro_batches[1].all, (RowRange{3, 6}));
    EXPECT_THAT(all.micro_batches[0].of_rank, testing::ElementsAre(RowRange{0, 0}, RowRange{0, 1}, RowRange{1, 3}));
    EXPECT_THAT(all.batch.positions, testing::ElementsAre(0, 0, 1, 20, 20, 20));
    EXPECT_THAT(all.batch.sequence_lengths, testing::ElementsAre(12, 12, 12, 13, 13, 13));
    EXPECT_NE(all.batch.sequence_ids[3], all.batch.sequence_ids[4]);
    EXPECT_EQ(all.batch.sequence_ids[1], all.batch.sequence_ids[2]);
    for (int owner = 0; owner < kNumRanks; ++owner) {
      const auto& pages = all.batch.kv_pages[3 + owner];
      EXPECT_THAT(pages, testing::ElementsAre(caches[holder].AddressOf(owner, KvPageId{5}),
                                              caches[holder].AddressOf(owner, KvPageId{owner})));
      EXPECT_THAT(bytes_of(holder, owner, 4), testing::Each(static_cast<std::byte>(16 * holder + owner + 1)));
    }
  }
}

TEST(RankRows, PagesThatCannotBeAreRefused) {
  const auto communicators = MakeLocalCommunicators(2);
  const RankSplit split{.rank = 1, .num_ranks = 2, .by_heads = true};
  KvCache cache = KvCache::Create(HostMemory(), TwoHeads(), KvFormat::kF32, 4, split).value();
  for (const std::vector<int32_t>& words : {std::vector<int32_t>{1, 0, 4, 0},
                                            {0, 1, 1, 9},
                                            {0, 1 << 30},
                                            {-1},
                                            {},
                                            {0, 0, 0, 5},
                                            {0, 0, 1, 0, 0, 0, 0, 3}}) {
    ASSERT_TRUE(SendSized(*communicators[0], 1, MessageStream::kSteps, std::as_bytes(std::span(words))).ok());
    EXPECT_FALSE(GatherRankRows(*communicators[1], RowBatch(), std::vector<RowRange>{{0, 0}}, &cache).ok())
        << testing::PrintToString(words);
  }
}

}  // namespace
}  // namespace penstock
