// Several sinks as one: every call goes to each of them, in the order given.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "penstock/runtime/runtime.h"

namespace penstock {

class TaskSinks : public TaskSink {
 public:
  // `sinks` must outlive this object. It is thread-safe only if all of them are.
  explicit TaskSinks(std::vector<TaskSink*> sinks) : sinks_(std::move(sinks)) {}

  void AddLane(LaneIdx lane, std::string_view name) override {
    for (TaskSink* sink : sinks_) sink->AddLane(lane, name);
  }
  void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) override {
    for (TaskSink* sink : sinks_) sink->AddTask(lane, label, cost, begin_s, end_s);
  }

 private:
  const std::vector<TaskSink*> sinks_;
};

}  // namespace penstock
