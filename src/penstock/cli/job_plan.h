// Looks at a job before it runs: what it costs on this machine, and (run --validate-only) whether its requests are
// good.
#pragma once

#include <atomic>
#include <optional>

#include "absl/status/statusor.h"
#include "penstock/cli/commands.h"
#include "penstock/simulate/policy_search.h"

namespace penstock::cli {

// Machines like this one that share the job, and the network between them.
struct RankNetwork {
  int num_ranks = 1;
  Link link;
};

// Chooses what `options` leave open, for this machine and this job. Measures the machine if nobody has yet.
absl::StatusOr<PolicyChoice> PlanOfJob(const InputReport& report, EngineOptions options,
                                       const std::optional<RankNetwork>& ranks = std::nullopt);

// The same for a server, whose requests nobody knows yet: 128 chats, prompts of 512 tokens and answers of 256.
absl::StatusOr<PolicyChoice> PlanOfServer(EngineOptions options);

// Prints what is wrong with requests. With a model also tokenizes all prompts, and predicts how long the job takes if
// the machine has been measured. Returns the exit code.
absl::StatusOr<int> ValidateOnly(const RunFlags& flags, const std::atomic<bool>& stop_requested);

}  // namespace penstock::cli
