// The exchange of experts that lie whole on ranks (parallel/expert_placement.h).
//
// Each row goes once to every rank that computes experts for it. One output comes back for each of the row's experts.
// The home rank adds the outputs in the order of the row's top-k. So a row has the bits that it has on one rank.
//
// The experts of a rank form groups (schedule/ranks/expert_pipeline.h). Rows travel group by group. An expert can be
// computed when the rows of its group are here, in any order. Outputs leave in the order in which experts are computed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/pass_tasks.h"
#include "penstock/schedule/ranks/expert_exchange.h"
#include "penstock/schedule/ranks/expert_pipeline.h"
#include "penstock/schedule/ranks/rank_choices.h"
#include "penstock/schedule/ranks/rank_transfers.h"
#include "penstock/tensor/output_codes.h"

namespace penstock {

class PassWholeExperts : public ExpertExchange {
 public:
  // `args` (with ranks) and `tasks` must outlive the object and its tasks.
  PassWholeExperts(const PassArgs& args, PassTasks& tasks, FailRow fail_row);

  Event ExchangeChoices(RowRange rows, int64_t layer_idx, const Event& routed) override {
    return choices_.Exchange(rows, layer_idx, routed);
  }
  void ForEachChoiceHere(RowRange rows, absl::FunctionRef<void(int32_t expert_idx)> visit) const override {
    choices_.ForEach(rows, visit);
  }
  std::shared_ptr<const RankAssignments> Dispatch(RowRange rows, int64_t layer_idx) override;
  Event InputsOf(int64_t expert_idx) const override;
  int64_t GroupOf(int64_t expert_idx) const override { return exchange_->group_of[rank()][expert_idx]; }
  const Event& outputs_sent() const override { return outputs_sent_; }
  void RoundOwnOutputs(Operations& operations, int64_t expert_idx) const override;
  void FailExpert(int64_t expert_idx, const absl::Status& status) override;
  void Return(int64_t layer_idx, std::span<const int64_t> expert_idxs, const Event& computed) override;
  Returned Finish(int64_t layer_idx) override;

 private:
  // The rows that come from another rank for one group: consecutive rows of ffn_input.
  struct Inputs {
    int64_t begin = 0;
    int64_t num_rows = 0;
  };
  // Everything that is exchanged for the rows of one Dispatch().
  struct Exchange {
    RowRange rows;  // this rank's own
    RankAssignments own;
    std::vector<int32_t> own_choices;                          // [rows.size(), num_topk]
    std::vector<int32_t> own_ranks;                            // likewise: the ranks that compute them
    int64_t num_groups = 1;                                    // of each rank
    std::vector<std::vector<int64_t>> group_of;                // [num_ranks][num_experts]: on that rank
    std::vector<std::vector<std::vector<int64_t>>> sent_rows;  // [num_groups][num_ranks]: own rows that the rank gets
    std::vector<std::vector<Inputs>> inputs;                   // [num_groups][num_ranks]
    std::vector<Event> inputs_here;                            // [num_groups]
    std::vector<int64_t> output_offsets;           // [num_experts * num_ranks + 1]: by expert, then by rank of
                                                   // the rows; first places, of this rank's experts only
    int64_t num_outputs_elsewhere = 0;             // that this rank sends
    int64_t num_outputs_here = 0;                  // that come from other ranks
    std::vector<std::vector<int64_t>> choices_of;  // [num_experts]: indices of own_choices; of experts elsewhere

    // Used by the thread that issues tasks.
    std::vector<int64_t> waiting;  // experts that were computed, with outputs to send
    int64_t num_waiting_outputs = 0;
    int64_t num_sent_outputs = 0;
    Event computed;                           // the experts that wait
    Event rows_sent, outputs_sent;            // the last ones
    SimulatedRuntime::Times sending_outputs;  // in a simulation: all of them
    Event outputs_here;

    // Used by the lane from_ranks, until outputs_here.
    std::vector<int64_t> next_group;    // [num_ranks]: the first group whose rows are not here
    std::vector<int64_t> outputs_left;  // [num_ranks]: outputs that are not here
    int64_t next_place = 0;             // of the next output that comes
    std::vector<int64_t> places;        // [rows.size(), num_topk]: of expert_output

    std::mutex mutex;                                      // guards what follows
    std::vector<std::pair<int64_t, absl::Status>> failed;  // experts of this rank
  };

  using RowsOfExperts = std::vector<std::vector<int64_t>>;  // [num_ranks][num_experts]: rows that a rank computes

  // Fills the exchange for the choices of all ranks.
  void PlanExchange(const RankChoices::Rows& routed, Exchange& exchange) const;
  void PlanGroups(const RankChoices::Rows& routed, Exchange& exchange) const;
  void PlanHere(const RankChoices::Rows& routed, Exchange& exchange) const;
  void PlanElsewhere(Exchange& exchange) const;
  // Returns the times by which all ranks choose the number of groups.
  PipelineTimes TimesOf(const RankChoices::Rows& routed, const RowsOfExperts& rows_of) const;
  // Calls visit(row_idx, group) for each row with choices that `rank` computes, with the first group that needs it.
  void ForEachRow(std::span<const int32_t> choices, std::span<const int32_t> ranks, int rank,
                  std::span<const int64_t> group_of,
                  absl::FunctionRef<void(int64_t row_idx, int64_t group)> visit) const;

  absl::Status SendRows(const Exchange& exchange, int64_t group);
  // Takes messages until the rows of all groups before `end_group` are here, and with `outputs` all outputs, too.
  absl::Status Receive(Exchange& exchange, int64_t end_group, bool outputs);
  absl::Status TakeOutputs(Exchange& exchange, int from, std::span<const std::byte> message);
  void IssueReturn(int64_t layer_idx);
  absl::Status SendOutputs(Exchange& exchange, std::span<const int64_t> expert_idxs);
  absl::Status SendOutputsTo(int rank, Exchange& exchange, std::span<const int64_t> expert_idxs);

  uint64_t OutputBytes(int64_t num_outputs) const {
    return static_cast<uint64_t>(num_outputs * OutputRowBytes(args_.comm, args_.config.expert_row_dim()));
  }
  Activations& activations() const { return args_.host.operations->activations(); }
  Communicator& communicator() const { return transfers_.communicator(); }
  int rank() const { return transfers_.rank(); }
  int num_ranks() const { return transfers_.num_ranks(); }

  const PassArgs& args_;
  RankTransfers transfers_;
  const FailRow fail_row_;
  RankChoices choices_;
  std::shared_ptr<Exchange> exchange_;  // of the last Dispatch()
  Event outputs_sent_;                  // of all exchanges before it
};

}  // namespace penstock
