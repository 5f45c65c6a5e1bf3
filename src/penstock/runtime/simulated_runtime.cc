#include "penstock/runtime/simulated_runtime.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"

namespace penstock {

struct SimulatedRuntime::TaskEnd : Event::State {
  TaskEnd(double begin, double end) : begin_s(begin), end_s(end) {}
  double begin_s, end_s;
};

// Tasks that are ready together come in bursts: the first of a burst will have as many beside it as the last of the
// burst before.
int64_t SimulatedRuntime::Lane::NumBeside(uint64_t bytes, double ready_s) {
  constexpr size_t kBurst = 8;
  while (!ends_s.empty() && ends_s.front() <= ready_s) ends_s.pop_front();
  nums_before.push_back(static_cast<int64_t>(ends_s.size()));
  if (nums_before.size() > kBurst) nums_before.pop_front();
  // So few large reads are under way that the first one ends first.
  const auto max_ahead = static_cast<int64_t>(kReadAheadBytes / std::max<uint64_t>(1, bytes));
  const int64_t max_beside = std::min(max_ahead, max_reading - 1);
  return std::min(max_beside, *std::max_element(nums_before.begin(), nums_before.end()));
}

double SimulatedRuntime::EndOf(const Event& event) {
  return event.state_ == nullptr ? 0 : static_cast<const TaskEnd&>(*event.state_).end_s;
}

LaneIdx SimulatedRuntime::AddLane(std::string name, Duration duration, Duration delay, int64_t max_reading) {
  account_.AddLane(std::move(name));
  Lane& lane = lanes_.emplace_back();
  lane.duration = std::move(duration);
  lane.delay = std::move(delay);
  lane.max_reading = max_reading;
  return static_cast<LaneIdx>(lanes_.size() - 1);
}

void SimulatedRuntime::Interrupt(LaneIdx lane, LaneIdx disk_lane, double seconds) {
  lanes_[lane].interrupted_by = disk_lane;
  lanes_[lane].interrupt_s = seconds;
  lanes_[disk_lane].interrupts = true;
}

double SimulatedRuntime::Interruptions(const Lane& lane, double begin_s, double end_s) {
  if (lane.interrupted_by < 0) return 0;
  std::deque<double>& ends = lanes_[lane.interrupted_by].interruptions_s;
  double more_s = 0;
  for (; !ends.empty() && ends.front() <= end_s + more_s; ends.pop_front()) {
    if (ends.front() > begin_s) more_s += lane.interrupt_s;
  }
  return more_s;
}

Event SimulatedRuntime::Issue(Task task) {
  PENSTOCK_CHECK(task.lane >= 0 && task.lane < static_cast<LaneIdx>(lanes_.size()));
  Lane& lane = lanes_[task.lane];
  double ready_s = now_s_;
  for (const auto* events : {&task.after, &task.after_end}) {
    for (const Event& event : *events) ready_s = std::max(ready_s, EndOf(event));
  }
  const double last_end_s = lane.end_s, start_s = std::max(lane.free_s, ready_s);
  double duration_s = lane.duration(task.cost);
  duration_s += Interruptions(lane, start_s, start_s + duration_s);
  lane.free_s = start_s + duration_s;
  lane.end_s = lane.free_s;
  if (lane.delay) {
    const int64_t num_beside = lane.NumBeside(task.cost.link_bytes, ready_s);
    lane.end_s = std::max(
        {lane.end_s, last_end_s, ready_s + static_cast<double>(num_beside + 1) * duration_s + lane.delay(task.cost)});
    lane.ends_s.push_back(lane.end_s);
  }
  if (lane.interrupts) lane.interruptions_s.push_back(lane.end_s);
  const double begin_s = std::max(last_end_s, lane.end_s - duration_s);
  account_.AddTask(task.lane, task.label, task.cost, begin_s, lane.end_s);
  return Event(std::make_shared<TaskEnd>(begin_s, lane.end_s));
}

SimulatedRuntime::Times SimulatedRuntime::TimesOf(const Event& event) {
  if (event.state_ == nullptr) return {};
  const auto& task = static_cast<const TaskEnd&>(*event.state_);
  return {task.begin_s, task.end_s};
}

Event SimulatedRuntime::IssueArrival(Task task, const Times& sent) {
  Lane& lane = lanes_[task.lane];
  double begin_s = std::max(lane.end_s, sent.begin_s);
  for (const Event& event : task.after) begin_s = std::max(begin_s, EndOf(event));
  lane.free_s = lane.end_s = std::max(begin_s + lane.duration(task.cost), sent.end_s);
  account_.AddTask(task.lane, task.label, task.cost, begin_s, lane.end_s);
  return Event(std::make_shared<TaskEnd>(begin_s, lane.end_s));
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
  for (const Lane& lane : lanes_) now_s_ = std::max(now_s_, lane.end_s);
}

}  // namespace penstock
