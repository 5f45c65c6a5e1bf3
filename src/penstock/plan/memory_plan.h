// Where every byte of the budget goes, decided before anything is loaded.
//
// What every pass needs is placed first: tables, dense weights, one sequence's KV cache, the activations of a small
// pass, and the expert slots that the schedule needs. What is left makes the batch larger (up to half of it) and keeps
// experts in DRAM. A device has a budget of its own, divided in the same way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/model/model_config.h"
#include "penstock/ops/activations.h"

namespace penstock {

struct DeviceInputs {
  std::string name;
  uint64_t budget_bytes = 0;
  uint64_t dense_bytes = 0;
  uint64_t fixed_bytes = 0;
  int num_workers = 1;  // whose scratch memory its activations have
  int64_t least_slots = 2;
  bool holds_kv_cache = false;         // else it lies in DRAM
  bool stages_kv = false;              // attends to a KV cache in DRAM
  bool host_computes_experts = false;  // some of them, beside the device
};

struct PlanInputs {
  const ModelConfig* config = nullptr;
  RowFormats row_formats;
  KvFormat kv_format = KvFormat::kF32;
  uint64_t budget_bytes = 0;
  uint64_t fixed_bytes = 0;
  uint64_t dense_bytes = 0;
  uint64_t slot_bytes = 0;                            // of one expert
  int num_workers = 1;                                // of the host
  int64_t batch_size = 0;                             // 0: planned
  int64_t prefill_chunk = 0;                          // 0: planned
  int64_t context_length = 0;                         // > 0
  int64_t pages_per_sequence = 0;                     // the most KV pages that one needs; 0: for the whole context
  int64_t planned_positions = 0;                      // of a sequence, on the average; 0: 256
  int64_t least_slots = 2;                            // without which the schedule cannot run
  int64_t micro_batch_size = 0;                       // sequences; 0: all
  std::optional<DeviceInputs> device = std::nullopt;  // then the bytes above are the host's alone
  // What running sequences hold besides their KV entries.
  uint64_t bytes_per_sequence = 0;
  uint64_t bytes_per_position = 0;
};

inline constexpr int64_t kMaxLogitRows = 16;

// Of the host's activations, and of the device's.
ActivationDims DimsOf(const MemoryPlan& plan, int num_workers);
ActivationDims DeviceDimsOf(const MemoryPlan& plan, int num_workers);

// kResources with the whole account and the least budget when `budget_bytes` does not suffice.
absl::StatusOr<MemoryPlan> PlanMemory(const PlanInputs& inputs);

// Whether steps read experts from the disk; else they all stay in DRAM or on the device.
bool ReadsFromDisk(const MemoryPlan& plan);

// Pages of the plan's KV cache.
int64_t NumKvPages(const MemoryPlan& plan, const ModelConfig& config, KvFormat kv_format);
// KV pages that a device has room for in each staging buffer.
int64_t NumStagedPages(const MemoryPlan& plan, const ModelConfig& config, KvFormat kv_format);

}  // namespace penstock
