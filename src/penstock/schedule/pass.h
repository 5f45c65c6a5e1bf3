// One pass over the model: a batch's rows, cut into micro-batches, and the tasks that schedules make of them.
//
// A schedule is ordinary code that calls these methods; each issues one task and returns its event. Tasks of one lane
// run in the order of the calls, so that only what crosses lanes waits for events. In a simulation (no OpContext) tasks
// have costs and no bodies.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "penstock/memory/expert_store.h"
#include "penstock/model/cost.h"
#include "penstock/routing/routing_source.h"
#include "penstock/runtime/runtime.h"
#include "penstock/schedule/operations.h"

namespace penstock {

// Takes the logits [rows.size(), vocab_size] of some of the batch's logit_rows, in order; may overwrite them.
using LogitsSink = absl::FunctionRef<void(std::span<const int64_t> rows, std::span<float> logits)>;

class Pass {
 public:
  struct Args {
    const ModelConfig& config;
    const ModelCost& cost;
    Runtime& runtime;
    LaneIdx compute_lane = 0;
    LaneIdx host_lane = 0;           // where the sink runs
    ExpertStore* experts = nullptr;  // null for a model without experts
    RoutingSource& routing;
    const OpContext* context = nullptr;  // null in a simulation
    const RowBatch& batch;
    std::vector<RowRange> micro_batches;    // of all rows, in order
    std::vector<absl::Status>& row_status;  // [num_rows]: OK, or why the row has no result; written by tasks
    int64_t rows_at_once = 1;               // logits that are computed at once
    // Sees what rows chose; once for each row and layer. Optional.
    std::function<void(int64_t layer_idx, RowRange rows, std::span<const int32_t> choices)> on_routing = {};
  };
  explicit Pass(Args args);
  ~Pass();  // waits for the tasks that were issued

  const ModelConfig& config() const { return args_.config; }
  Runtime& runtime() { return args_.runtime; }
  ExpertStore& experts() { return *args_.experts; }
  RoutingSource& routing() { return args_.routing; }
  std::span<const RowRange> micro_batches() const { return args_.micro_batches; }
  RowRange all_rows() const { return {0, args_.batch.num_rows()}; }
  bool IsPresent(int64_t layer_idx, int64_t expert_idx) const {
    return args_.experts->IsPresent(args_.experts->layouts().KeyOf(layer_idx, expert_idx));
  }
  bool has_experts(int64_t layer_idx) const { return args_.config.layer_has_experts[layer_idx]; }

  Event Embed(RowRange rows);
  Event Attention(RowRange rows, int64_t layer_idx);
  Event Route(RowRange rows, int64_t layer_idx);
  // The experts that these rows chose, in increasing index. REQUIRES: the event of their Route() has happened.
  std::vector<int32_t> Chosen(RowRange rows, int64_t layer_idx);
  // REQUIRES: as Chosen().
  Event Group(RowRange rows, int64_t layer_idx);
  // Computes those of the leased experts that the rows grouped last chose. Those that did not arrive fail their rows.
  // The leases must be held until the event. REQUIRES: their arrival has been waited for.
  Event Experts(int64_t layer_idx, std::span<const ExpertLease> leases);
  Event Combine(RowRange rows, int64_t layer_idx);
  Event DenseFfn(RowRange rows, int64_t layer_idx);
  // The logits of all rows that want some, handed to the sink as they are computed; waits for all that was issued.
  absl::Status Finish(LogitsSink sink);

 private:
  using Body = std::function<void(const OpContext&)>;
  Event Issue(TaskLabel label, const OperationCost& cost, std::vector<Event> after, Body body);
  struct LostExpert {
    ExpertPlace place;
    absl::Status why;
  };
  void RunExperts(const OpContext& context, std::span<const ExpertPlace> places, std::span<const LostExpert> lost);
  void FailExpert(const OpContext& context, const ExpertPlace& place, const absl::Status& status);
  ModelCost::Context ContextOf(RowRange rows) const;

  Args args_;
  Event last_;                       // the task issued last
  std::vector<int64_t> group_rows_;  // [num_experts]: of the rows that were grouped last
};

}  // namespace penstock
