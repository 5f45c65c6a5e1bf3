// Where a machine's experts are kept: in DRAM, filled from disk, and with a device in its memory, filled from DRAM.
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
#include "penstock/runtime/runtime.h"

namespace penstock {

// Room for experts in a tier.
struct ExpertRoom {
  int64_t num_slots = 0;
  int64_t num_pinned = 0;  // for Eviction::kStatic
};

struct ExpertTiers {
  struct Device {
    ExpertRoom room;
    LaneIdx finish_lane = 0;          // of the host, checks what the disk brought
    LaneIdx dram_to_pinned_lane = 0;  // where the device's copies cannot read DRAM's slots
    LaneIdx dram_to_device_lane = 0;
    bool reads_dram = false;  // in a simulation whether they can
    // Nothing in a simulation:
    Memory* memory = nullptr;         // the device's
    Memory* pinned_memory = nullptr;  // page-locked
    Copier* copier = nullptr;         // to the device
    // What fills its slots before anything is wanted: nothing, as many experts of each layer, or those of the first
    // layers.
    enum class Preload : uint8_t { kNone, kEvenly, kFirstLayers } preload = Preload::kNone;
  };
  struct Args {
    const ExpertLayouts& layouts;  // outlives the stores, like the runtime
    Runtime& runtime;
    LaneIdx disk_lane = 0;
    ExpertRoom dram;
    std::optional<Device> device = std::nullopt;
    Eviction eviction = Eviction::kStatic;  // where the layers are computed
    // [num_experts]: what is pinned or comes there first is what is wanted most often; empty: as many of each layer.
    std::span<const double> popularity = {};
    // Nothing in a simulation, which has no bytes:
    Memory* memory = nullptr;    // of DRAM's slots
    ThreadPool* pool = nullptr;  // finishes experts in DRAM
  };
  // With room for all in DRAM the disk is done before it returns. A model without experts has no stores.
  static absl::StatusOr<ExpertTiers> Create(const Args& args);

  // Where the layers are computed.
  ExpertStore* compute() const { return device != nullptr ? device.get() : dram.get(); }
  // In DRAM, where a device computes the layers; else null.
  ExpertStore* beside_device() const { return device != nullptr ? dram.get() : nullptr; }

  std::unique_ptr<ExpertStore> dram;
  std::unique_ptr<ExpertStore> device;  // holds leases of those in DRAM: gone first
};

}  // namespace penstock
