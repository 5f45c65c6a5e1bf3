// The FFNs of a pass: routing, grouping, experts on one or two processors, shared and dense FFNs.
//
// Each call issues a task (some calls: a few) and returns the event of its end.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/routing/router_scores.h"
#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/pass_tasks.h"
#include "penstock/schedule/ranks/expert_exchange.h"

namespace penstock {

class PassFfn {
 public:
  // `args` and `tasks` must outlive the object and its tasks.
  PassFfn(const PassArgs& args, PassTasks& tasks);

  // Runs the gate, and issues the FFN that all rows share, if the model has one. After the event, Chosen() may be
  // called. `brings_input`: if a device routes, also copies the experts' inputs to the host, for HostGroup(). `table`:
  // if it is not empty, it says which experts the rows take, and the gate is left out.
  Event Route(RowRange rows, int64_t layer_idx, bool brings_input = false, const ExpertTable& table = {});
  // RowsOfExperts() returns how many of these rows chose each expert, [num_experts]. Chosen() returns the experts that
  // some row chose, in increasing index. With several ranks, both are about this rank's experts and all ranks' rows.
  // REQUIRES: the event of their Route() has happened.
  std::vector<int64_t> RowsOfExperts(RowRange rows, int64_t layer_idx) const;
  std::vector<int32_t> Chosen(RowRange rows, int64_t layer_idx) const;
  // Groups the rows' assignments by expert. Also tells the eviction policy how the experts were rated, if the policy
  // wants to know. REQUIRES: as Chosen().
  Event Group(RowRange rows, int64_t layer_idx);
  // Groups the assignments on the host, for its share of a layer's experts. REQUIRES: a device, and as Chosen(), with
  // `brings_input`.
  Event HostGroup(RowRange rows, int64_t layer_idx);
  // Returns the event after which an expert's inputs are here; they come from other ranks. REQUIRES: Group().
  Event InputsOf(int64_t expert_idx) const { return ranks_ != nullptr ? ranks_->InputsOf(expert_idx) : Event(); }
  // Computes the leased experts of `store` that the rows grouped last chose. Returns only when it is certain which of
  // them arrive; the others fail their rows. The caller holds the leases until the event. REQUIRES: for experts of the
  // host beside a device, HostGroup() of these rows.
  Event Experts(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases);
  Event Combine(RowRange rows, int64_t layer_idx);
  // Does Route, Group, Experts and Combine in one task. REQUIRES: leases on all experts of the layer, so that nobody
  // needs to know which of them the rows chose.
  Event RouteAndCompute(RowRange rows, int64_t layer_idx, std::span<const ExpertLease> leases);
  // Computes the FFN of a layer without experts.
  Event Dense(RowRange rows, int64_t layer_idx);
  // On several ranks: returns the seconds that this pass's experts took, over those that PassRankLanes::compute_time
  // expects; 0 without experts. REQUIRES: all tasks have ended.
  double ExpertSlowdown() const;

 private:
  struct LostExpert {
    ExpertPlace place;
    absl::Status why;
  };
  // Leased experts as a task takes them: those that arrived, and those that did not.
  struct TakenExperts {
    ExpertStore* store = nullptr;
    std::vector<ExpertPlace> places;
    Events arrived;  // when the experts of `places` have arrived
    std::vector<LostExpert> lost;
    std::optional<std::vector<absl::Status>> checked;  // [places.size()]: set by the task that checks, if there is one
  };

  // Returns the processor that computes a store's experts.
  const PassProcessor& ProcessorOf(const ExpertStore& store) const {
    return &store == args_.experts ? args_.compute() : args_.host;
  }
  // Returns the cost of experts, or of this rank's parts of them.
  const ModelCost& CostOfExperts() const {
    const bool is_cut = args_.ranks.has_value() && args_.ranks->cut_expert_cost != nullptr;
    return is_cut ? *args_.ranks->cut_expert_cost : args_.cost;
  }
  void RouteRows(Operations& operations, RowRange rows, int64_t layer_idx, const ExpertTable& table = {}) const;
  void IssueShared(RowRange rows, int64_t layer_idx);
  // Computes those of the leased experts for which `is_wanted` returns true, after these events.
  Event IssueExperts(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases,
                     absl::FunctionRef<bool(int64_t expert_idx)> is_wanted, Events after);
  // Computes leased experts as their inputs come from other ranks, and sends their outputs.
  Event RankExperts(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases);
  // Takes the leased experts for which `is_wanted` returns true. Issues a task that checks them if some have not been
  // checked since they were read.
  std::shared_ptr<TakenExperts> Take(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases,
                                     absl::FunctionRef<bool(const ExpertPlace&)> is_wanted);
  // Copies to the device what the host computed for the rows grouped last.
  void LoadExpertOutput(int64_t layer_idx, const TakenExperts& taken, const Event& computed);
  void RunExperts(Operations& operations, int64_t layer_idx, const TakenExperts& taken);
  void FailExpert(Operations& operations, const ExpertPlace& place, const absl::Status& status);
  void FailRow(int64_t row_idx, const absl::Status& status);
  // Like Group(), for the rows of all ranks.
  Event GroupRanks(RowRange rows, int64_t layer_idx);
  // Returns the next layers with experts, at most kMaxAhead.
  absl::InlinedVector<int64_t, kMaxAhead> LayersAhead(int64_t layer_idx) const;

  const PassArgs& args_;
  PassTasks& tasks_;
  std::mutex status_mutex_;             // guards args_.row_status: tasks on two processors may fail rows
  std::vector<int64_t> group_rows_;     // [num_experts]: rows of each group, for the rows grouped last
  std::vector<int64_t> group_offsets_;  // [num_experts]: first assignment of each group
  Event input_offloaded_;               // the experts' inputs of the rows routed last are on the host
  Events expert_outputs_;               // outputs of the host's experts are on the device
  MeanTopScores mean_scores_;
  Event combined_;                         // the last task of Combine()
  std::unique_ptr<ExpertExchange> ranks_;  // null: there is one rank
  std::vector<Event> rank_experts_;  // tasks that computed experts, and the seconds that they were expected to take
  double expected_s_ = 0;
};

}  // namespace penstock
