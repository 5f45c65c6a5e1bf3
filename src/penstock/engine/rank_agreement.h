// The agreement of several ranks on one plan: each needs room for the rows of all, and all make the same calls.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "penstock/engine.h"
#include "penstock/parallel/communicator.h"

namespace penstock {

// Changes the options to what all ranks can do, given this rank's own plan: the smallest batch and chunk, one schedule,
// and the caller's memory for texts, which only rank 0 knows. kUsage when the ranks' schedules or `identity` (model and
// formats) differ.
absl::Status AgreeOnOptions(Communicator& communicator, std::string_view identity, const MemoryPlan& plan,
                            EngineOptions& options, CallerMemory& caller);

}  // namespace penstock
