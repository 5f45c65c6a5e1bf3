#include "penstock/plan/hrm.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {

Hrm::Hrm(std::vector<HrmLevel> levels) : levels_(std::move(levels)) { PENSTOCK_CHECK(!levels_.empty()); }

absl::StatusOr<Hrm> Hrm::Of(const Hardware& hardware, Arithmetic arithmetic) {
  std::vector<HrmLevel> levels;
  for (const std::string name : {"device", "dram"}) {
    const MemoryTier* tier = hardware.FindTier(name);
    if (tier == nullptr) continue;
    HrmLevel level{.name = name, .bytes_per_s = tier->ReadRate()};
    for (const Processor& processor : hardware.processors) {
      if (processor.tier != name) continue;
      level.ops_per_s = processor.PeakOps(arithmetic) * processor.compute_efficiency;
      level.bytes_per_s = tier->ReadRate() * processor.memory_efficiency;
    }
    if (level.ops_per_s <= 0 || level.bytes_per_s <= 0) {
      return UsageError("the hardware has no peaks of the processor, or no rates of the memory, of its tier '{}'",
                        name);
    }
    if (!levels.empty()) {
      const Link* link = hardware.FindLink(name + "_to_" + levels.back().name);
      if (link == nullptr) return UsageError("the hardware has no link {}_to_{}", name, levels.back().name);
      level.link_bytes_per_s = link->bytes_per_s;
    }
    levels.push_back(std::move(level));
  }
  if (levels.empty()) return UsageError("the hardware has neither DRAM nor a device");
  if (const Link* link = hardware.FindLink("disk_to_dram")) {
    levels.push_back({.name = "disk", .bytes_per_s = link->bytes_per_s, .link_bytes_per_s = link->bytes_per_s});
  }
  return Hrm(std::move(levels));
}

double Hrm::LocalRoof(size_t level, double ops_per_byte) const {
  return std::min(levels_[level].ops_per_s, levels_[level].bytes_per_s * ops_per_byte);
}

double Hrm::LinkRate(size_t from, size_t to) const {
  PENSTOCK_CHECK(to < from && from < levels_.size());
  double rate = levels_[from].link_bytes_per_s;
  for (size_t level = to + 1; level < from; ++level) rate = std::min(rate, levels_[level].link_bytes_per_s);
  return rate;
}

double Hrm::Roof(size_t to, double ops_per_byte_to, size_t from, double ops_per_byte_from) const {
  return std::min(LocalRoof(to, ops_per_byte_to), LinkRate(from, to) * ops_per_byte_from);
}

double Hrm::FirstTurningPoint(size_t to, size_t from) const {
  // Solves min(P, B * I) = B_link * I at `from`. If the memory of `from` is no faster than the link, only I = 0 solves
  // it.
  const double link = LinkRate(from, to);
  return levels_[from].bytes_per_s > link ? levels_[from].ops_per_s / link : 0;
}

double Hrm::SecondTurningPoint(size_t to, double ops_per_byte_to, size_t from) const {
  return LocalRoof(to, ops_per_byte_to) / LinkRate(from, to);
}

double Hrm::BalancePoint(size_t to, double ops_per_byte_to, size_t from) const {
  return levels_[to].bytes_per_s * ops_per_byte_to / LinkRate(from, to);
}

}  // namespace penstock
