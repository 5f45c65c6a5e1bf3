// Decides where every byte of the budget goes, before anything is loaded.
//
// The needs of every pass come first: tables, dense weights, one sequence's KV cache, the activations of a small pass,
// and the schedule's expert slots. Up to half of the rest makes the batch and the chunk larger, or more if the experts
// need less than half. The remainder keeps experts in DRAM. A device has a budget of its own, divided in the same way.
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
  int num_workers = 1;  // workers whose scratch memory is part of the activations
  int64_t min_slots = 2;
  bool holds_kv_cache = false;         // false: the KV cache lies in DRAM
  bool stages_kv = false;              // the device attends to a KV cache in DRAM
  bool host_computes_experts = false;  // the host computes some experts, besides the device
};

struct PlanInputs {
  const ModelConfig* config = nullptr;
  RowFormats row_formats;
  KvFormat kv_format = KvFormat::kF32;
  uint64_t budget_bytes = 0;
  uint64_t fixed_bytes = 0;
  uint64_t dense_bytes = 0;
  uint64_t slot_bytes = 0;                            // bytes of a slot for one expert
  int num_ranks = 1;                                  // that share the experts, and send rows to each other
  int64_t experts_of_layer = 0;                       // of this rank; 0: all
  bool cuts_experts = false;                          // each rank has a part of every expert
  const ModelConfig* heads = nullptr;                 // if ranks share the heads: the config of the most of a rank
  int num_workers = 1;                                // workers of the host
  int64_t batch_size = 0;                             // 0: planned
  int64_t prefill_chunk = 0;                          // 0: planned
  int64_t min_chunk = 0;                              // the least that is planned or asked for
  int64_t context_length = 0;                         // > 0
  int64_t pages_per_sequence = 0;                     // maximum KV pages of a sequence; 0: the whole context's
  int64_t planned_positions = 0;                      // average positions of a sequence; 0: 128 to 256
  int64_t min_slots = 2;                              // the minimum with which the schedule can run
  int64_t expert_slots = 0;                           // for which the KV cache leaves room; 0: planned
  int64_t micro_batch_size = 0;                       // in sequences; 0: all
  std::optional<DeviceInputs> device = std::nullopt;  // if present, the bytes above are only the host's
  // Memory of running sequences besides their KV entries.
  uint64_t bytes_per_sequence = 0;
  uint64_t bytes_per_position = 0;
  uint64_t bytes_per_row = 0;  // memory for each row of a pass besides activations
};

inline constexpr int64_t kMaxLogitRows = 16;

// Positions of the KV cache for each place of the batch, if the caller gives no number. A longer sequence takes the
// shares of several places while other sequences wait.
inline constexpr int64_t kPlannedPositions = 256;

// Returns the bytes of the table that guesses next tokens (EngineOptions::speculates): a power of two, at most 4 MiB
// and about a 256th of the budget.
uint64_t GuessTableBytes(uint64_t budget_bytes);

// Return the dimensions of the activations: the host's, the device's, and of those heads that a rank shares.
ActivationDims DimsOf(const MemoryPlan& plan, int num_workers);
ActivationDims DeviceDimsOf(const MemoryPlan& plan, int num_workers);
ActivationDims HeadDimsOf(const MemoryPlan& plan, int num_workers);

// Plans the memory. kResources when a budget does not suffice; the message shows the whole account and the least
// budget.
absl::StatusOr<MemoryPlan> PlanMemory(const PlanInputs& inputs);

// Returns whether steps read experts from the disk. Otherwise all experts stay in DRAM or on the device.
bool ReadsFromDisk(const MemoryPlan& plan);

// Returns how many experts are read from the disk at once: half of the slots that are not pinned. The experts in the
// other half are computed meanwhile. With more reads under way, the disk is shared by experts of which none arrives
// soon, and some disks end all their reads together. All experts are read at once if they stay.
int64_t MaxReading(const MemoryPlan& plan);

// Returns whether the slots that are not pinned are so small that processors' caches hold most of them.
bool CachesHoldSlots(const MemoryPlan& plan);

// Returns the number of pages of the plan's KV cache; of this rank's, if several share the heads.
int64_t NumKvPages(const MemoryPlan& plan);
// Returns the number of KV pages that fit in each of the device's staging buffers.
int64_t NumStagedPages(const MemoryPlan& plan, const ModelConfig& config, KvFormat kv_format);

}  // namespace penstock
