// The exchange of a pass's experts with the other ranks: rows travel to the experts, and outputs travel back.
//
// Each rank has rows of its own, and routes them. All ranks call these functions in the same order, with rows of their
// own, perhaps none. In a simulation they only tell each other their choices, and when messages leave
// (schedule/ranks/rank_transfers.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/schedule/pass_args.h"

namespace penstock {

class ExpertExchange {
 public:
  // Tasks call it for own rows whose experts failed on another rank.
  using FailRow = std::function<void(int64_t row_idx, const absl::Status& status)>;
  virtual ~ExpertExchange() = default;

  // Exchanges the choices of these rows, which `routed` made, with those of the other ranks' rows.
  virtual Event ExchangeChoices(RowRange rows, int64_t layer_idx, const Event& routed) = 0;
  // Calls visit(expert) for each choice of an expert of this rank, by rows of any rank whose choices were exchanged
  // together with these. REQUIRES: the event of ExchangeChoices() has happened.
  virtual void ForEachChoiceHere(RowRange rows, absl::FunctionRef<void(int32_t expert_idx)> visit) const = 0;

  // Sends the inputs of these rows to the ranks of their experts, and begins to receive those of other ranks' rows.
  // Returns the assignments to this rank's experts. REQUIRES: ExchangeChoices() of all rows, and of no others since the
  // last call.
  virtual std::shared_ptr<const RankAssignments> Dispatch(RowRange rows, int64_t layer_idx) = 0;
  // Returns the event after which all inputs of an expert of this rank are here.
  virtual Event InputsOf(int64_t expert_idx) const = 0;
  // Experts of one group are computed together.
  virtual int64_t GroupOf(int64_t expert_idx) const = 0;
  // Returns the event after which outputs may be overwritten: those of earlier exchanges have been sent.
  virtual const Event& outputs_sent() const = 0;
  // Rounds an expert's outputs as if they had travelled, if they stay here. Called by tasks that compute.
  virtual void RoundOwnOutputs(Operations& operations, int64_t expert_idx) const = 0;
  // Remembers that an expert of this rank has no outputs. Called by tasks, before the event `computed` of Return().
  virtual void FailExpert(int64_t expert_idx, const absl::Status& status) = 0;
  // Sends the outputs of these experts to the ranks of their rows, after `computed`. May wait for more experts.
  virtual void Return(int64_t layer_idx, std::span<const int64_t> expert_idxs, const Event& computed) = 0;
  // Sends the outputs that still wait. After the events, the rows may be overwritten, and combine() adds what the
  // experts of all ranks computed to the residual.
  struct Returned {
    std::function<void(Operations&)> combine;
    Events received;
  };
  virtual Returned Finish(int64_t layer_idx) = 0;
};

}  // namespace penstock
