// Issues the tasks of a pass: operations on its processors, and copies over the links between host and device.
//
// Tasks of one lane run in the order of the calls. A task that fails ends the pass: tasks issued after it on its lane
// fail, and so do tasks on other lanes that wait for it. In a simulation, tasks have costs and no bodies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/schedule/pass_args.h"

namespace penstock {

// Returns what these rows see of the KV cache in a layer with this window; 0: no window.
ModelCost::Context ContextOf(const RowBatch& batch, RowRange rows, int64_t window);
// The same for a layer of an encoder-decoder model: for self-attention, and for cross-attention.
ModelCost::Context ContextOf(const ModelConfig& config, const RowBatch& batch, RowRange rows, int64_t layer_idx);
ModelCost::Context CrossContextOf(const RowBatch& batch, RowRange rows);

enum class CopyDirection : uint8_t { kToDevice, kToHost };
using ByteCopies = std::vector<ByteCopy>;

// Adds the copy of `dim` elements of each row. A buffer that the model does not have has 0.
template <typename T>
void AddRows(ByteCopies& copies, std::span<T> from, std::span<T> to, RowRange rows, int64_t dim) {
  if (dim == 0) return;
  copies.push_back({reinterpret_cast<std::byte*>(to.data() + rows.begin * dim),
                    reinterpret_cast<const std::byte*>(from.data() + rows.begin * dim),
                    static_cast<size_t>(rows.size() * dim) * sizeof(T)});
}

class PassTasks {
 public:
  // `args` must outlive the object.
  explicit PassTasks(const PassArgs& args) : args_(args) {}
  PassTasks(const PassTasks&) = delete;
  PassTasks& operator=(const PassTasks&) = delete;
  ~PassTasks() { (void)WaitForAll(); }

  // Issues a task that runs `body` on the processor's operations.
  using Body = std::function<void(Operations&)>;
  Event Issue(const PassProcessor& processor, TaskLabel label, const OperationCost& cost, Events after, Body body);
  // Issues a task whose lane, label, body and events are already set.
  Event IssueInOrder(Task task);

  // Issues a transfer to or from other ranks. A simulation ignores its body.
  Event Transfer(LaneIdx lane, TaskLabel label, uint64_t link_bytes, Events after, std::function<absl::Status()> body);
  // Issues the arrival of what other ranks send in these times. REQUIRES: a simulation with ranks.
  Event Arrive(TaskLabel label, uint64_t link_bytes, const SimulatedRuntime::Times& sent);
  // Issues a copy between the host's and the device's memory. `list` adds the byte ranges; it is called before Copy()
  // returns, and not at all in a simulation. REQUIRES: a device.
  using CopyLister = absl::FunctionRef<void(Activations& host, Activations& device, ByteCopies& copies)>;
  Event Copy(CopyDirection direction, TaskLabel label, uint64_t link_bytes, Events after, CopyLister list);

  // Returns a label. If the pass has several micro-batches, the label carries the number of the one that `rows` are.
  TaskLabel LabelOf(std::string_view name, RowRange rows, int64_t layer_idx = -1) const;

  // Waits for all tasks that were issued; returns the first error.
  absl::Status WaitForAll();

 private:
  const PassArgs& args_;
  std::map<LaneIdx, Event> last_;  // the task issued last on each lane
};

}  // namespace penstock
