#include "penstock/parallel/expert_placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <xxhash.h>

#include "penstock/base/check.h"

namespace penstock {
namespace {

using Holders = std::vector<std::vector<int32_t>>;  // [num_stored_experts]

// An expert's load is divided among its holders, in these parts of a choice.
constexpr int64_t kPartsOfChoice = 1 << 16;

// Returns the rank with the least load among those for which may_take(rank); the first of several. -1: there is none.
template <typename MayTake>
int LeastLoaded(std::span<const int64_t> loads, MayTake may_take) {
  int least = -1;
  for (int rank = 0; rank < std::ssize(loads); ++rank) {
    if (may_take(rank) && (least < 0 || loads[rank] < loads[least])) least = rank;
  }
  return least;
}

std::vector<int64_t> LoadsOf(const Holders& holders, std::span<const int64_t> counts, int num_ranks) {
  std::vector<int64_t> loads(num_ranks);
  for (size_t expert_idx = 0; expert_idx < holders.size(); ++expert_idx) {
    const int64_t share = counts[expert_idx] * kPartsOfChoice / std::ssize(holders[expert_idx]);
    for (const int32_t rank : holders[expert_idx]) loads[rank] += share;
  }
  return loads;
}

Holders Neighbours(int64_t num_experts, int num_ranks) {
  Holders holders(num_experts);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int64_t end = num_experts * (rank + 1) / num_ranks;
    for (int64_t expert_idx = num_experts * rank / num_ranks; expert_idx < end; ++expert_idx) {
      holders[expert_idx] = {rank};
    }
  }
  return holders;
}

// Gives each expert to the rank with the least load, the heaviest expert first. Each rank takes as many as its
// neighbouring ones would be. If these have a smaller greatest load, they are kept.
Holders Balance(std::span<const int64_t> counts, int num_ranks) {
  const Holders neighbours = Neighbours(std::ssize(counts), num_ranks);
  std::vector<int64_t> room(num_ranks);
  for (const std::vector<int32_t>& holder : neighbours) ++room[holder[0]];
  std::vector<int32_t> heaviest_first(counts.size());
  std::iota(heaviest_first.begin(), heaviest_first.end(), 0);
  std::ranges::stable_sort(heaviest_first, [&](int32_t a, int32_t b) { return counts[a] > counts[b]; });
  Holders holders(counts.size());
  std::vector<int64_t> loads(num_ranks);
  for (const int32_t expert_idx : heaviest_first) {
    const int rank = LeastLoaded(loads, [&](int r) { return room[r] > 0; });
    holders[expert_idx] = {rank};
    loads[rank] += counts[expert_idx];
    --room[rank];
  }
  const auto max_of = [&](const Holders& of) { return std::ranges::max(LoadsOf(of, counts, num_ranks)); };
  return max_of(holders) < max_of(neighbours) ? holders : neighbours;
}

// Again and again, gives the expert with the highest load of a holder to the rank with the least load that lacks it.
void AddReplicas(std::span<const int64_t> counts, int num_ranks, int64_t num_replicas, Holders& holders) {
  std::vector<int64_t> room(num_ranks, num_replicas);
  std::vector<int64_t> loads = LoadsOf(holders, counts, num_ranks);
  for (int64_t left = num_ranks * num_replicas; left > 0; --left) {
    const auto may_take = [&](int rank, size_t expert_idx) {
      return room[rank] > 0 && !std::ranges::binary_search(holders[expert_idx], rank);
    };
    int64_t best = -1, best_load = -1;
    int best_rank = -1;
    for (size_t expert_idx = 0; expert_idx < counts.size(); ++expert_idx) {
      const int64_t load = counts[expert_idx] * kPartsOfChoice / std::ssize(holders[expert_idx]);
      if (load <= best_load) continue;
      const int rank = LeastLoaded(loads, [&](int r) { return may_take(r, expert_idx); });
      if (rank < 0) continue;
      best = static_cast<int64_t>(expert_idx);
      best_load = load;
      best_rank = rank;
    }
    PENSTOCK_CHECK(best >= 0);  // a rank with room lacks an expert
    holders[best].insert(std::ranges::upper_bound(holders[best], best_rank), best_rank);
    --room[best_rank];
    loads = LoadsOf(holders, counts, num_ranks);
  }
}

}  // namespace

ExpertPlacement::ExpertPlacement(const ModelConfig& config, int num_ranks, std::span<const Holders> holders_of)
    : num_ranks_(num_ranks), moe_layer_of_(config.num_layers, -1) {
  for (const int64_t layer_idx : config.moe_layers()) {
    moe_layer_of_[layer_idx] = std::ssize(layers_);
    Layer& layer = layers_.emplace_back();
    layer.holders = holders_of[layers_.size() - 1];
    layer.experts.resize(num_ranks);
    for (size_t expert_idx = 0; expert_idx < layer.holders.size(); ++expert_idx) {
      layer.has_replicas |= layer.holders[expert_idx].size() > 1;
      for (const int32_t rank : layer.holders[expert_idx]) {
        layer.experts[rank].push_back(static_cast<int32_t>(expert_idx));
      }
    }
  }
}

