// Where schedules issue their tasks: RealRuntime runs them and measures, SimulatedRuntime advances a virtual clock.
//
// One thread, the issuer, calls all methods. A schedule never asks which runtime it is on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "penstock/runtime/task.h"

namespace penstock {

// What a lane has done since it was added or the counters were reset.
struct LaneUsage {
  std::string name;
  double busy_s = 0;  // time in which at least one task ran
  int64_t num_tasks = 0;
  TaskCost cost;  // of all tasks together
};

// Sees every task when it has ended, lane by lane in the order of their ends. Lanes' slices do not overlap: of tasks
// that ran at once (on a disk) each is shown from the end of the one before it.
class TaskSink {
 public:
  virtual ~TaskSink() = default;
  virtual void AddLane(LaneIdx lane, std::string_view name) = 0;
  // Seconds since the runtime began.
  virtual void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // Queues a task. A task that waits for one that failed does not run and fails with the same status.
  virtual Event Issue(Task task) = 0;

  // Blocks until the event happens; the task's own status, or that of the failed task that it waited for.
  [[nodiscard]] virtual absl::Status Wait(const Event& event) = 0;
  // Blocks until one of the events has happened; the index of one that has. REQUIRES: !events.empty().
  virtual size_t WaitAny(std::span<const Event> events) = 0;
  // Whether the event has happened, without waiting.
  virtual bool Done(const Event& event) const = 0;

  // From the beginning of the event's task to its end; 0 when it has not happened.
  virtual double Seconds(const Event& event) const = 0;

  // Ends all tasks that have not begun with kCancelled and waits for those that have.
  virtual void Cancel() = 0;

  // Since the runtime began; virtual in a simulation.
  virtual double now_s() const = 0;

  virtual std::vector<LaneUsage> Usage() const = 0;
  virtual void ResetUsage() = 0;
  // Optional; outlives the runtime or the next call. Told of the lanes that exist and of those to come.
  virtual void SetSink(TaskSink* sink) = 0;

  absl::Status WaitAll(std::span<const Event> events) {
    absl::Status first;
    for (const Event& event : events) {
      absl::Status status = Wait(event);
      if (first.ok()) first = std::move(status);
    }
    return first;
  }
};

}  // namespace penstock
