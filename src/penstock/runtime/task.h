// What a schedule issues: tasks on lanes, ordered by events.
//
// A lane is an in-order queue of one resource: a processor, one direction of a link, a disk. A task runs on its lane
// when the tasks issued there before it have begun (on a disk) or ended (elsewhere) and the events that it waits for
// have happened. Its event happens when it has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "penstock/runtime/disk_reader.h"

namespace penstock {

using LaneIdx = int;

// What a task is, for traces. -1: does not apply.
struct TaskLabel {
  std::string_view name;  // of static storage: "attention"
  int64_t layer_idx = -1;
  int64_t expert_idx = -1;
  int64_t micro_batch_idx = -1;
};

// What a task takes of its lane.
struct TaskCost {
  double flops = 0;           // multiplications and additions
  uint64_t memory_bytes = 0;  // that a processor reads from its own tier or writes there
  uint64_t kv_bytes = 0;      // of these: of the KV cache
  double kv_flops = 0;        // of flops: with KV entries
  uint64_t link_bytes = 0;    // that cross the lane's link
};

// Seconds that a task of some cost takes on a lane.
using TaskDuration = std::function<double(const TaskCost&)>;

// The end of a task. Cheap to copy; the default one has happened. Only a Runtime looks inside.
class Event {
 public:
  Event() = default;

 private:
  friend class RealRuntime;
  friend class SimulatedRuntime;
  struct State {  // each runtime derives its own
    virtual ~State() = default;
  };
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

// Most tasks wait for one or two.
using Events = absl::InlinedVector<Event, 2>;

struct Task {
  LaneIdx lane = 0;
  TaskLabel label = {};
  TaskCost cost = {};
  Events after = {};      // must have happened, and their tasks succeeded
  Events after_end = {};  // must have happened, whatever became of their tasks
  // Runs once, on a thread of the lane or, where it is short, of another, and is destroyed before the event happens.
  // Not on a disk lane.
  std::function<absl::Status()> body = {};
  std::vector<DiskRead> reads = {};  // on a disk lane; the runtime sets their tags
};

}  // namespace penstock
