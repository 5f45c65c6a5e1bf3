// Simulates an engine in virtual time: how long its steps take on a machine that is described, not present. The
// schedules, expert stores and batching rules are those of a real run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"
#include "penstock/model/cost.h"
#include "penstock/plan/workload.h"
#include "penstock/routing/generated_routing.h"
#include "penstock/runtime/runtime.h"
#include "penstock/simulate/plan_simulator.h"
#include "penstock/simulate/simulated_batch.h"

namespace penstock {

// The result of simulating a recorded run.
struct SimulatedTrace {
  std::vector<double> step_s;  // seconds of each step, by its index; 0 for steps missing from the trace
  ExpertCounters experts;      // counters of the tier that computes the layers
};
// Simulates a recorded run. Klotski begins with an empty correlation table. kInput when the trace is damaged or belongs
// to another model, kUsage when the hardware lacks rates that are needed.
absl::StatusOr<SimulatedTrace> SimulateTrace(const SimulationInputs& inputs, const Hardware& hardware,
                                             const std::string& trace_path);

// The totals of a simulated run of a workload.
struct RunTotals {
  int64_t num_requests = 0;
  int64_t prompt_tokens = 0;
  int64_t computed_prompt_tokens = 0;  // the others lay in the KV cache already
  int64_t generated_tokens = 0;
  // A step's time is split between prefill and decode by their rows, as in EngineStats.
  double prefill_s = 0;
  double decode_s = 0;

  // Adds a step of this size, except its generated tokens and the prompt tokens that it skipped.
  void Add(const StepSize& size, double seconds);
  double total_s() const { return prefill_s + decode_s; }
  double generation_tokens_per_s() const { return static_cast<double>(generated_tokens) / total_s(); }
};

struct SimulatedRun : RunTotals {
  std::vector<double> step_s;  // seconds of each step
  std::vector<LaneUsage> lanes;
  int64_t expert_hits = 0;  // in the tier that computes the layers
  int64_t expert_misses = 0;
};

// Returns kResources when the workload's longest request does not fit into the plan's context.
absl::Status CheckFits(const Workload& workload, const MemoryPlan& plan);

// Simulates a whole run of the workload. kUsage as in SimulateTrace(), kResources as in CheckFits(). Several runs of
// one workload and model are faster if they share `drawn`.
absl::StatusOr<SimulatedRun> SimulateWorkload(const SimulationInputs& inputs, const Hardware& hardware,
                                              const Workload& workload, DrawnChoices* drawn = nullptr);

}  // namespace penstock