ExpertPlacement ExpertPlacement::Contiguous(const ModelConfig& config, int num_ranks) {
  const std::vector<Holders> holders_of(config.num_moe_layers(), Neighbours(config.num_stored_experts(), num_ranks));
  return {config, num_ranks, holders_of};
}

ExpertPlacement ExpertPlacement::Balanced(const ModelConfig& config, int num_ranks, const ChoiceCounts& counts,
                                          int64_t num_replicas) {
  std::vector<Holders> holders_of;
  for (const std::vector<int64_t>& of_layer : counts) {
    const auto of_stored = std::span(of_layer).first(static_cast<size_t>(config.num_stored_experts()));
    holders_of.push_back(Balance(of_stored, num_ranks));
    AddReplicas(of_stored, num_ranks, num_replicas, holders_of.back());
  }
  return {config, num_ranks, holders_of};
}

ExpertPlacement ExpertPlacement::OfFewerLayers(const ModelConfig& fewer) const {
  std::vector<Holders> holders_of;
  for (int64_t layer = 0; layer < fewer.num_moe_layers(); ++layer) holders_of.push_back(layers_[layer].holders);
  return {fewer, num_ranks_, holders_of};
}

std::span<const int32_t> ExpertPlacement::ExpertsOf(int64_t layer_idx, int rank) const {
  if (moe_layer_of_[layer_idx] < 0) return {};
  return LayerOf(layer_idx).experts[rank];
}

std::vector<std::vector<int32_t>> ExpertPlacement::UsedHolders(const Layer& layer, std::span<const int64_t> num_rows,
                                                               int64_t rows_of_weights) const {
  // Experts with one holder leave no choice, so they come first.
  std::vector<int32_t> order(num_rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t expert_idx) {
    return std::pair(layer.holders[expert_idx].size() > 1, -num_rows[expert_idx]);
  });
  std::vector<int64_t> work(num_ranks_);  // in rows
  std::vector<std::vector<int32_t>> used = layer.holders;
  for (const int32_t expert_idx : order) {
    if (num_rows[expert_idx] == 0) continue;
    std::vector<int32_t>& ranks = used[expert_idx];
    std::ranges::stable_sort(ranks, {}, [&](int32_t rank) { return work[rank]; });
    ranks.resize(std::clamp<size_t>(num_rows[expert_idx] / rows_of_weights, 1, ranks.size()));
    for (const int32_t rank : ranks) work[rank] += std::max(num_rows[expert_idx] / std::ssize(ranks), rows_of_weights);
  }
  return used;
}

std::vector<std::vector<int32_t>> ExpertPlacement::RanksOf(int64_t layer_idx,
                                                           std::span<const std::vector<int32_t>> choices,
                                                           int64_t rows_of_weights) const {
  const Layer& layer = LayerOf(layer_idx);
  std::vector<std::vector<int32_t>> ranks(choices.size());
  const auto is_stored = [&](int32_t expert_idx) { return expert_idx < std::ssize(layer.holders); };
  for (int32_t home = 0; home < std::ssize(choices); ++home) {
    ranks[home].reserve(choices[home].size());
    for (const int32_t expert_idx : choices[home]) {
      ranks[home].push_back(is_stored(expert_idx) ? layer.holders[expert_idx][0] : home);
    }
  }
  if (!layer.has_replicas) return ranks;
  std::vector<int64_t> num_rows(layer.holders.size());
  for (const std::vector<int32_t>& of_rank : choices) {
    for (const int32_t expert_idx : of_rank) {
      if (is_stored(expert_idx)) ++num_rows[expert_idx];
    }
  }
  const std::vector<std::vector<int32_t>> used = UsedHolders(layer, num_rows, rows_of_weights);
  std::vector<int64_t> rows_of(num_ranks_);
  // First the rows that have only one rank to go to, then the others.
  for (const bool is_dealt : {false, true}) {
    for (int32_t home = 0; home < std::ssize(choices); ++home) {
      for (size_t i = 0; i < choices[home].size(); ++i) {
        if (!is_stored(choices[home][i])) continue;
        const std::vector<int32_t>& may_compute = used[choices[home][i]];
        const bool at_home = std::ranges::find(may_compute, home) != may_compute.end();
        if ((may_compute.size() > 1 && !at_home) != is_dealt) continue;
        int32_t& rank = ranks[home][i];
        rank = at_home ? home : *std::ranges::min_element(may_compute, {}, [&](int32_t r) { return rows_of[r]; });
        ++rows_of[rank];
      }
    }
  }
  return ranks;
}

uint64_t ExpertPlacement::Digest() const {
  uint64_t digest = XXH3_64bits(&num_ranks_, sizeof(num_ranks_));
  for (const Layer& layer : layers_) {
    for (const std::vector<int32_t>& holders : layer.holders) {
      digest = XXH3_64bits_withSeed(holders.data(), holders.size() * sizeof(int32_t), digest);
    }
  }
  return digest;
}

uint64_t ExpertPlacement::memory_bytes() const {
  constexpr size_t kAllocation = 32;  // at least, with the allocator's own bytes
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const auto* lists : {&layer.holders, &layer.experts}) {
      for (const std::vector<int32_t>& list : *lists) {
        bytes += sizeof(list) + kAllocation + list.capacity() * sizeof(int32_t);
      }
    }
  }
  return bytes;
}

}  // namespace penstock
