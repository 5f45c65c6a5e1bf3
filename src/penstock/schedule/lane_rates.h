// How long tasks take on each lane, for simulations and for schedules that plan.
#pragma once

#include "penstock/runtime/runtime.h"
#include "penstock/runtime/task.h"

namespace penstock {

// Seconds that a task of some cost takes on each lane. The lanes of a device count only if there is a device.
struct LaneRates {
  using Duration = TaskDuration;
  Duration host_compute;
  Duration disk_to_dram;
  Duration disk_delay = {};  // what a read takes besides, while others go on: waking threads, latency; empty: nothing
  int64_t max_reading = kAnyReading;  // reads under way together
  double read_cpu_s = 0;  // by which each read delays what the host computes: all CPUs compute, and one begins the read
  Duration device_compute = {};
  Duration dram_to_pinned = {};  // into page-locked memory
  Duration dram_to_device = {};
  Duration device_to_dram = {};
};

// Returns the duration of transfers over a link of this bandwidth.
inline LaneRates::Duration TransferTime(double bytes_per_s) {
  return [=](const TaskCost& cost) { return static_cast<double>(cost.link_bytes) / bytes_per_s; };
}

// The bandwidth of a link: first a guess, soon what its transfers took. Later ones count more.
class LearnedBandwidth {
 public:
  explicit LearnedBandwidth(double guess_bytes_per_s) : bytes_(kGuessCounts * guess_bytes_per_s) {}

  // Adds transfers that kept the link busy for `busy_s`.
  void Learn(uint64_t bytes, double busy_s) {
    if (bytes == 0 || busy_s <= 0) return;
    bytes_ += static_cast<double>(bytes);
    busy_s_ += busy_s;
    if (busy_s_ < kRemembers) return;
    bytes_ /= 2;
    busy_s_ /= 2;
  }
  double bytes_per_s() const { return bytes_ / busy_s_; }

 private:
  static constexpr double kGuessCounts = 0.005;  // seconds of transfers that outweigh the guess
  static constexpr double kRemembers = 2;        // seconds of transfers after which half of them are forgotten
  double bytes_;
  double busy_s_ = kGuessCounts;
};

}  // namespace penstock
