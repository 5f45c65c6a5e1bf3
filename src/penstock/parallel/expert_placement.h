// The placement of whole experts: which ranks hold which experts of each layer. All ranks know it, and it never changes
// during a run. Identity experts, which have no weights, are on no rank: a row's own rank returns its input.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/model/model_config.h"

namespace penstock {

// How often each expert was chosen: [num_moe_layers][num_experts].
using ChoiceCounts = std::vector<std::vector<int64_t>>;

class ExpertPlacement {
 public:
  // Each rank holds neighbouring experts, each expert lies on one rank, and the numbers of experts differ by one at
  // most. REQUIRES: 1 <= num_ranks <= config.num_stored_experts(), if there are experts.
  static ExpertPlacement Contiguous(const ModelConfig& config, int num_ranks);
  // Each rank holds as many experts as above, and `num_replicas` further ones of each layer. Experts are placed so that
  // the ranks get about equally many of the counted choices. Only integers are computed, so all machines get the same
  // placement. REQUIRES: as above, counts >= 0, 0 <= num_replicas <= MaxReplicas().
  static ExpertPlacement Balanced(const ModelConfig& config, int num_ranks, const ChoiceCounts& counts,
                                  int64_t num_replicas);
  // Returns the number of replicas with which some rank holds all experts.
  static int64_t MaxReplicas(const ModelConfig& config, int num_ranks) {
    return config.num_stored_experts() - (config.num_stored_experts() + num_ranks - 1) / num_ranks;
  }
  // Returns the placement for a config with the first of this one's layers with experts.
  ExpertPlacement OfFewerLayers(const ModelConfig& fewer) const;

  int num_ranks() const { return num_ranks_; }
  // Returns the ranks that hold an expert, in ascending order: one or more. REQUIRES: the layer has experts.
  std::span<const int32_t> HoldersOf(int64_t layer_idx, int64_t expert_idx) const {
    return LayerOf(layer_idx).holders[expert_idx];
  }
  // Returns the experts that a rank holds, in ascending order; none if the layer has none.
  std::span<const int32_t> ExpertsOf(int64_t layer_idx, int rank) const;

  // Returns the rank that computes each of these choices: [num_ranks][rows of that rank * num_topk], like `choices`.
  // Reading an expert's weights takes as long as computing `rows_of_weights` rows. So an expert with n rows uses at
  // most n / rows_of_weights of its holders, those with the least work. Of these, the row's rank computes a row if it
  // is one; other rows go where they keep the work even. A row's rank computes its identity experts. REQUIRES: the
  // layer has experts, rows_of_weights >= 1.
  std::vector<std::vector<int32_t>> RanksOf(int64_t layer_idx, std::span<const std::vector<int32_t>> choices,
                                            int64_t rows_of_weights) const;

  // Returns a number that differs for different placements.
  uint64_t Digest() const;
  // Returns the bytes that these tables take.
  uint64_t memory_bytes() const;

 private:
  struct Layer {
    std::vector<std::vector<int32_t>> holders;  // [num_stored_experts]
    std::vector<std::vector<int32_t>> experts;  // [num_ranks]
    bool has_replicas = false;
  };
  // `holders_of` are those of each layer with experts.
  ExpertPlacement(const ModelConfig& config, int num_ranks,
                  std::span<const std::vector<std::vector<int32_t>>> holders_of);
  // Returns the holders that compute each expert, given its rows in a step.
  std::vector<std::vector<int32_t>> UsedHolders(const Layer& layer, std::span<const int64_t> num_rows,
                                                int64_t rows_of_weights) const;
  const Layer& LayerOf(int64_t layer_idx) const { return layers_[moe_layer_of_[layer_idx]]; }

  int num_ranks_;
  std::vector<int64_t> moe_layer_of_;  // [num_layers]; -1: without experts
  std::vector<Layer> layers_;          // [num_moe_layers]
};

}  // namespace penstock
