// Opens the folder in which an engine keeps KV entries (EngineOptions::prefix_dir).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/prefixes/prefix_store.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/plan/loaded_model.h"

namespace penstock {

// Returns kUsage if the options ask for a folder and the engine cannot use one: several ranks, an encoder, an attention
// window, or no sharing of prefixes.
absl::Status CheckPrefixDir(const EngineOptions& options, const ModelConfig& config, bool shares_prefixes,
                            bool has_ranks);

// Returns null if the options name no folder. The cache outlives the store.
absl::StatusOr<std::unique_ptr<PrefixStore>> OpenPrefixStore(const EngineOptions& options, const LoadedModel& model,
                                                             const EnginePlan& plan, kernels::Isa isa, KvCache& cache);

}  // namespace penstock
