// Proves that ranks divide experts, their columns and attention heads among them without a gap, and nearly evenly.
#include "penstock/parallel/rank_split.h"

#include <gtest/gtest.h>

#include "penstock/parallel/head_split.h"

namespace penstock {
namespace {

TEST(RankSplit, RanksShareEverythingWithoutAGap) {
  for (const int num_ranks : {1, 2, 3, 5}) {
    for (const int64_t count : {5, 8, 45, 224}) {
      int64_t expert = 0, column = 0, head = 0, fewest = count, most = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        RankSplit split{.rank = rank, .num_ranks = num_ranks};
        const ExpertRange experts = split.ExpertsOf(count);
        EXPECT_EQ(experts.first, expert);
        expert = experts.end;
        fewest = std::min(fewest, experts.size());
        most = std::max(most, experts.size());
        EXPECT_EQ(split.ColumnsOf(count, 32).size(), count);
        split.cuts_experts = split.by_heads = true;
        EXPECT_EQ(split.ExpertsOf(count).size(), count);
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
      }
      EXPECT_EQ(expert, count);
      EXPECT_EQ(column, count);
      EXPECT_EQ(head, count);
      EXPECT_LE(most - fewest, 1);
    }
  }
}

}  // namespace
}  // namespace penstock
