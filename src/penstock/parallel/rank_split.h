// RankSplit says which experts of a layer, and which of its attention heads, lie on which rank.
#pragma once

#include <cstdint>

namespace penstock {

// Neighbouring experts of a layer.
struct ExpertRange {
  int64_t first = 0;
  int64_t end = 0;

  int64_t size() const { return end - first; }
  bool contains(int64_t expert_idx) const { return expert_idx >= first && expert_idx < end; }
};

// A rank among those that share the experts. Each expert is whole, on one rank. The numbers of experts differ by one at
// most.
struct RankSplit {
  int rank = 0;
  int num_ranks = 1;
  bool by_heads = false;  // the ranks share the attention heads, too (parallel/head_split.h)

  ExpertRange ExpertsOf(int64_t num_experts) const {
    return {num_experts * rank / num_ranks, num_experts * (rank + 1) / num_ranks};
  }
};

}  // namespace penstock
