// How long tasks take on each lane, for simulations and for schedules that plan.
#pragma once

#include "penstock/runtime/task.h"

namespace penstock {

// Seconds that a task of some cost takes on each lane. The lanes of a device count only if there is a device.
struct LaneRates {
  using Duration = TaskDuration;
  Duration host_compute;
  Duration disk_to_dram;
  Duration disk_delay = {};  // what a read takes besides, while others go on: waking threads, latency; empty: nothing
  Duration device_compute = {};
  Duration dram_to_pinned = {};  // into page-locked memory
  Duration dram_to_device = {};
  Duration device_to_dram = {};
};

// Returns the duration of transfers over a link of this bandwidth.
inline LaneRates::Duration TransferTime(double bytes_per_s) {
  return [=](const TaskCost& cost) { return static_cast<double>(cost.link_bytes) / bytes_per_s; };
}

}  // namespace penstock
