// The exchange of choices: all ranks learn which experts the rows of all ranks chose, and which rank computes them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/parallel/expert_placement.h"
#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/ranks/rank_transfers.h"

namespace penstock {

class RankChoices {
 public:
  // The choices of rows that were exchanged together.
  struct Rows {
    std::vector<std::vector<int32_t>> choices;  // [num_ranks][rows of that rank * num_topk]
    std::vector<std::vector<float>> weights;    // likewise; only of cut experts
    std::vector<std::vector<int32_t>> ranks;    // likewise: those that compute the choices; only of whole experts
  };

  // `placement` is that of whole experts, and reading an expert takes as long as computing `rows_of_weights` rows.
  // Null: the experts are cut, all ranks compute all choices, and the rows' weights of their choices travel, too.
  RankChoices(const PassArgs& args, RankTransfers& transfers, const ExpertPlacement* placement, int64_t rows_of_weights)
      : args_(args), transfers_(transfers), placement_(placement), rows_of_weights_(rows_of_weights) {}

  // Exchanges the choices of these rows, which `routed` made, with those of the other ranks' rows.
  Event Exchange(RowRange rows, int64_t layer_idx, const Event& routed);
  // Calls visit(expert) for each choice that this rank computes, of rows of any rank that were exchanged together with
  // these. REQUIRES: the event of Exchange() has happened.
  void ForEach(RowRange rows, absl::FunctionRef<void(int32_t expert_idx)> visit) const;
  // Returns the choices of all rows since the last call. REQUIRES: the events of Exchange() have happened.
  Rows Take();

 private:
  struct Routed {
    RowRange rows;  // this rank's own
    int64_t layer_idx = 0;
    Rows of_all;
    Event received;  // after it, choices may be read
  };

  void Learn(int rank, std::span<const int32_t> message, Rows& rows) const;
  absl::Status Receive(Routed& routed);
  absl::Status ReceiveInSimulation(Routed& routed);
  void ChooseRanks(Routed& routed) const;
  bool has_weights() const { return placement_ == nullptr; }
  int64_t words_per_choice() const { return has_weights() ? 2 : 1; }

  const PassArgs& args_;
  RankTransfers& transfers_;
  const ExpertPlacement* placement_;
  int64_t rows_of_weights_;
  std::vector<std::shared_ptr<Routed>> routed_;  // since the last Take()
  bool is_taken_ = false;                        // routed_ has been taken
  std::vector<int32_t> outgoing_;                // of the lane to_ranks
  std::vector<int32_t> incoming_;                // of the lane from_ranks
};

}  // namespace penstock
