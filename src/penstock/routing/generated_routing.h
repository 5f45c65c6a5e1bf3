// Routings generated from a seed, for simulations without a trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "penstock/routing/routing_source.h"

namespace penstock {

// The statistics of generated choices. Each row chooses num_topk different experts at random.
struct RoutingSpec {
  // Each layer draws an order of its experts. The r-th in this order is as likely as 1 / r^skew (Zipf); 0: all alike.
  double skew = 0;
  uint64_t seed = 0;
  // The probability that a choice of a row repeats its choice of the step before.
  double repeat = 0;
  // The probability that a choice of a row has the place of its choice in the layer before, in the order of its layer.
  double follow = 0;
  // The probability that a choice is among those that the gate predicts one layer ahead; two layers ahead it is the
  // square of this. 0: gates predict nothing.
  double gate_accuracy = 0;
  int64_t first_row = 0;  // rows are counted from here, so that several ranks draw different ones
  // Instead of `skew`: how often each expert was chosen in earlier runs, [num_moe_layers][num_experts]. One that never
  // was counts once.
  std::vector<std::vector<int64_t>> counts = {};
};

// Routing like that of the demo model, for models of which nothing is known: docs/decisions/routing.md has the fit.
constexpr RoutingSpec TypicalRouting() { return {.skew = 0.8, .repeat = 0.12, .follow = 0.4}; }

// Choices that several runs of one workload share, so that they are drawn once. Threads may share it, too.
class DrawnChoices {
 public:
  struct Rows {
    std::mutex mutex;
    std::vector<uint16_t> experts;  // [rows drawn so far, num_topk]
  };
  // Returns the rows of one step and layer, counted from `first_row`. They stay where they are.
  Rows& RowsOf(int64_t first_row, int64_t step, int64_t layer_idx);
  // Counts choices that are to be kept. Returns false if there is no more room.
  bool Reserve(int64_t num_choices) { return num_kept_.fetch_add(num_choices) + num_choices <= kMaxKept; }

 private:
  static constexpr int64_t kMaxKept = 64 << 20;  // 128 MiB

  std::mutex mutex_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, Rows> rows_;
  std::atomic<int64_t> num_kept_ = 0;
};

// Choices depend only on the spec, step, layer and row, not on the order of the calls.
class GeneratedRouting : public RoutingSource {
 public:
  // `moe_layers` lists the model's layers with experts; ChoicesAhead(), counts and `follow` need it. REQUIRES: 1 <=
  // num_topk <= num_experts, skew >= 0, 0 <= repeat + follow < 1, 0 <= gate_accuracy <= 1. `drawn`, if given, outlives
  // the routing, and serves only routings that differ in `first_row` at most.
  GeneratedRouting(int64_t num_experts, int64_t num_topk, const RoutingSpec& spec, std::vector<int64_t> moe_layers = {},
                   DrawnChoices* drawn = nullptr);

  // Valid until the next call.
  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override;
  std::span<const int32_t> ChoicesAhead(int64_t layer_idx, int64_t ahead, int64_t first_row, int64_t num_rows) override;
  // From now on, rows belong to the next step.
  void NextStep() { ++step_; }

 private:
  uint64_t StateOf(int64_t step, int64_t layer_idx, int64_t row_idx) const;
  // How likely the experts of a layer are, by their places: the most likely one first.
  struct Weights {
    explicit Weights(std::vector<double> of_places);
    int64_t num_experts() const { return static_cast<int64_t>(weights.size()); }
    int32_t ExpertAt(int64_t place) const {
      return order.empty() ? static_cast<int32_t>((first + place) % num_experts()) : order[place];
    }

    std::vector<double> weights;
    std::vector<double> sums;    // of the weights up to each one
    std::vector<int32_t> guide;  // [num_experts]: the first place that a draw in this part of the sum may have
    std::vector<int32_t> order;  // the experts by place; empty: those that follow `first`, round and round
    int64_t first = 0;
  };
  static Weights FromCounts(std::span<const int64_t> counts, int64_t num_topk);
  Weights& WeightsOf(int64_t layer_idx);
  // Returns the layer with experts before this one, or -1.
  int64_t LayerBefore(int64_t layer_idx) const;
  static int32_t Draw(uint64_t state, const Weights& experts);
  void Choose(uint64_t state, const Weights& experts, std::vector<int32_t>& choices) const;
  void ChooseByWeight(uint64_t state, const Weights& experts, std::vector<int32_t>& choices) const;
  void ChooseOrKeep(int64_t layer_idx, int64_t row_idx, const Weights& experts, std::vector<int32_t>& choices) const;
  void AppendChoices(int64_t layer_idx, int64_t first_row, int64_t num_rows, std::vector<int32_t>& choices);

  int64_t num_topk_;
  DrawnChoices* drawn_;
  RoutingSpec spec_;
  std::vector<int64_t> moe_layers_;
  std::vector<int64_t> before_;  // [last layer + 1]: the layer with experts before this one, or -1
  int64_t step_ = 0;
  std::vector<Weights> weights_;  // of all layers alike, or [num_moe_layers]
  std::vector<int32_t> choices_;
  std::vector<int32_t> ahead_;
};

}  // namespace penstock
