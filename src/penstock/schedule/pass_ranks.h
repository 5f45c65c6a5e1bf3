// The exchange of a pass with the other ranks that share the model's experts.
//
// Each rank attends to its own sequences, and routes their rows. Then the ranks tell each other their choices. Each row
// goes once to every rank that has experts for it. One output comes back for each of the row's experts. The home rank
// adds the outputs in the order of the row's top-k. So a row has the bits that it has on one rank.
//
// All ranks call these functions in the same order, with rows of their own, perhaps none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/parallel/communicator.h"
#include "penstock/parallel/rank_split.h"
#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/pass_tasks.h"

namespace penstock {

class PassRanks {
 public:
  using FailRow = std::function<void(int64_t row_idx, const absl::Status& status)>;
  // `args` (with ranks) and `tasks` must outlive the object and its tasks. Tasks call `fail_row` for own rows whose
  // experts failed on another rank.
  PassRanks(const PassArgs& args, PassTasks& tasks, FailRow fail_row);

  // Exchanges the choices of these rows, which `routed` made, with those of the other ranks' rows.
  Event ExchangeChoices(RowRange rows, int64_t layer_idx, const Event& routed);
  // Calls visit(expert) for each choice of an expert of this rank, by rows of any rank whose choices were exchanged
  // together with these. REQUIRES: the event of ExchangeChoices() has happened.
  void ForEachChoiceHere(RowRange rows, absl::FunctionRef<void(int32_t expert_idx)> visit) const;

  // Sends the inputs of these rows to the ranks of their experts. Sorts the assignments to this rank's experts; at the
  // event, all inputs are here. REQUIRES: ExchangeChoices() of all rows, and of no others since the last call.
  struct Dispatched {
    std::shared_ptr<const RankAssignments> assignments;
    Event received;
  };
  Dispatched Dispatch(RowRange rows, int64_t layer_idx);
  // Remembers that an expert of this rank has no outputs. Called by tasks, before the event `computed` of Return().
  void FailExpert(int64_t expert_idx, const absl::Status& status);
  // Sends the outputs for other ranks' rows back. At the returned event, the outputs for this rank's rows are here.
  Event Return(int64_t layer_idx, const Event& computed);

 private:
  // The choices of rows that were exchanged together.
  struct Routed {
    RowRange rows;                              // this rank's own
    std::vector<std::vector<int32_t>> choices;  // [num_ranks][rows of that rank * num_topk]
    Event received;                             // after it, choices may be read
  };
  // Everything that is exchanged for the rows of one Dispatch().
  struct Exchange {
    RankAssignments own;
    std::vector<std::vector<int64_t>> sent_rows;     // [num_ranks]: own rows that the rank gets
    std::vector<int64_t> num_inputs;                 // [num_ranks]: rows that come from it
    std::vector<std::vector<int64_t>> sent_outputs;  // [num_ranks]: places of the outputs that it gets
    std::vector<int64_t> num_outputs;                // [num_ranks]: outputs that come from it
    std::vector<int32_t> own_choices;                // [own.rows.size(), num_topk]
    std::mutex mutex;                                // guards what follows
    std::vector<int32_t> failed;                     // experts of this rank
    absl::Status why;                                // of the first of them
  };

  // Fills the exchange for the choices of all ranks.
  void PlanExchange(const std::vector<std::vector<int32_t>>& choices, Exchange& exchange) const;
  void PlanHere(const std::vector<std::vector<int32_t>>& choices, Exchange& exchange) const;
  void PlanElsewhere(Exchange& exchange) const;
  absl::Status ReceiveChoices(Routed& routed);
  absl::Status SendRows(const Exchange& exchange);
  absl::Status ReceiveRows(const Exchange& exchange);
  absl::Status SendOutputs(Exchange& exchange);
  absl::Status ReceiveOutputs(Exchange& exchange);
  // Sends and receives the experts that failed, before the outputs.
  absl::Status SendFailures(int rank, Exchange& exchange);
  absl::Status ReceiveFailures(int rank, const Exchange& exchange);
  // Calls visit(rank) for every other rank until one fails.
  absl::Status ForEachOther(absl::FunctionRef<absl::Status(int rank)> visit) const;
  // Sends elements of `size_bytes` bytes each, `data` + idx * size_bytes, in one message.
  absl::Status SendElements(int rank, std::span<const int64_t> elements, const std::byte* data, int64_t size_bytes);

  Activations& activations() const { return args_.host.operations->activations(); }
  Communicator& communicator() const { return *args_.ranks->communicator; }
  int num_ranks() const { return communicator().num_ranks(); }

  const PassArgs& args_;
  PassTasks& tasks_;
  const FailRow fail_row_;
  const RankSplit split_;
  const ExpertRange here_;
  std::vector<std::shared_ptr<Routed>> routed_;  // since the last Dispatch()
  std::vector<int32_t> incoming_;                // of the lane from_ranks: choices as they arrive
  bool is_dispatched_ = false;                   // routed_ belongs to rows that were dispatched
  std::shared_ptr<Exchange> exchange_;           // of the last Dispatch()
};

}  // namespace penstock
