// How often a model's routers chose each expert: what the planner learns from a run about the ones after it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/routing/generated_routing.h"

namespace penstock {

struct RoutingCounts {
  std::vector<std::vector<int64_t>> chosen;  // [num_moe_layers][num_experts]
  // Choices of prompt tokens that follow a token of their sequence in the same step, and how many of them that token
  // chose, too.
  int64_t num_following = 0;
  int64_t num_repeated = 0;

  RoutingCounts() = default;
  RoutingCounts(int64_t num_moe_layers, int64_t num_experts);

  // Adds the choices of a step's rows in one layer: [rows, num_topk]. `sequence_ids` [rows] names their sequences.
  void Add(int64_t moe_layer_idx, std::span<const int32_t> choices, std::span<const uint32_t> sequence_ids);
  // Adds earlier counts of the same model. They are scaled down if they are many, so that new work counts more.
  void AddEarlier(const RoutingCounts& earlier);
  // Returns the choices of all rows in one layer.
  int64_t num_choices() const;
  // Returns what generates routing like that which was counted. REQUIRES: num_choices() > 0.
  RoutingSpec ToSpec(int64_t num_topk) const;
};

}  // namespace penstock
