// One pass over the model: the rows of a batch, cut into micro-batches, go through all layers.
//
// A schedule is ordinary code that calls attention() and ffn(). Each call issues tasks to lanes and returns an event.
// Tasks of one lane run in the order of the calls, so a schedule waits only for events of other lanes. Layers are
// computed on one processor: the host, or a device with its own memory, with the host beside it. In a simulation (no
// operations) tasks have costs and no bodies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/routing/expert_predictor.h"
#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/pass_attention.h"
#include "penstock/schedule/pass_ffn.h"
#include "penstock/schedule/pass_tasks.h"

namespace penstock {

// Results for some of the batch's logit_rows, in order.
struct RowLogits {
  std::span<const int64_t> rows;
  std::span<float> logits;        // [rows.size(), vocab_size]; may be overwritten
  std::span<const TokenId> best;  // [rows.size()], instead of logits if the device picks: Operations::PickBest()
};
using LogitsSink = absl::FunctionRef<void(const RowLogits& result)>;

class Pass {
 public:
  explicit Pass(PassArgs args);  // the destructor waits for the tasks that were issued

  const ModelConfig& config() const { return args_.config; }
  const ModelCost& cost() const { return args_.cost; }
  const LaneRates& rates() const { return *args_.rates; }
  Runtime& runtime() { return args_.runtime; }
  RoutingSource& routing() { return args_.routing; }
  // Returns the experts in the memory of the processor that computes the layers.
  ExpertStore& experts() const { return *args_.experts; }
  // Returns the experts in DRAM that the host can compute beside a device; null without a device.
  ExpertStore* host_experts() const { return args_.host_experts; }
  bool has_device() const { return args_.device.has_value(); }
  bool has_experts(int64_t layer_idx) const { return args_.config.layer_has_experts[layer_idx]; }
  // layers() returns the layers that the rows go through; next_layers() returns those of the next pass, probably.
  IndexRange layers() const { return layers_; }
  IndexRange next_layers() const { return LayersOf(args_.config, args_.batch.next_encodes); }
  bool IsPresent(int64_t layer_idx, int64_t expert_idx) const {
    return args_.experts->IsPresent(args_.experts->layouts().KeyOf(layer_idx, expert_idx));
  }
  // Returns the micro-batches, which are the same in all layers. With several ranks, some may be empty.
  std::span<const RowRange> micro_batches() const { return args_.micro_batches; }
  const RowBatch& batch() const { return args_.batch; }
  RowRange all_rows() const { return {0, args_.batch.num_rows()}; }
  std::span<const uint32_t> sequence_ids(RowRange rows) const {
    return std::span(args_.batch.sequence_ids).subspan(rows.begin, rows.size());
  }

  // Returns how many layers with experts come before a layer.
  int64_t PlaceOf(int64_t layer_idx) const {
    return std::count(config().layer_has_experts.begin(), config().layer_has_experts.begin() + layer_idx, true);
  }

  // Issues work of a predictor for this pass, on the host. IssueAhead() issues work for later passes on a lane of its
  // own, which the pass does not wait for. REQUIRES: predicts_ahead().
  Event IssueWork(ExpertPredictor::Work work) { return IssueWork(args_.host.lane, std::move(work)); }
  Event IssueAhead(ExpertPredictor::Work work) { return IssueWork(args_.predict_lane, std::move(work)); }
  bool predicts_ahead() const { return args_.predict_lane >= 0; }

  PassAttention& attention() { return attention_; }
  const PassAttention& attention() const { return attention_; }
  PassFfn& ffn() { return ffn_; }
  // Computes the logits of the batch's logit_rows and hands them to the sink, a few rows at a time. For an
  // encoder's rows it computes what cross-attention sees. Waits for all tasks of the pass.
  absl::Status Finish(LogitsSink sink);

 private:
  Event IssueWork(LaneIdx lane, ExpertPredictor::Work work);
  // Issues the logits of some rows; at the event, they are on the host. `num_best`: rows whose best token the processor
  // picks.
  Event IssueLogits(std::span<const int64_t> rows, size_t num_logits, size_t num_best);

  const PassArgs args_;
  const bool encodes_;
  const IndexRange layers_;
  PassAttention attention_;
  PassFfn ffn_;
  PassTasks tasks_;  // last: its destructor waits for tasks that use the other members
};

}  // namespace penstock
