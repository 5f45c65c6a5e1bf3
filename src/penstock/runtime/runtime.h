// The interface to which schedules issue their tasks. RealRuntime runs and measures them; SimulatedRuntime advances a
// virtual clock.
//
// One thread, the issuer, calls all methods. A schedule never asks which runtime it uses.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "penstock/base/bytes.h"
#include "penstock/runtime/task.h"

namespace penstock {

// A disk lane begins tasks while fewer bytes than this are under way. This is enough that the disk never waits for the
// next task, and so little that the first task to begin is the first to end.
inline constexpr uint64_t kReadAheadBytes = 32 * kMiB;
// No limit to the tasks for which a disk reads at once.
inline constexpr int64_t kAnyReading = std::numeric_limits<int64_t>::max();

// Totals of a lane since it was added or its counters were reset.
struct LaneUsage {
  std::string name;
  double busy_s = 0;  // time in which at least one task ran
  int64_t num_tasks = 0;
  TaskCost cost;  // totals of all tasks
};

// Sees every task after its end; the tasks of a lane come in the order of their ends. Slices of a lane do not overlap:
// where tasks ran at once (on a disk), each slice begins at the end of the slice before it.
class TaskSink {
 public:
  virtual ~TaskSink() = default;
  virtual void AddLane(LaneIdx lane, std::string_view name) = 0;
  // Times are seconds since the runtime began.
  virtual void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // Queues a task. A task that waits for a failed task does not run, and fails with the same status.
  virtual Event Issue(Task task) = 0;

  // Blocks until the event happens. Returns the task's own status, or that of the failed task that it waited for.
  [[nodiscard]] virtual absl::Status Wait(const Event& event) = 0;
  // Blocks until one of the events has happened and returns its index. REQUIRES: !events.empty().
  virtual size_t WaitAny(std::span<const Event> events) = 0;
  // Returns whether the event has happened, without waiting.
  virtual bool Done(const Event& event) const = 0;

  // Returns the seconds from the beginning to the end of the event's task; 0 when the event has not happened.
  virtual double Seconds(const Event& event) const = 0;

  // Ends all tasks that have not begun, with kCancelled, and waits for the tasks that have begun.
  virtual void Cancel() = 0;

  // Returns the seconds since the runtime began: virtual seconds in a simulation.
  virtual double now_s() const = 0;

  virtual std::vector<LaneUsage> Usage() const = 0;
  virtual void ResetUsage() = 0;
  // Sets the sink, or none (nullptr). `sink` must outlive the runtime or stay valid until the next call. It is told of
  // the lanes that exist and of those added later.
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
