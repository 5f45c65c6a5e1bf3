// The stores of a machine's experts: one in DRAM, filled from disk, and with a device one in its memory, filled from
// DRAM.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/memory/eviction.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/memory/expert_store.h"
#include "penstock/policy.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

// Slots for experts in a tier.
struct ExpertRoom {
  int64_t num_slots = 0;
  int64_t num_pinned = 0;  // only used with Eviction::kStatic
};

struct ExpertTiers {
  struct Device {
    ExpertRoom room;
    LaneIdx finish_lane = 0;          // lane of the host that checks reads from the disk
    LaneIdx dram_to_pinned_lane = 0;  // used if the device's copies cannot read DRAM's slots
    LaneIdx dram_to_device_lane = 0;
    bool reads_dram = false;  // in a simulation: the device's copies can read DRAM's slots
    // Null in a simulation:
    Memory* memory = nullptr;         // memory of the device
    Memory* pinned_memory = nullptr;  // page-locked memory
    Copier* copier = nullptr;         // copies to the device
    // The experts that fill the slots before any is wanted: none, equally many of each layer, or those of the first
    // layers.
    enum class Preload : uint8_t { kNone, kEvenly, kFirstLayers } preload = Preload::kNone;
  };
  struct Args {
    const ExpertLayouts& layouts;  // outlives the stores, as the runtime does
    Runtime& runtime;
    LaneIdx disk_lane = 0;
    ExpertRoom dram;
    std::optional<Device> device = std::nullopt;
    Eviction eviction = Eviction::kStatic;  // eviction policy of the tier that computes the layers
    PinnedExperts pinned = PinnedExperts::kEvenly;
    // [num_experts]: the most wanted experts are pinned or preloaded. Empty: as `pinned` says.
    std::span<const double> popularity = {};
    // Null in a simulation, which has no bytes:
    Memory* memory = nullptr;    // memory of DRAM's slots
    ThreadPool* pool = nullptr;  // finishes experts in DRAM
  };
  // If all experts fit in DRAM, they are read before Create() returns. A model without experts has no stores.
  static absl::StatusOr<ExpertTiers> Create(const Args& args);

  // Returns the store of the tier that computes the layers.
  ExpertStore* compute() const { return device != nullptr ? device.get() : dram.get(); }
  // Returns the store in DRAM when a device computes the layers; otherwise nullptr.
  ExpertStore* beside_device() const { return device != nullptr ? dram.get() : nullptr; }

  std::unique_ptr<ExpertStore> dram;
  std::unique_ptr<ExpertStore> device;  // holds leases on experts in DRAM, so it is destroyed first
};

}  // namespace penstock
