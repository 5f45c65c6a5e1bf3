// HybriMoE's intra-layer plan (section IV-B): of the experts that a layer's rows chose, which the host computes, which
// a device computes, and in which order the others' weights travel. Decided when the router has chosen, by simulating
// every lane's timeline; pure functions of what each expert takes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// How experts are divided between the processors.
enum class HybridRule : uint8_t {
  // The least time, with the transfers' prices, of all plans in which the device takes the heaviest and the host the
  // lightest, of those in the device's memory as of the others. The optimum where the device's time does not depend on
  // the rows.
  kBalanced,
  // HybriMoE's paper: the timeline (host, device, link) that would end its next operation first takes it, until none is
  // left. Host: what the device lacks, lightest first, then what it has from the light end. Device: what is there,
  // heaviest first. Link: what the device lacks, heaviest first.
  kTimelines,
  // HybriMoE's public code: one list, what the device has before what it lacks, each by falling load; the device takes
  // from the front, through the link where it must, and the host from the back, whoever would end first.
  kTwoEnded,
  // Fiddler: what the device lacks is computed where that takes less time, with its transfer, each for itself.
  kThreshold,
  // KTransformers: the device computes what it has, the host the rest; nothing travels.
  kFixed,
};
inline constexpr HybridRule kAllHybridRules[] = {HybridRule::kBalanced, HybridRule::kTimelines, HybridRule::kTwoEnded,
                                                 HybridRule::kThreshold, HybridRule::kFixed};
std::string_view HybridRuleName(HybridRule rule);  // "balanced"
// kUsage names those that there are.
absl::StatusOr<HybridRule> ParseHybridRule(std::string_view name);

// An expert that rows chose. Seconds are for all of these rows together.
struct ExpertWork {
  double host_s = 0;    // to compute it there once its weights are in DRAM
  double device_s = 0;  // once they are in the device's memory
  bool on_device = false;
  bool in_dram = true;  // else on disk only, unless it is on the device
};

// What does not depend on the expert. Seconds; lanes are free from `*_free_s` on.
struct LaneTimes {
  bool has_device = true;   // else the host computes everything
  double host_first_s = 0;  // that the host's first expert takes longer: its caches are cold, its rows have to come
  double transfer_s = 0;    // DRAM to device
  // What a transfer costs beyond this layer: another expert has to leave, and the processors get less of DRAM.
  // kBalanced has the least sum of its time and its transfers' prices.
  double transfer_price_s = 0;
  double read_s = 0;  // disk to DRAM
  double host_free_s = 0;
  double device_free_s = 0;
  double link_free_s = 0;
  double disk_free_s = 0;
};

// Places in the span that was planned, in the order in which each lane should take them. Every expert is computed once.
struct LayerPlan {
  std::vector<int> host;
  std::vector<int> device;
  std::vector<int> transfers;  // those of `device` that are not there yet
  std::vector<int> reads;      // those that are on disk only
  double seconds = 0;          // until the last of them has been computed
};

// Takes microseconds: 64 experts in less than 20.
LayerPlan PlanLayer(HybridRule rule, std::span<const ExpertWork> experts, const LaneTimes& times);

// Until the last expert of a plan has been computed, when each lane takes them in its order.
double SecondsOf(const LayerPlan& plan, std::span<const ExpertWork> experts, const LaneTimes& times);

}  // namespace penstock
