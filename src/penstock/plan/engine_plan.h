// What is decided of an engine before a weight is read: formats, threads, how experts lie, and the policy with its
// account of all memory. From a model that is there or one that is only described.
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
#include "penstock/plan/formats.h"
#include "penstock/plan/policy.h"

namespace penstock {

struct EngineModel {
  const ModelConfig& config;
  const WeightMap& weights;                // outlives the plan, like the files
  std::span<const OpenedFile> files = {};  // of the weights; none where nothing will be read
  uint64_t memory_bytes = 0;               // that tokenizer and catalogue take
};

// What the machine gives.
struct EngineRoom {
  int num_threads = 1;  // of the host
  std::optional<DeviceSpec> device;
  uint64_t budget_bytes = 0;
  CallerMemory caller = {};
};

struct EnginePlan {
  Formats formats;
  ModelFormats model_formats;
  std::shared_ptr<const ExpertLayouts> layouts;  // of the model in formats.dtype
  ChosenPolicy policy;
  std::vector<double> popularity;  // ExpertTiers::Args
};

// The budget that was asked for, or three quarters of what this machine has free; an emulated device takes its memory
// from the same DRAM. kResources when that is more than there is.
absl::StatusOr<uint64_t> ChooseBudget(uint64_t asked_bytes, uint64_t emulated_bytes);

// A GPU whose memory nobody limits: what is free of it but a tenth.
uint64_t ChooseDeviceBudget(const EngineOptions& options, const std::optional<DeviceSpec>& device);

// This machine's, as the options want it. kUsage for a device that is not understood, kResources as ChooseBudget().
absl::StatusOr<EngineRoom> RoomOf(const EngineOptions& options);

// Longest prompt with its answer. kUsage when it is more than the model's.
absl::StatusOr<int64_t> ChooseContextLength(const EngineOptions& options, const ModelConfig& config);

// kUsage for options that do not go together, kResources when a budget does not suffice, kIo and kInput of a
// correlation table by which experts are pinned. `layouts`: of another plan for the same model and dtype, which saves
// time.
absl::StatusOr<EnginePlan> PlanEngine(const EngineOptions& options, const EngineModel& model, const EngineRoom& room,
                                      std::shared_ptr<const ExpertLayouts> layouts = nullptr);

}  // namespace penstock
