// From what was asked for to how the engine runs: schedule, eviction, the plan of all memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/device/device_spec.h"
#include "penstock/engine.h"
#include "penstock/memory/eviction.h"
#include "penstock/memory/kv_window.h"
#include "penstock/plan/memory_plan.h"
#include "penstock/schedule/schedule.h"

namespace penstock {

struct ChosenPolicy {
  ScheduleOptions schedule;
  Eviction eviction = Eviction::kLru;  // where the layers are computed
  std::optional<DeviceSpec> device;    // as the plan says
  KvWindow kv_window;
  MemoryPlan plan;
};

// A row of the table of places for the KV cache.
struct KvTierTraits {
  KvTier value;
  std::string_view name;     // "dram"
  std::string_view summary;  // one line for people
};
std::span<const KvTierTraits> KvTiers();

// kUsage for a value that 0 to `max` does not include.
absl::Status CheckRange(std::string_view name, int64_t value, int64_t max);

// Whether a correlation table says which experts never leave. Klotski predicts from it instead, and leaves each layer
// the same work.
bool PinsByPopularity(const Policy& policy, ScheduleKind kind, Eviction eviction);

// Completes `inputs` with what the policy decides, and plans. `device_dense_bytes`: of the layers' dense weights.
// kUsage for what does not go together, kResources when a budget does not suffice.
absl::StatusOr<ChosenPolicy> ChoosePolicy(const EngineOptions& options, const std::optional<DeviceSpec>& device,
                                          uint64_t device_dense_bytes, PlanInputs inputs);

}  // namespace penstock
