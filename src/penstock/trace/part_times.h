// The time that each kind of task has taken on each lane, for live views.
#pragma once

#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/engine.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

class PartTimes : public TaskSink {
 public:
  void AddLane(LaneIdx lane, std::string_view name) override;
  void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) override;

  // Returns the totals so far.
  std::vector<PartSeconds> Totals() const;

 private:
  mutable std::mutex mutex_;  // lanes end their tasks on threads of their own
  std::vector<std::string> lanes_;
  std::map<std::pair<LaneIdx, std::string_view>, double> seconds_;
};

}  // namespace penstock
