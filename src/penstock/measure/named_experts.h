// Measures how many of the experts that tokens choose were named by predictors beforehand, on a recorded routing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/model/model_config.h"
#include "penstock/routing/expert_predictor.h"

namespace penstock {

// Only steps count in which each sequence has one row, as in decoding: a prompt wants nearly all experts. A predictor
// may name as many experts of a layer as its rows then choose.
struct NamedExperts {
  struct Count {
    int64_t num_named = 0;
    int64_t num_chosen = 0;
    double share() const { return static_cast<double>(num_named) / static_cast<double>(num_chosen); }
  };
  std::string_view predictor;
  std::vector<Count> before_step;      // [num_layers]: named before the step began; empty if the predictor names none
  std::array<Count, kMaxAhead> ahead;  // by ahead - 1: named that many layers ahead, within the step

  Count all_before_step() const;
};

// Replays the trace with each predictor that a run can have. `network` is that of sida; null: sida is left out. Errors
// are those of TraceRouting. REQUIRES: with a network, the trace has tokens of its model.
absl::StatusOr<std::vector<NamedExperts>> CountNamedExperts(const std::string& trace_path, const ModelConfig& config,
                                                            const std::shared_ptr<const SidaNetwork>& network);

// Returns a table for people. Empty if nothing was counted.
std::string NamedExpertsTable(const std::vector<NamedExperts>& predictors);

}  // namespace penstock
