// What the next layers will want, as the schedules that fetch ahead guess it.
//
//   gate         the next layers' gates, applied to the present hidden state (HybriMoE, section IV-C): residual streams
//                change little from layer to layer. Up to kMaxAhead layers ahead, in the same pass
//   correlation  which experts follow each other (Klotski; correlation_table.h). One layer ahead
//   history      how routers rated the experts lately, the MRS scores (HybriMoE's public code)
//   sequence     each sequence goes on as the one that was most like it so far (MoE-Infinity)
//   oracle       what they will choose: in simulations, as a bound
//   none
//
// Deterministic: the same calls give the same numbers. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/policy.h"
#include "penstock/routing/correlation_table.h"
#include "penstock/routing/routing_source.h"

namespace penstock {

// A layer of a pass whose rows have been routed.
struct RoutedLayer {
  int64_t layer_idx = 0;                   // of the model
  std::span<const uint32_t> sequence_ids;  // [num_rows]
  std::span<const int32_t> choices;        // [num_rows, num_topk]
  std::span<const float> scores;           // [num_rows, num_experts]; empty: unknown
  RoutingSource* routing = nullptr;        // of the pass
};

class ExpertPredictor {
 public:
  struct Args {
    std::vector<int64_t> layers;  // of the model, those with experts
    int64_t num_experts = 0;
    int64_t num_topk = 0;
    // That it may keep: paths of a correlation table, and of everything else.
    int64_t max_paths = kDefaultMaxPaths;
    uint64_t max_bytes = 8u << 20;
  };
  virtual ~ExpertPredictor() = default;

  // Layers with experts that it looks ahead.
  virtual int64_t distance() const = 0;
  // Once for each layer of a pass, in order.
  virtual void Observe(const RoutedLayer& layer) = 0;
  // How many of the rows of the layer observed last will want each expert [num_experts] of the layer `ahead` layers
  // with experts after it (1 to distance()), where the next pass with the same rows follows the last layer; empty when
  // it knows nothing. Valid until the next call.
  virtual std::span<const float> ExpectedRows(int64_t ahead) = 0;
};

// A row of the table of predictors (include/penstock/predictors.def).
struct PredictorTraits {
  PredictorKind value;
  std::string_view name;     // "gate"
  std::string_view summary;  // one line for people
  std::unique_ptr<ExpertPredictor> (*make)(const ExpertPredictor::Args& args);  // makes null for kNone
  bool needs_gates = false;        // asks what the gates of the next layers would choose
  bool needs_scores = false;       // asks how routers rated the experts
  bool is_simulated_only = false;  // knows what no run can know
};
std::span<const PredictorTraits> Predictors();
const PredictorTraits& TraitsOf(PredictorKind kind);

}  // namespace penstock
