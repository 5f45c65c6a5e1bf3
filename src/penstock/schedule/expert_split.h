// HybriMoE's intra-layer plan (section IV-B): of the experts that a layer's rows chose, which the host computes, which
// a device computes, and in which order the others' weights travel. Decided when the router has chosen, by simulating
// every lane's timeline; pure functions of what each expert takes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/policy.h"

namespace penstock {

// A row of the table of rules (include/penstock/policy.h).
struct HybridRuleTraits {
  HybridRule value;
  std::string_view name;     // "balanced"
  std::string_view summary;  // one line for people
};
std::span<const HybridRuleTraits> HybridRules();
const HybridRuleTraits& TraitsOf(HybridRule rule);

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
