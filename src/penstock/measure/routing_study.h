// What evictions and predictors are worth for a model's routing: facts of a recorded trace, engines that have room for
// a share of the experts, and which pair won.
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

namespace penstock {

struct TraceFacts {
  // What the gates of the layers `ahead` named, on the hidden state of an earlier layer, of what was chosen there.
  struct Guesses {
    int64_t num_right = 0;
    int64_t num_chosen = 0;
    double accuracy() const { return static_cast<double>(num_right) / static_cast<double>(num_chosen); }
  };
  int64_t num_steps = 0;
  int64_t num_rows = 0;  // of all steps
  int64_t max_rows = 0;  // of one
  int64_t max_sequences = 0;
  int64_t max_positions = 0;             // of a sequence
  std::vector<ExpertKey> wanted;         // a layer of a step wants each expert once
  std::array<Guesses, kMaxAhead> gates;  // by ahead - 1; num_chosen is 0 where nothing was recorded
  bool has_scores = false;
};
// kIo and kInput as TraceRouting.
absl::StatusOr<TraceFacts> ReadTraceFacts(const std::string& trace_path, const ModelConfig& config,
                                          const ExpertLayouts& layouts);

// How often each expert was chosen: a correlation table with paths of length 0. As above.
absl::StatusOr<CorrelationTable> CountChoices(const std::string& trace_path, const ModelConfig& config);

// The options with budgets that leave room for `share` of the experts (0 < share <= 1), or as many as the schedule
// needs, where the layers are computed. kUsage when batch size, prefill chunk or context length is open: they would
// change with the budget.
absl::StatusOr<EngineOptions> OptionsWithRoom(EngineOptions options, const EngineModel& model, double share);

// Which pair won where there is room for a share of the experts.
struct RoutingWinner {
  double share = 0;
  Eviction eviction = Eviction::kMrs;
  PredictorKind predictor = PredictorKind::kNone;
};
// Kept for engines of this model (its fingerprint) with or without a device: in place of those of the same shares.
void KeepWinners(const std::string& fingerprint, bool has_device, const std::vector<RoutingWinner>& winners);
// The one for the nearest share; nothing when none was kept.
std::optional<RoutingWinner> FindWinner(const std::string& fingerprint, bool has_device, double share);

}  // namespace penstock
