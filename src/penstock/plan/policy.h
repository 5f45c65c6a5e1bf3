// Decides from the options how the engine runs: schedule, eviction, and the plan of all memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/device/device_spec.h"
#include "penstock/engine.h"
#include "penstock/memory/eviction.h"
#include "penstock/memory/kv_window.h"
#include "penstock/plan/memory_plan.h"
#include "penstock/schedule/pass_rows.h"
#include "penstock/schedule/schedule.h"

namespace penstock {

struct ChosenPolicy {
  ScheduleOptions schedule;
  Eviction eviction = Eviction::kLru;  // eviction policy of the tier that computes the layers
  PinnedExperts pinned = PinnedExperts::kEvenly;
  std::optional<DeviceSpec> device;  // the plan's device, if there is one
  KvWindow kv_window;
  MemoryPlan plan;

  // Returns the limits of a pass.
  PassLimits pass_limits() const;
};

// A row of the table of tiers for the KV cache.
struct KvTierTraits {
  KvTier value;
  std::string_view name;     // "dram"
  std::string_view summary;  // one line for people
};
std::span<const KvTierTraits> KvTiers();

// A row of the table of processors that attend to prompts.
struct PromptAttentionTraits {
  PromptAttention value;
  std::string_view name;     // "device"
  std::string_view summary;  // one line for people
};
std::span<const PromptAttentionTraits> PromptAttentions();

// A row of the table of ways to choose the experts that never leave.
struct PinnedExpertsTraits {
  PinnedExperts value;
  std::string_view name;     // "evenly"
  std::string_view summary;  // one line for people
};
std::span<const PinnedExpertsTraits> PinnedExpertsTable();

// A row of the table of ways to divide attention.
struct AttentionParallelTraits {
  AttentionParallel value;
  std::string_view name;     // "dp"
  std::string_view summary;  // one line for people
};
std::span<const AttentionParallelTraits> AttentionParallels();

// A row of the table of ways to divide experts.
struct ExpertParallelTraits {
  ExpertParallel value;
  std::string_view name;     // "ep"
  std::string_view summary;  // one line for people
};
std::span<const ExpertParallelTraits> ExpertParallels();

// Returns kUsage unless 0 <= value <= max.
absl::Status CheckRange(std::string_view name, int64_t value, int64_t max);

// Returns whether a correlation table decides which experts are pinned. Klotski predicts from the table instead, and
// pins equally many experts of each layer.
bool PinsByPopularity(const Policy& policy, ScheduleKind kind, Eviction eviction);

// Reads a predictor's name, with its file if it needs one ("sida:FILE"), into the policy; "auto" unsets it. Returns
// kUsage for anything else. PredictorText() returns what it reads.
absl::Status ParsePredictor(std::string_view text, Policy& policy);
std::string PredictorText(const Policy& policy);

// Completes `inputs` with the decisions of the policy, and plans the memory. `device_dense_bytes` is the size of the
// layers' dense weights. kUsage for options that contradict each other, kResources when a budget does not suffice.
absl::StatusOr<ChosenPolicy> ChoosePolicy(const EngineOptions& options, const std::optional<DeviceSpec>& device,
                                          uint64_t device_dense_bytes, PlanInputs inputs);

}  // namespace penstock
