// Makes a simulator of passes from an engine's plan, for the whole model or for fewer layers.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/routing/routing_trace.h"
#include "penstock/simulate/simulated_ranks.h"

namespace penstock {

struct SimulationInputs {
  const ModelConfig& config;
  const EnginePlan& plan;
  int num_threads = 1;  // threads of the host
  TaskSink* sink = nullptr;
};

// Returns the simulator of all of the plan's ranks; kUsage when the hardware lacks rates that it needs.
absl::StatusOr<std::unique_ptr<SimulatedRanks>> MakeSimulator(const SimulationInputs& inputs, const Hardware& hardware);

// A network that predicts experts needs tokens. CheckNeedsNoTokens() returns kUsage if the schedule has one, for
// simulations of made-up requests. CheckReplays() returns kInput unless a trace has the tokens of the network's model.
absl::Status CheckNeedsNoTokens(const ScheduleOptions& schedule);
absl::Status CheckReplays(const ScheduleOptions& schedule, const RoutingTraceHeader& trace, std::string_view path);

// Returns the config with only `num_layers` layers. The share of layers with experts stays about the same. At least one
// layer has experts, if any of `config` has. REQUIRES: 1 <= num_layers <= config.num_layers.
ModelConfig FewerLayers(const ModelConfig& config, int64_t num_layers);
// Returns the simulator for `fewer`, a config made by FewerLayers(). With eviction static, a tier pins the same share
// of the experts and keeps its number of streaming slots. With other evictions, its slots shrink in proportion. `fewer`
// must outlive the simulator.
absl::StatusOr<std::unique_ptr<SimulatedRanks>> MakeSimulator(const SimulationInputs& inputs, const Hardware& hardware,
                                                              const ModelConfig& fewer);

}  // namespace penstock
