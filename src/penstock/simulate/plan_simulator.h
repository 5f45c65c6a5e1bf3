// The simulator of passes for an engine's plan, whole or with fewer layers.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/simulate/pass_simulator.h"

namespace penstock {

struct SimulationInputs {
  const ModelConfig& config;
  const EnginePlan& plan;
  int num_threads = 1;  // of the host
  TaskSink* sink = nullptr;
};

// kUsage when the hardware lacks rates that are needed.
absl::StatusOr<std::unique_ptr<PassSimulator>> MakeSimulator(const SimulationInputs& inputs, const Hardware& hardware);

// The config with `num_layers` of its layers, those with experts in the same proportion as far as that goes, and at
// least one of them. REQUIRES: no more than it has.
ModelConfig FewerLayers(const ModelConfig& config, int64_t num_layers);
// The same simulator for `fewer`, made by FewerLayers(): each tier pins the same share of the experts and has as many
// slots for those that stream. `fewer` outlives it.
absl::StatusOr<std::unique_ptr<PassSimulator>> MakeSimulator(const SimulationInputs& inputs, const Hardware& hardware,
                                                             const ModelConfig& fewer);

}  // namespace penstock
