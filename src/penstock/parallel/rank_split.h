// RankSplit says which experts, or which parts of them, and which attention heads lie on a rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "penstock/parallel/expert_placement.h"

namespace penstock {

// Neighbouring columns of an expert: outputs of gate and up, inputs of down.
struct ColumnRange {
  int64_t first = 0;
  int64_t end = 0;

  int64_t size() const { return end - first; }
};

// A rank among those that share the experts. Each expert is whole, on one rank or on several; or each rank has some
// columns of every expert.
struct RankSplit {
  int rank = 0;
  int num_ranks = 1;
  bool by_heads = false;      // the ranks share the attention heads, too (parallel/head_split.h)
  bool cuts_experts = false;  // each rank has a part of every expert
  // Says which ranks hold which whole experts; null: this rank has all experts, or a part of each.
  std::shared_ptr<const ExpertPlacement> placement = nullptr;

  // Returns this rank's columns of an expert with `expert_dim` of them. Experts are cut between groups of `unit`
  // columns. The last rank has the most groups, but its last group may be smaller.
  ColumnRange ColumnsOf(int64_t expert_dim, int64_t unit) const {
    if (!cuts_experts) return {0, expert_dim};
    const int64_t num_units = (expert_dim + unit - 1) / unit;
    const auto begin = [&](int64_t r) { return std::min(expert_dim, num_units * r / num_ranks * unit); };
    return {begin(rank), begin(rank + 1)};
  }
};

}  // namespace penstock
