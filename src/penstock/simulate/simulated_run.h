// An engine in virtual time: what its steps take on a machine that is described, not present. The same schedules,
// expert stores and batching rules as in a real run.
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

// What a recorded run would take.
struct SimulatedTrace {
  std::vector<double> step_s;  // of each step, by its index; 0 for steps of which the trace has nothing
  ExpertCounters experts;      // where the layers are computed
};
// kInput when the trace is damaged or another model's, kUsage when the hardware lacks rates that are needed. Klotski
// begins with an empty correlation table.
absl::StatusOr<SimulatedTrace> SimulateTrace(const SimulationInputs& inputs, const Hardware& hardware,
                                             const std::string& trace_path);

// What a run of a workload would take.
struct RunTotals {
  int64_t num_requests = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  // Steps are split by the share of their rows, as EngineStats has them.
  double prefill_s = 0;
  double decode_s = 0;

  // A step of this size, but for its generated tokens.
  void Add(const StepSize& size, double seconds);
  double total_s() const { return prefill_s + decode_s; }
  double generation_tokens_per_s() const { return static_cast<double>(generated_tokens) / total_s(); }
};

struct SimulatedRun : RunTotals {
  std::vector<double> step_s;  // of each
  std::vector<LaneUsage> lanes;
  int64_t expert_hits = 0;  // where the layers are computed
  int64_t expert_misses = 0;
};

// kResources when the workload's longest request does not fit into the plan's context.
absl::Status CheckFits(const Workload& workload, const MemoryPlan& plan);

// kUsage as above, kResources as CheckFits().
absl::StatusOr<SimulatedRun> SimulateWorkload(const SimulationInputs& inputs, const Hardware& hardware,
                                              const Workload& workload, const RoutingSpec& routing);

}  // namespace penstock
