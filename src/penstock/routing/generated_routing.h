// Routings that a seed decides, for simulations without a trace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/routing/routing_source.h"

namespace penstock {

// Each row chooses num_topk different experts at random; expert e of a layer is `skew` times as likely as the next one
// in an order that the layer decides (1: all alike). The same seed, step, layer and row give the same choice, whoever
// asks in whatever order.
class GeneratedRouting : public RoutingSource {
 public:
  // REQUIRES: 1 <= num_topk <= num_experts, skew >= 1.
  GeneratedRouting(int64_t num_experts, int64_t num_topk, double skew, uint64_t seed);

  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override;
  // From now on rows are those of the next step.
  void NextStep() { ++step_; }

 private:
  int64_t num_topk_;
  uint64_t seed_;
  int64_t step_ = 0;
  void ChooseByWeight(uint64_t state, int64_t first);

  std::vector<double> weights_;  // by place in a layer's order
  std::vector<double> sums_;     // of the weights up to each place
  std::vector<int32_t> choices_;
};

}  // namespace penstock
