// The agreement of several ranks on one plan: each needs room for the rows of all, and all make the same calls.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "penstock/engine.h"
#include "penstock/parallel/communicator.h"
#include "penstock/parallel/expert_placement.h"

namespace penstock {

// Changes the options to what all ranks can do, given this rank's own plan: the smallest batch and chunk, one schedule,
// and the caller's memory for texts, which only rank 0 knows. kUsage when the ranks' schedules, `identity` (model and
// formats) or placements of experts (null: experts are cut) differ.
absl::Status AgreeOnOptions(Communicator& communicator, std::string_view identity, const ExpertPlacement* placement,
                            const MemoryPlan& plan, EngineOptions& options, CallerMemory& caller);

}  // namespace penstock
