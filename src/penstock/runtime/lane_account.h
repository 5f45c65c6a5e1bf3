// Busy times and costs of lanes, and the slices that a trace shows. Both runtimes use it.
#pragma once

#include <string>
#include <vector>

#include "penstock/runtime/runtime.h"

namespace penstock {

class LaneAccount {
 public:
  void AddLane(std::string name);
  // REQUIRES: a lane's tasks are added in the order of their ends.
  void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s);

  const std::vector<LaneUsage>& usage() const { return usage_; }
  void ResetUsage();
  void SetSink(TaskSink* sink);

 private:
  std::vector<LaneUsage> usage_;
  std::vector<double> last_end_s_;  // indexed by lane
  TaskSink* sink_ = nullptr;
};

}  // namespace penstock
