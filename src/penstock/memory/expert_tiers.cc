#include "penstock/memory/expert_tiers.h"

#include <utility>
#include <vector>

#include "penstock/base/status.h"

namespace penstock {

absl::StatusOr<ExpertTiers> ExpertTiers::Create(const Args& args) {
  ExpertTiers tiers;
  if (args.layouts.num_experts() == 0) return tiers;
  const bool has_device = args.device.has_value();
  const auto pin = [&](int64_t count, const ExpertSet& taken) {
    return args.pinned == PinnedExperts::kEvenly ? PinEvenly(args.layouts, count, taken)
                                                 : PinFirst(args.layouts, count, taken);
  };
  // Chooses experts for the tier that computes the layers.
  const auto choose = [&](int64_t count) {
    return args.popularity.empty() ? pin(count, {}) : PinMostPopular(args.popularity, count);
  };
  const auto make_store = [&](std::unique_ptr<ExpertSource> source, Memory* memory, const ExpertRoom& room,
                              Eviction eviction, ExpertSet pinned) {
    return ExpertStore::Create({.layouts = args.layouts,
                                .runtime = args.runtime,
                                .source = std::move(source),
                                .memory = memory,
                                .num_slots = room.num_slots,
                                .eviction = eviction,
                                .pinned = std::move(pinned),
                                .num_workers = args.pool == nullptr ? 1 : args.pool->num_workers()});
  };
  // DRAM need not keep experts that a device keeps.
  PENSTOCK_ASSIGN_OR_RETURN(
      tiers.dram, make_store(std::make_unique<DiskSource>(args.layouts, args.runtime, args.disk_lane), args.memory,
                             args.dram, has_device ? Eviction::kStatic : args.eviction,
                             has_device ? pin(args.dram.num_pinned, choose(args.device->room.num_pinned))
                                        : choose(args.dram.num_pinned)));
  if (args.dram.num_slots == args.layouts.num_experts()) {
    PENSTOCK_RETURN_IF_ERROR(tiers.dram->Preload(args.pool));
  }
  tiers.dram->ResetCounters();
  if (!has_device || args.device->room.num_slots == 0) return tiers;
  const Device& device = *args.device;
  const bool reads_dram = device.copier == nullptr ? device.reads_dram : device.copier->CanRead(tiers.dram->bytes());
  PENSTOCK_ASSIGN_OR_RETURN(
      std::unique_ptr<DramSource> source,
      DramSource::Create({.layouts = args.layouts,
                          .runtime = args.runtime,
                          .dram = *tiers.dram,
                          .finish_lane = device.finish_lane,
                          .dram_to_pinned_lane = reads_dram ? std::nullopt : std::optional(device.dram_to_pinned_lane),
                          .dram_to_device_lane = device.dram_to_device_lane,
                          .pool = args.pool,
                          .pinned_memory = device.pinned_memory,
                          .copier = device.copier}));
  PENSTOCK_ASSIGN_OR_RETURN(tiers.device, make_store(std::move(source), device.memory, device.room, args.eviction,
                                                     choose(device.room.num_pinned)));
  if (device.preload != Device::Preload::kNone) {
    const bool evenly = device.preload == Device::Preload::kEvenly;
    // An expert that cannot be read now is read again when it is wanted.
    (void)tiers.device->Preload(args.pool, evenly ? choose(device.room.num_slots) : ExpertSet());
  }
  tiers.device->ResetCounters();
  tiers.dram->ResetCounters();
  return tiers;
}

}  // namespace penstock
