// The exchange of experts that are cut: each rank has some columns of every expert. It is the "experts=tp" of
// `--parallel`, TP in EPS-MoE's words.
//
// All rows go to all ranks. A rank computes its part of every output, adds up the parts of a row in the order of its
// top-k, and sends the sum to the row's home. The home adds the sums of all ranks in their order. So a row's bits
// depend on the number of ranks, and on nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/pass_tasks.h"
#include "penstock/schedule/ranks/expert_exchange.h"
#include "penstock/schedule/ranks/rank_choices.h"
#include "penstock/schedule/ranks/rank_transfers.h"
#include "penstock/tensor/output_codes.h"

namespace penstock {

class PassCutExperts : public ExpertExchange {
 public:
  // `args` (with ranks) and `tasks` must outlive the object and its tasks.
  PassCutExperts(const PassArgs& args, PassTasks& tasks, FailRow fail_row);

  Event ExchangeChoices(RowRange rows, int64_t layer_idx, const Event& routed) override {
    return choices_.Exchange(rows, layer_idx, routed);
  }
  void ForEachChoiceHere(RowRange rows, absl::FunctionRef<void(int32_t expert_idx)> visit) const override {
    choices_.ForEach(rows, visit);
  }
  std::shared_ptr<const RankAssignments> Dispatch(RowRange rows, int64_t layer_idx) override;
  Event InputsOf(int64_t) const override { return exchange_->rows_here; }
  int64_t GroupOf(int64_t) const override { return 0; }
  const Event& outputs_sent() const override { return nothing_; }
  void RoundOwnOutputs(Operations&, int64_t) const override {}  // sums are rounded instead
  void FailExpert(int64_t expert_idx, const absl::Status& status) override;
  void Return(int64_t, std::span<const int64_t>, const Event&) override {}
  Returned Finish(int64_t layer_idx) override;

 private:
  // The rows of one rank: consecutive rows of ffn_input, and of the sums behind the outputs.
  struct Place {
    int64_t input = 0;
    int64_t sum = 0;
    int64_t num_rows = 0;
  };
  // Everything that is exchanged for the rows of one Dispatch().
  struct Exchange {
    RowRange rows;  // this rank's own
    RankAssignments assignments;
    std::vector<int32_t> own_choices;  // [rows.size(), num_topk]
    std::vector<Place> of_rank;        // [num_ranks]
    std::vector<int64_t> places;       // [rows of all ranks, num_topk]: of expert_output
    std::vector<float> weights;        // likewise
    std::vector<int64_t> sums;         // [rows.size(), num_ranks]: of expert_output
    Event rows_sent, rows_here;

    std::mutex mutex;                                      // guards what follows
    std::vector<std::pair<int64_t, absl::Status>> failed;  // experts of which this rank has no part
  };

  void Plan(const RankChoices::Rows& routed, Exchange& exchange) const;
  std::span<std::byte> InputsOf(const Place& place) const;
  absl::Status SendSums(Exchange& exchange);
  absl::Status ReceiveSums(const Exchange& exchange);

  uint64_t SumBytes(int64_t num_rows) const {
    return static_cast<uint64_t>(num_rows * OutputRowBytes(args_.comm, args_.config.expert_row_dim()));
  }
  Activations& activations() const { return args_.host.operations->activations(); }
  Communicator& communicator() const { return transfers_.communicator(); }
  int num_ranks() const { return transfers_.num_ranks(); }

  const PassArgs& args_;
  PassTasks& tasks_;
  RankTransfers transfers_;
  const FailRow fail_row_;
  RankChoices choices_;
  std::shared_ptr<Exchange> exchange_;  // of the last Dispatch()
  Event sums_sent_;                     // of the last Finish()
  Event nothing_;
};

}  // namespace penstock
