// A predictor with a network (routing/sida_network.h) in an engine's plan: its file, its memory, and its limits.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "penstock/parallel/rank_split.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/routing/sida_network.h"

namespace penstock {

// Returns the shape of the predictor's network, having compared it with the model; nothing if there is none.
absl::StatusOr<std::optional<SidaShape>> ReadNetworkShape(const Policy& policy, const EngineModel& model);

// The memory of a predictor with a network; zeros without one.
struct PredictorBytes {
  uint64_t fixed = 0;
  uint64_t per_place = 0;  // of the batch
  uint64_t per_row = 0;    // of a pass
};
PredictorBytes PredictorBytesOf(const Policy& policy, const std::optional<SidaShape>& network,
                                const ModelConfig& config);

// Reads the network for the schedule that the plan has chosen.
absl::Status LoadNetwork(const Policy& policy, const SidaShape& shape, ChosenPolicy& chosen);

// Refuses what a network that replaces routers cannot do yet.
absl::Status CheckReplacesRouters(const ScheduleOptions& schedule, const std::string& device, const EngineModel& model,
                                  const EngineRoom& room, const RankSplit& ranks);

}  // namespace penstock
