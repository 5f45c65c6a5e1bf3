// The planner's choice: which policy computes a workload soonest on a machine.
//
// MoE-Lightning's policy (N, mu, A_g, F_g, r_w, r_c) and the schedule. Where tensors lie, the resident shares r_w and
// r_c among them, follows from the rest and the budgets (plan/memory_plan.h), so that what is searched is: on which
// processor (F_g), by which schedule (and with it A_g), how many sequences at once (N), in which micro-batches (mu),
// how many rows of prompts in a step, and where the KV cache lies (r_c). What a policy is worth is what the schedule's
// own code takes in virtual time (simulate/run_estimate.h).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "penstock/plan/described_model.h"
#include "penstock/simulate/run_estimate.h"

namespace penstock {

struct PolicyChoice {
  EngineOptions options;  // complete: what an engine is to be opened with, but for its model
  MemoryPlan plan;
  int64_t num_places = 0;  // sequences at once: of the plan's batch those for which there are KV pages
  RunEstimate estimate;
};

// The best policy of each processor and schedule that can run, best first; at least one. What `options` say is not
// searched. Errors of the most modest policy when none can run. Begins with a policy that may be `near` the best one,
// if given. Searches with `num_threads`, or all usable CPUs.
absl::StatusOr<std::vector<PolicyChoice>> SearchPolicies(const DescribedModel& model, const Hardware& hardware,
                                                         const Workload& workload, const EngineOptions& options,
                                                         const EngineOptions* near = nullptr, int num_threads = 0);

}  // namespace penstock
