#include "penstock/runtime/simulated_runtime.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"

namespace penstock {

struct SimulatedRuntime::TaskEnd : Event::State {
  TaskEnd(double begin, double end) : begin_s(begin), end_s(end) {}
  double begin_s, end_s;
};

double SimulatedRuntime::EndOf(const Event& event) {
  return event.state_ == nullptr ? 0 : static_cast<const TaskEnd&>(*event.state_).end_s;
}

LaneIdx SimulatedRuntime::AddLane(std::string name, Duration duration) {
  account_.AddLane(std::move(name));
  lanes_.push_back({.duration = std::move(duration)});
  return static_cast<LaneIdx>(lanes_.size() - 1);
}

Event SimulatedRuntime::Issue(Task task) {
  PENSTOCK_CHECK(task.lane >= 0 && task.lane < static_cast<LaneIdx>(lanes_.size()));
  Lane& lane = lanes_[task.lane];
  double start_s = std::max(lane.free_s, now_s_);
  for (const auto* events : {&task.after, &task.after_end}) {
    for (const Event& event : *events) start_s = std::max(start_s, EndOf(event));
  }
  lane.free_s = start_s + lane.duration(task.cost);
  account_.AddTask(task.lane, task.label, task.cost, start_s, lane.free_s);
  return Event(std::make_shared<TaskEnd>(start_s, lane.free_s));
}

absl::Status SimulatedRuntime::Wait(const Event& event) {
  now_s_ = std::max(now_s_, EndOf(event));
  return absl::OkStatus();
}

size_t SimulatedRuntime::WaitAny(std::span<const Event> events) {
  PENSTOCK_CHECK(!events.empty());
  const auto first = std::min_element(events.begin(), events.end(),
                                      [](const Event& a, const Event& b) { return EndOf(a) < EndOf(b); });
  now_s_ = std::max(now_s_, EndOf(*first));
  return static_cast<size_t>(first - events.begin());
}

bool SimulatedRuntime::Done(const Event& event) const { return EndOf(event) <= now_s_; }

double SimulatedRuntime::Seconds(const Event& event) const {
  if (event.state_ == nullptr || !Done(event)) return 0;
  const auto& task = static_cast<const TaskEnd&>(*event.state_);
  return task.end_s - task.begin_s;
}

void SimulatedRuntime::Cancel() {
  for (const Lane& lane : lanes_) now_s_ = std::max(now_s_, lane.free_s);
}

}  // namespace penstock
