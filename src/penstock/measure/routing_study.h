// Studies what evictions and predictors are worth for a model's routing. Offers facts of a recorded trace, options of
// engines that have room for a share of the experts, and a record of which pair won.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/memory/eviction.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/routing/correlation_table.h"
#include "penstock/routing/expert_predictor.h"
#include "penstock/routing/routing_trace.h"

namespace penstock {

struct TraceFacts {
  // How often gates, applied to the hidden state of an earlier layer, named experts that were then chosen.
  struct Guesses {
    int64_t num_right = 0;
    int64_t num_chosen = 0;
    double accuracy() const { return static_cast<double>(num_right) / static_cast<double>(num_chosen); }
  };
  RoutingTraceHeader header;
  int64_t num_steps = 0;
  int64_t num_rows = 0;  // rows of all steps
  int64_t max_rows = 0;  // rows of the largest step
  int64_t max_sequences = 0;
  int64_t max_positions = 0;             // positions of the longest sequence
  std::vector<ExpertKey> wanted;         // keys of ExpertLayouts, in order; each layer of a step wants an expert once
  std::array<Guesses, kMaxAhead> gates;  // by ahead - 1; num_chosen is 0 if nothing was recorded
  bool has_scores = false;
};
// Reads the facts of a trace. Returns kIo and kInput as TraceRouting does, and kInput when the trace is too long.
absl::StatusOr<TraceFacts> ReadTraceFacts(const std::string& trace_path, const ModelConfig& config,
                                          const ExpertLayouts& layouts);

// Counts how often each expert was chosen, as a correlation table with paths of length 0. Errors are those of
// TraceRouting.
absl::StatusOr<CorrelationTable> TableOfChoices(const std::string& trace_path, const ModelConfig& config);

// Returns the options with budgets that leave room for `share` of the experts (0 < share <= 1), or for as many as the
// schedule needs. The room is in the tier that computes the layers. Returns kUsage when batch size, prefill chunk or
// context length is left open, because they would change with the budget.
absl::StatusOr<EngineOptions> OptionsWithRoom(EngineOptions options, const EngineModel& model, double share);

// The pair that won with room for a share of the experts.
struct RoutingWinner {
  double share = 0;
  Eviction eviction = Eviction::kMrs;
  PredictorKind predictor = PredictorKind::kNone;
};
// Keeps winners for engines of this model (its fingerprint), with or without a device. They replace those of the same
// shares.
void KeepWinners(const std::string& fingerprint, bool has_device, const std::vector<RoutingWinner>& winners);
// Returns the winner for the nearest share; nothing when none was kept.
std::optional<RoutingWinner> FindWinner(const std::string& fingerprint, bool has_device, double share);

}  // namespace penstock
