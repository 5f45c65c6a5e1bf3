#include "penstock/trace/part_times.h"

#include <algorithm>

namespace penstock {

void PartTimes::AddLane(LaneIdx lane, std::string_view name) {
  const std::lock_guard lock(mutex_);
  lanes_.resize(std::max(lanes_.size(), static_cast<size_t>(lane) + 1));
  lanes_[lane] = name;
}

void PartTimes::AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost&, double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  seconds_[{lane, label.name}] += end_s - begin_s;
}

std::vector<PartSeconds> PartTimes::Totals() const {
  const std::lock_guard lock(mutex_);
  std::vector<PartSeconds> totals;
  for (const auto& [part, seconds] : seconds_) {
    totals.push_back({.lane = lanes_[part.first], .part = std::string(part.second), .seconds = seconds});
  }
  return totals;
}

}  // namespace penstock
