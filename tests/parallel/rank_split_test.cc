// Proves that ranks divide the columns of experts and attention heads among them without a gap, and nearly evenly.
#include "penstock/parallel/rank_split.h"

#include <gtest/gtest.h>

#include "penstock/parallel/head_split.h"

namespace penstock {
namespace {

TEST(RankSplit, RanksShareEverythingWithoutAGap) {
  for (const int num_ranks : {1, 2, 3, 5}) {
    for (const int64_t count : {5, 8, 45, 224}) {
      int64_t column = 0, head = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        RankSplit split{.rank = rank, .num_ranks = num_ranks};
        EXPECT_EQ(split.ColumnsOf(count, 32).size(), count);
        split.cuts_experts = split.by_heads = true;
        const ColumnRange columns = split.ColumnsOf(count, 32);
        EXPECT_EQ(columns.first, column);
        EXPECT_TRUE(columns.end % 32 == 0 || columns.end == count);
        column = columns.end;
        ModelConfig config;
        config.num_kv_heads = count;
        config.num_heads = 3 * count;
        const HeadRange heads = HeadsOf(config, split);
        EXPECT_EQ(heads.first, head);
        head = heads.end;
        EXPECT_EQ(ConfigOfHeads(config, heads).num_heads, 3 * ConfigOfHeads(config, heads).num_kv_heads);
        EXPECT_EQ(heads.FirstOf(3 * count), 3 * heads.first);
        EXPECT_EQ(heads.NumOf(3 * count), 3 * (heads.end - heads.first));
        EXPECT_EQ(HeadsOf(config, {}).NumOf(100), 100);  // heads of recurrent layers, whatever their number
      }
      EXPECT_EQ(column, count);
      EXPECT_EQ(head, count);
    }
  }
}

}  // namespace
}  // namespace penstock
