// Decides how an engine runs before a weight is read: formats, threads, layout of the experts, and the policy with its
// account of all memory. The model may be a real or a described one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/device/device_spec.h"
#include "penstock/engine.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/parallel/rank_split.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/policy.h"

namespace penstock {

struct EngineModel {
  const ModelConfig& config;
  const WeightMap& weights;                // outlives the plan, like the files
  std::span<const OpenedFile> files = {};  // files of the weights; empty if nothing will be read
  uint64_t memory_bytes = 0;               // bytes of tokenizer and catalogue
  std::string_view fingerprint = {};       // empty: unknown
};

// The resources that an engine may use.
struct EngineRoom {
  int num_threads = 1;  // threads of the host
  std::optional<DeviceSpec> device;
  uint64_t budget_bytes = 0;
  CallerMemory caller = {};
  RankSplit ranks = {};  // this engine's share of the experts; the options say how it is divided
};

struct EnginePlan {
  Formats formats;
  ModelFormats model_formats;
  std::shared_ptr<const ExpertLayouts> layouts;  // layouts of the model's experts in formats.dtype
  ChosenPolicy policy;
  std::vector<double> popularity;  // see ExpertTiers::Args
};

// Returns the budget that the options set, or their share of this machine's free memory. An emulated device takes
// `emulated_bytes` of the same DRAM. kResources when the two together exceed the machine's memory.
absl::StatusOr<uint64_t> ChooseBudget(const EngineOptions& options, uint64_t emulated_bytes);

inline constexpr double kDefaultMemoryShare = 0.75;  // of the free memory
inline constexpr double kDefaultDeviceShare = 0.9;

// Returns the share of `bytes`; the default when `share` is 0.
uint64_t ShareOf(uint64_t bytes, double share, double default_share);

// Returns the device's budget that the options set, or their share of a GPU's free memory.
uint64_t ChooseDeviceBudget(const EngineOptions& options, const std::optional<DeviceSpec>& device);

// Returns the device, threads and budget that the options ask for on this machine. kUsage for a device that cannot be
// parsed. kResources for a device that is missing, and as in ChooseBudget().
absl::StatusOr<EngineRoom> RoomOf(const EngineOptions& options);

// Returns the maximum length of a prompt with its answer, in tokens. kUsage when it exceeds the model's maximum and
// tokens see all others.
absl::StatusOr<int64_t> ChooseContextLength(const EngineOptions& options, const ModelConfig& config);

// Says how an attention window was rounded to KV pages, and what a long context means. Says nothing without a window.
void LogWindow(const KvWindow& window, int64_t context_length, const ModelConfig& config);

// Plans an engine. `layouts` may be those of another plan for the same model, dtype and division among ranks, which
// saves time. kUsage for options that contradict each other, kResources when a budget does not suffice. kIo or kInput
// when a file that the policy names cannot be read or is invalid: a correlation table, or a routing trace.
absl::StatusOr<EnginePlan> PlanEngine(const EngineOptions& options, const EngineModel& model, const EngineRoom& room,
                                      std::shared_ptr<const ExpertLayouts> layouts = nullptr);

}  // namespace penstock
