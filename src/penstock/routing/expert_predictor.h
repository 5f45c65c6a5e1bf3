// Predictors of the experts that the next layers will choose, for schedules that fetch ahead.
//
// - gate: the gates of the next layers, applied to the present hidden state (HybriMoE, section IV-C). Residual streams
//   change little from layer to layer. Looks up to kMaxAhead layers ahead, within the pass.
// - correlation: experts that often follow each other (Klotski; correlation_table.h). Looks one layer ahead.
// - history: the recent ratings of the experts by the routers, the MRS scores (HybriMoE's public code).
// - sequence: each sequence continues like the earlier sequence most similar to it (MoE-Infinity).
// - sida: a trained network names the experts of all layers from the tokens, before the pass begins (sida_network.h).
// - oracle: the true future choices, as a bound in simulations.
// - none: no prediction.
//
// Deterministic: the same calls give the same numbers. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/policy.h"
#include "penstock/routing/correlation_table.h"
#include "penstock/routing/routing_source.h"
#include "penstock/routing/sida_network.h"
#include "penstock/token_id.h"

namespace penstock {

// The rows of a pass before its first layer.
struct PassTokens {
  std::span<const uint32_t> sequence_ids;  // [num_rows]; rows of one sequence are neighbours, in increasing position
  std::span<const int64_t> positions;      // [num_rows]
  std::span<const TokenId> token_ids;      // [num_rows]
};

// A layer of a pass after its rows have been routed.
struct RoutedLayer {
  int64_t layer_idx = 0;                   // index in the model
  std::span<const uint32_t> sequence_ids;  // [num_rows]
  std::span<const int32_t> choices;        // [num_rows, num_topk]
  std::span<const float> scores;           // [num_rows, num_experts]; empty: unknown
  RoutingSource* routing = nullptr;        // routing of the pass
};

// Calls visit(rows, first_row) for the rows of each sequence of a pass.
void ForEachSequence(const PassTokens& pass, absl::FunctionRef<void(const PassTokens& rows, size_t first_row)> visit);

class ExpertPredictor {
 public:
  struct Args {
    std::vector<int64_t> layers;  // indices in the model of the layers with experts
    int64_t num_experts = 0;
    int64_t num_topk = 0;
    // Limits: paths of a correlation table, and bytes of everything else.
    int64_t max_paths = kDefaultMaxPaths;
    uint64_t max_bytes = 8u << 20;
    std::shared_ptr<const SidaNetwork> network = nullptr;  // of sida
    int64_t max_ahead = 0;                                 // sequences whose work may be done ahead
    bool makes_tables = false;                             // TableOf() is asked for
    bool renormalises_weights = true;                      // in tables: the weights of a row add up to 1
  };
  virtual ~ExpertPredictor() = default;

  // Returns how many layers with experts it looks ahead.
  virtual int64_t distance() const = 0;
  // Work that a predictor does before a pass.
  struct Work {
    std::function<void()> run;  // empty: nothing is to be done
    double flops = 0;
  };
  // Returns the work that BeginPass() will need for these rows of one sequence, so that it is done beforehand, on any
  // thread. If `ahead`, they come in a later pass, or never. REQUIRES: works of one kind (ahead or not) run one after
  // the other, and the work of a sequence ends before its next rows are given here or to BeginPass().
  virtual Work Prepare(const PassTokens& /*rows*/, bool /*ahead*/) { return {}; }
  // Reports a pass before its first layer. Layers may also be reported without it.
  virtual void BeginPass(const PassTokens& /*pass*/) {}
  // Reports a layer. Called once for each layer of a pass, in order.
  virtual void Observe(const RoutedLayer& layer) = 0;
  // Returns [num_experts]: for each expert of a later layer, the number of rows that will probably choose it. The rows
  // are those of the layer observed last. The later layer is the `ahead`-th layer with experts after it (1 to
  // distance()). After BeginPass(), the first layer with experts is 1 ahead. After the last layer the count continues
  // in the next pass with the same rows. Empty when the predictor knows nothing. Valid until the next call.
  virtual std::span<const float> ExpectedRows(int64_t ahead) = 0;
  // Returns [num_experts] for the place-th layer with experts and the rows of a sequence whose work has been done
  // ahead. Empty if there are none. Valid until the next call.
  virtual std::span<const float> ExpectedAhead(uint32_t /*sequence_id*/, int64_t /*place*/) { return {}; }
  // Returns the likeliest experts of the place-th layer with experts, for the rows of BeginPass(), and their
  // probabilities as weights. Valid until the next BeginPass(). Empty for predictors that make no tables.
  virtual ExpertTable TableOf(int64_t /*place*/) const { return {}; }
};

// A row of the table of predictors (include/penstock/predictors.def).
struct PredictorTraits {
  PredictorKind value;
  std::string_view name;                                                        // "gate"
  std::string_view summary;                                                     // one line for people
  std::unique_ptr<ExpertPredictor> (*make)(const ExpertPredictor::Args& args);  // makes null for kNone
  bool needs_gates = false;        // asks what the gates of the next layers would choose
  bool needs_scores = false;       // asks how routers rated the experts
  bool needs_network = false;      // reads a network from a file, and names the experts of a whole pass
  bool is_simulated_only = false;  // knows what no run can know
};
std::span<const PredictorTraits> Predictors();
const PredictorTraits& TraitsOf(PredictorKind kind);

}  // namespace penstock
