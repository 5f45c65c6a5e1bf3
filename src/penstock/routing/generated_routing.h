// Routings that a seed decides, for simulations without a trace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/routing/routing_source.h"

namespace penstock {

// How experts are chosen. Each row chooses num_topk different ones at random.
struct RoutingSpec {
  double skew = 1;  // expert e of a layer is so many times as likely as the next one in an order that the layer decides
  uint64_t seed = 0;
  // How often each choice of a row is the one that the row made a step before.
  double repeat = 0;
  // How often a choice is among those that the gate names one layer before; two layers before: the square of it. 0:
  // gates name nothing.
  double gate_accuracy = 0;
};

// The same spec, step, layer and row give the same choice, whoever asks in whatever order.
class GeneratedRouting : public RoutingSource {
 public:
  // `moe_layers`: of the model, those with experts; for ChoicesAhead(). REQUIRES: 1 <= num_topk <= num_experts,
  // skew >= 1, 0 <= repeat < 1, 0 <= gate_accuracy <= 1.
  GeneratedRouting(int64_t num_experts, int64_t num_topk, const RoutingSpec& spec,
                   std::vector<int64_t> moe_layers = {});

  // Valid until the next call.
  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override;
  std::span<const int32_t> ChoicesAhead(int64_t layer_idx, int64_t ahead, int64_t first_row, int64_t num_rows) override;
  // From now on rows are those of the next step.
  void NextStep() { ++step_; }

 private:
  uint64_t StateOf(int64_t step, int64_t layer_idx, int64_t row_idx) const;
  int32_t Draw(uint64_t state, int64_t first) const;
  void Choose(uint64_t state, int64_t first, std::vector<int32_t>& choices);
  void ChooseByWeight(uint64_t state, int64_t first, std::vector<int32_t>& choices) const;
  void ChooseOrKeep(int64_t layer_idx, int64_t row_idx, int64_t first, std::vector<int32_t>& choices) const;
  void AppendChoices(int64_t layer_idx, int64_t first_row, int64_t num_rows, std::vector<int32_t>& choices);

  int64_t num_topk_;
  RoutingSpec spec_;
  std::vector<int64_t> moe_layers_;
  int64_t step_ = 0;
  std::vector<double> weights_;  // by place in a layer's order
  std::vector<double> sums_;     // of the weights up to each place
  std::vector<int32_t> choices_;
  std::vector<int32_t> ahead_;
};

}  // namespace penstock
