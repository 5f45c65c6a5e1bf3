// The planner: finds the policy that computes a workload soonest on a machine.
//
// A policy consists of MoE-Lightning's (N, mu, A_g, F_g, r_w, r_c) and a schedule. The search covers:
// - the processor (F_g),
// - the schedule, which also decides A_g,
// - the number of sequences at once (N), and of a micro-batch (mu),
// - the rows of prompts in a step,
// - the tier of the KV cache (r_c), and the processor that attends to prompts,
// - with several ranks, whether they divide attention by sequences or by heads.
// The placement of tensors, with the resident shares r_w and r_c, follows from these choices and the budgets
// (plan/memory_plan.h). A policy is rated by the virtual time that the schedule's own code takes
// (simulate/run_estimate.h). The best choices are simulated whole.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "penstock/plan/described_model.h"
#include "penstock/simulate/run_estimate.h"

namespace penstock {

struct PolicyChoice {
  EngineOptions options;  // complete options for opening an engine, except its model
  MemoryPlan plan;
  int64_t num_places = 0;  // sequences at once: places of the plan's batch that have KV pages
  RunEstimate estimate;
};

// Help for a search, which changes nothing but its time.
struct SearchHelp {
  const EngineOptions* near = nullptr;  // a policy that may be close to the best one: the search begins with it
  int num_threads = 0;                  // 0: all usable CPUs
  DrawnChoices* drawn = nullptr;        // shared by searches for one workload and model
};

// Returns the best policy of each pair of processor and schedule that can run, best first; there is at least one.
// Choices that `options` make are kept, not searched. When no policy can run, returns the error of the pair that was
// searched last.
absl::StatusOr<std::vector<PolicyChoice>> SearchPolicies(const DescribedModel& model, const Hardware& hardware,
                                                         const Workload& workload, const EngineOptions& options,
                                                         const SearchHelp& help = {});

}  // namespace penstock
