// The tasks that a schedule issues on lanes, ordered by events.
//
// A lane is an in-order queue of one resource: a processor, one direction of a link, a disk. A task runs once the
// events that it waits for have happened and the tasks issued before it on its lane have ended. On a disk lane it is
// enough that those tasks have begun. The event of a task happens when the task has ended.
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

// Names a task in traces. -1: does not apply.
struct TaskLabel {
  std::string_view name;  // a string of static storage: "attention"
  int64_t layer_idx = -1;
  int64_t expert_idx = -1;
  int64_t micro_batch_idx = -1;
};

// The work and the traffic of a task.
struct TaskCost {
  double flops = 0;            // multiplications and additions
  uint64_t memory_bytes = 0;   // bytes that a processor reads from its own tier or writes there
  uint64_t kv_bytes = 0;       // the part of memory_bytes that belongs to the KV cache
  double kv_flops = 0;         // the part of flops spent on KV entries
  uint64_t packed_bytes = 0;   // the part of memory_bytes that becomes panels, which takes longer than reading
  uint64_t decoded_bytes = 0;  // the part of memory_bytes that is decompressed first, which takes longer, too
  uint64_t link_bytes = 0;     // bytes that cross the lane's link
  // Work beside products and attention (model/cost.h).
  bool begins_pass = false;
  uint16_t drawn_rows = 0;
  int32_t ready_experts = 0;
  double embedded_rows = 0;
  double attention_rows = 0;
  double routed_rows = 0;
  double drawn_entries = 0;
};

// Returns the seconds that a task of the given cost takes on a lane.
using TaskDuration = std::function<double(const TaskCost&)>;

// The end of a task. Cheap to copy; a default-constructed event has happened. Only a Runtime looks inside.
class Event {
 public:
  Event() = default;

 private:
  friend class RealRuntime;
  friend class SimulatedRuntime;
  struct State {  // each runtime derives its own state
    virtual ~State() = default;
  };
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

// Most tasks wait for one or two events.
using Events = absl::InlinedVector<Event, 2>;

struct Task {
  LaneIdx lane = 0;
  TaskLabel label = {};
  TaskCost cost = {};
  Events after = {};      // must have happened, with tasks that succeeded
  Events after_end = {};  // must have happened, even if their tasks failed
  // Runs once and is destroyed before the event happens. It runs on a thread of the lane; a short task may run on a
  // thread of another lane. Empty on a disk lane.
  std::function<absl::Status()> body = {};
  std::vector<DiskRead> reads = {};  // on a disk lane; the runtime sets their tags
};

}  // namespace penstock
