// The split of a layer's chosen experts between processors (HybriMoE, section IV-B: intra-layer scheduling). It says
// which experts the host computes, which ones a device computes, and in which order weights travel. The split is made
// after the router has chosen, by simulating the timelines of all lanes. The functions are pure: they depend only on
// the times that are passed in.
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

// An expert that rows chose. Seconds are for all these rows together.
struct ExpertWork {
  double host_s = 0;    // to compute it on the host, with its weights in DRAM
  double device_s = 0;  // to compute it on the device, with its weights in the device's memory
  bool on_device = false;
  bool in_dram = true;  // false: on disk only, unless it is on the device
};

// Times in seconds that are the same for all experts. A lane is free from its `*_free_s` on.
struct LaneTimes {
  bool has_device = true;   // false: the host computes everything
  double host_first_s = 0;  // extra time of the host's first expert: caches are cold, its rows must be copied
  double transfer_s = 0;    // one expert, DRAM to device
  // Cost of a transfer beyond this layer: another expert must leave, and the processors get less of DRAM's bandwidth.
  // kBalanced minimizes the sum of the layer's time and the prices of its transfers.
  double transfer_price_s = 0;
  double read_s = 0;  // one expert, disk to DRAM
  double host_free_s = 0;
  double device_free_s = 0;
  double link_free_s = 0;
  double disk_free_s = 0;
};

// Experts are indices into the planned span, in the order in which each lane should take them. Every expert is computed
// once.
struct ExpertSplit {
  std::vector<int> host;
  std::vector<int> device;
  std::vector<int> transfers;  // experts of `device` that are not in its memory yet
  std::vector<int> reads;      // experts that are on disk only
  double seconds = 0;          // until the last expert has been computed
};

// Splits the experts of a layer. Takes microseconds: less than 20 for 64 experts.
ExpertSplit SplitExperts(HybridRule rule, std::span<const ExpertWork> experts, const LaneTimes& times);

// Returns the seconds until the last expert of a split has been computed, if each lane takes experts in the split's
// order.
double SecondsOf(const ExpertSplit& split, std::span<const ExpertWork> experts, const LaneTimes& times);

}  // namespace penstock
