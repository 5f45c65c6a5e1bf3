#include "penstock/schedule/pass_ffn.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "penstock/schedule/ranks/pass_cut_experts.h"
#include "penstock/schedule/ranks/pass_whole_experts.h"

namespace penstock {

PassFfn::PassFfn(const PassArgs& args, PassTasks& tasks)
    : args_(args),
      tasks_(tasks),
      group_rows_(args.config.num_experts),
      group_offsets_(group_rows_.size()),
      mean_scores_(args.config.num_experts, args.config.num_topk) {
  if (!args.ranks.has_value()) return;
  const auto fail = [this](int64_t row_idx, const absl::Status& status) { FailRow(row_idx, status); };
  if (args.ranks->cut_expert_cost != nullptr) {
    ranks_ = std::make_unique<PassCutExperts>(args, tasks, fail);
  } else {
    ranks_ = std::make_unique<PassWholeExperts>(args, tasks, fail);
  }
}

absl::InlinedVector<int64_t, kMaxAhead> PassFfn::LayersAhead(int64_t layer_idx) const {
  absl::InlinedVector<int64_t, kMaxAhead> layers;
  const int64_t end = LayersOf(args_.config, args_.config.is_of_encoder(layer_idx)).end;
  for (int64_t next = layer_idx + 1; next < end && std::ssize(layers) < kMaxAhead; ++next) {
    if (args_.config.layer_has_experts[next]) layers.push_back(next);
  }
  return layers;
}

Event PassFfn::Route(RowRange rows, int64_t layer_idx, bool brings_input, const ExpertTable& table) {
  absl::InlinedVector<int64_t, kMaxAhead> layers_ahead;
  if (args_.looks_ahead) layers_ahead = LayersAhead(layer_idx);
  OperationCost cost;
  const size_t num_gates = layers_ahead.size() + (table.empty() ? 1 : 0);  // a table replaces the layer's own
  for (size_t i = 0; i < num_gates; ++i) cost += args_.cost.Route(rows.size());
  cost.routed_rows = static_cast<double>(rows.size());
  Event routed;
  if (rows.size() > 0) {
    routed = tasks_.Issue(args_.compute(), tasks_.LabelOf("route", rows, layer_idx), cost, {},
                          [=, this](Operations& operations) {
                            RouteRows(operations, rows, layer_idx, table);
                            for (size_t i = 0; i < layers_ahead.size(); ++i) {
                              operations.RouteAhead(rows, layers_ahead[i], static_cast<int64_t>(i) + 1);
                            }
                          });
  }
  // Other ranks see the choices of no rows, too, once this rank is done with the rows before.
  if (rows.size() == 0) routed = combined_;
  const auto finish = [&](const Event& chosen) {
    const Event known = ranks_ != nullptr ? ranks_->ExchangeChoices(rows, layer_idx, chosen) : chosen;
    IssueShared(rows, layer_idx);
    return known;
  };
  if (!args_.device.has_value()) return finish(routed);
  const auto num_ahead = static_cast<int64_t>(layers_ahead.size());
  const int64_t num_topk = args_.config.num_topk;
  const int64_t num_scores = args_.wants_scores || args_.experts->wants_scores() ? args_.config.num_experts : 0;
  const int64_t input_bytes = brings_input ? args_.ffn_row_bytes : 0;
  const Event offloaded =
      tasks_.Copy(CopyDirection::kToHost, tasks_.LabelOf("offload choices", rows, layer_idx),
                  static_cast<uint64_t>(rows.size() * (4 * (num_topk * (1 + num_ahead) + num_scores) + input_bytes)),
                  {routed}, [=](Activations& host, Activations& device, ByteCopies& copies) {
                    AddRows(copies, device.topk_idx, host.topk_idx, rows, num_topk);
                    for (int64_t ahead = 1; ahead <= num_ahead; ++ahead) {
                      AddRows(copies, device.topk_ahead(ahead), host.topk_ahead(ahead), rows, num_topk);
                    }
                    if (num_scores > 0) {
                      AddRows(copies, device.router_logits, host.router_logits, rows, num_scores);
                    }
                    if (input_bytes > 0) {
                      AddRows(copies, device.ffn_input, host.ffn_input, rows, input_bytes);
                    }
                  });
  if (brings_input) input_offloaded_ = offloaded;
  return finish(offloaded);
}

void PassFfn::RouteRows(Operations& operations, RowRange rows, int64_t layer_idx, const ExpertTable& table) const {
  if (table.empty()) {
    operations.Route(rows, layer_idx);
  } else {
    operations.RouteByTable(rows, layer_idx, table);
  }
  if (args_.config.is_of_encoder(layer_idx)) operations.LimitExperts(args_.batch, rows);
}

// Issues the FFN that all rows share. It runs while the host looks at the choices and experts arrive.
void PassFfn::IssueShared(RowRange rows, int64_t layer_idx) {
  if (args_.config.shared_ffn_dim == 0 || rows.size() == 0) return;
  tasks_.Issue(args_.compute(), tasks_.LabelOf("shared ffn", rows, layer_idx), args_.cost.SharedFfn(rows.size()), {},
               [=](Operations& operations) { operations.SharedFfn(rows, layer_idx); });
}

std::vector<int64_t> PassFfn::RowsOfExperts(RowRange rows, int64_t layer_idx) const {
  std::vector<int64_t> num_rows(args_.config.num_experts);
  if (ranks_ != nullptr) {
    ranks_->ForEachChoiceHere(rows, [&](int32_t expert_idx) { ++num_rows[expert_idx]; });
  } else {
    for (const int32_t expert_idx : args_.routing.Choices(layer_idx, rows.begin, rows.size())) ++num_rows[expert_idx];
  }
  return num_rows;
}

std::vector<int32_t> PassFfn::Chosen(RowRange rows, int64_t layer_idx) const {
  const std::vector<int64_t> num_rows = RowsOfExperts(rows, layer_idx);
  std::vector<int32_t> chosen;
  for (int64_t expert_idx = 0; expert_idx < args_.config.num_stored_experts(); ++expert_idx) {
    if (num_rows[expert_idx] > 0) chosen.push_back(static_cast<int32_t>(expert_idx));
  }
  return chosen;
}

Event PassFfn::Group(RowRange rows, int64_t layer_idx) {
  const std::span<const int32_t> choices = args_.routing.Choices(layer_idx, rows.begin, rows.size());
  if (args_.experts->wants_scores()) {
    const std::span<const float> scores = args_.routing.Scores(layer_idx, rows.begin, rows.size());
    args_.experts->OnScores(layer_idx, mean_scores_.Of(scores, choices));
  }
  if (args_.on_routing) args_.on_routing(layer_idx, rows, choices);
  if (ranks_ != nullptr) return GroupRanks(rows, layer_idx);
  group_rows_ = RowsOfExperts(rows, layer_idx);
  std::exclusive_scan(group_rows_.begin(), group_rows_.end(), group_offsets_.begin(),
                      rows.begin * args_.config.num_topk);
  return tasks_.Issue(args_.compute(), tasks_.LabelOf("group", rows, layer_idx), {}, {},
                      [rows](Operations& operations) { operations.Group(rows); });
}

Event PassFfn::GroupRanks(RowRange rows, int64_t layer_idx) {
  const std::shared_ptr<const RankAssignments> assignments = ranks_->Dispatch(rows, layer_idx);
  const std::vector<int64_t>& offsets = assignments->group_offsets;
  std::copy(offsets.begin(), offsets.end() - 1, group_offsets_.begin());
  for (size_t i = 0; i < group_rows_.size(); ++i) group_rows_[i] = offsets[i + 1] - offsets[i];
  // Identity experts write their outputs here.
  Events after;
  if (args_.config.num_identity_experts > 0) after.push_back(ranks_->outputs_sent());
  return tasks_.Issue(args_.compute(), tasks_.LabelOf("group", rows, layer_idx), {}, std::move(after),
                      [assignments](Operations& operations) { operations.GroupRanks(*assignments); });
}

Event PassFfn::HostGroup(RowRange rows, int64_t layer_idx) {
  return tasks_.Issue(args_.host, tasks_.LabelOf("group", rows, layer_idx), {}, {input_offloaded_},
                      [rows](Operations& operations) { operations.Group(rows); });
}

std::shared_ptr<PassFfn::TakenExperts> PassFfn::Take(int64_t layer_idx, ExpertStore& store,
                                                     std::span<const ExpertLease> leases,
                                                     absl::FunctionRef<bool(const ExpertPlace&)> is_wanted) {
  auto taken = std::make_shared<TakenExperts>();
  taken->store = &store;
  int64_t num_unchecked = 0;
  for (const ExpertLease& lease : leases) {
    if (!is_wanted(lease.place())) continue;
    const absl::Status status = args_.runtime.Wait(lease.known());
    if (!status.ok()) {
      taken->lost.push_back({lease.place(), status});
      continue;
    }
    taken->places.push_back(lease.place());
    if (!args_.runtime.Done(lease.arrived())) taken->arrived.push_back(lease.arrived());
    num_unchecked += store.TakeUnfinished(lease.place()) ? 1 : 0;
  }
  if (num_unchecked == 0) return taken;
  OperationCost cost;
  cost.bytes = static_cast<uint64_t>(num_unchecked) * CostOfExperts().expert_bytes();
  cost.ready_experts = static_cast<int32_t>(num_unchecked);
  cost.packed_bytes = store.layouts().packs() ? cost.bytes : 0;
  cost.decoded_bytes = store.layouts().decompresses() ? cost.bytes : 0;
  tasks_.Issue(
      ProcessorOf(store), {.name = "check", .layer_idx = layer_idx}, cost, taken->arrived,
      [taken, pool = args_.host_pool](Operations&) { taken->checked = taken->store->Finish(taken->places, *pool); });
  return taken;
}

void PassFfn::LoadExpertOutput(int64_t layer_idx, const TakenExperts& taken, const Event& computed) {
  const int64_t dim = args_.config.expert_row_dim();
  std::vector<RowRange> places;  // assignments of each expert
  int64_t num_places = 0;
  const auto add = [&](const ExpertPlace& place) {
    const int64_t expert_idx = taken.store->layouts().expert_idx_of(place.key);
    const int64_t begin = group_offsets_[expert_idx];
    places.push_back({begin, begin + group_rows_[expert_idx]});
    num_places += places.back().size();
  };
  for (const ExpertPlace& place : taken.places) add(place);
  for (const LostExpert& expert : taken.lost) add(expert.place);
  expert_outputs_.push_back(tasks_.Copy(CopyDirection::kToDevice,
                                        {.name = "load expert output", .layer_idx = layer_idx},
                                        static_cast<uint64_t>(4 * num_places * dim), {computed},
                                        [&](Activations& host, Activations& device, ByteCopies& copies) {
                                          for (const RowRange& range : places) {
                                            AddRows(copies, host.expert_output, device.expert_output, range, dim);
                                          }
                                        }));
}

Event PassFfn::Experts(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases) {
  if (ranks_ != nullptr) return RankExperts(layer_idx, store, leases);
  return IssueExperts(layer_idx, store, leases, [](int64_t) { return true; }, {});
}

Event PassFfn::RankExperts(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases) {
  // Groups whose inputs are here go first, then the others in the order in which they come. Each group is a task of its
  // own, so that its outputs leave before the next one is computed.
  std::map<std::pair<bool, int64_t>, std::vector<int64_t>> experts_of_group;
  for (const ExpertLease& lease : leases) {
    const int64_t expert_idx = store.layouts().expert_idx_of(lease.key());
    if (group_rows_[expert_idx] == 0) continue;
    const bool is_missing = !args_.runtime.Done(ranks_->InputsOf(expert_idx));
    experts_of_group[{is_missing, ranks_->GroupOf(expert_idx)}].push_back(expert_idx);
  }
  Event last;
  for (const auto& [group, experts] : experts_of_group) {
    const std::vector<int64_t>& expert_idxs = experts;  // clang 14 cannot capture a structured binding
    Events inputs;
    for (const int64_t expert_idx : expert_idxs) inputs.push_back(ranks_->InputsOf(expert_idx));
    last = IssueExperts(
        layer_idx, store, leases,
        [&](int64_t expert_idx) { return std::ranges::find(expert_idxs, expert_idx) != expert_idxs.end(); }, inputs);
    ranks_->Return(layer_idx, expert_idxs, last);
  }
  return last;
}

Event PassFfn::IssueExperts(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases,
                            absl::FunctionRef<bool(int64_t expert_idx)> is_wanted, Events after) {
  const auto num_rows_of = [&](const ExpertPlace& place) {
    return group_rows_[store.layouts().expert_idx_of(place.key)];
  };
  const std::shared_ptr<TakenExperts> taken = Take(layer_idx, store, leases, [&](const ExpertPlace& place) {
    return num_rows_of(place) > 0 && is_wanted(store.layouts().expert_idx_of(place.key));
  });
  OperationCost cost;
  for (const ExpertPlace& place : taken->places) cost += CostOfExperts().Expert(num_rows_of(place));
  TaskLabel label{.name = "experts", .layer_idx = layer_idx};
  if (taken->places.size() == 1) label.expert_idx = store.layouts().expert_idx_of(taken->places[0].key);
  after.insert(after.end(), taken->arrived.begin(), taken->arrived.end());
  if (ranks_ != nullptr) after.push_back(ranks_->outputs_sent());
  const Event computed =
      tasks_.Issue(ProcessorOf(store), label, cost, std::move(after),
                   [taken, layer_idx, this](Operations& operations) { RunExperts(operations, layer_idx, *taken); });
  if (&store == args_.host_experts) LoadExpertOutput(layer_idx, *taken, computed);
  if (ranks_ != nullptr) {
    rank_experts_.push_back(computed);
    expected_s_ += args_.ranks->compute_time({.flops = cost.flops, .memory_bytes = cost.bytes});
  }
  return computed;
}

double PassFfn::ExpertSlowdown() const {
  double seconds = 0;
  for (const Event& computed : rank_experts_) seconds += args_.runtime.Seconds(computed);
  return expected_s_ > 0 ? seconds / expected_s_ : 0;
}

Event PassFfn::RouteAndCompute(RowRange rows, int64_t layer_idx, std::span<const ExpertLease> leases) {
  const std::shared_ptr<TakenExperts> taken =
      Take(layer_idx, *args_.experts, leases, [](const ExpertPlace&) { return true; });
  OperationCost cost = args_.cost.Route(rows.size());
  cost += args_.cost.ExpertsOfUniformRouting(rows.size());
  cost += args_.cost.Combine(rows.size());
  if (args_.config.shared_ffn_dim > 0) cost += args_.cost.SharedFfn(rows.size());
  return tasks_.Issue(args_.compute(), tasks_.LabelOf("experts", rows, layer_idx), cost, taken->arrived,
                      [=, this](Operations& operations) {
                        RouteRows(operations, rows, layer_idx);
                        if (args_.config.shared_ffn_dim > 0) operations.SharedFfn(rows, layer_idx);
                        operations.Group(rows);
                        if (args_.on_routing) args_.on_routing(layer_idx, rows, operations.Choices(rows));
                        RunExperts(operations, layer_idx, *taken);
                        operations.Combine(rows, layer_idx);
                      });
}

void PassFfn::RunExperts(Operations& operations, int64_t layer_idx, const TakenExperts& taken) {
  for (const LostExpert& expert : taken.lost) FailExpert(operations, expert.place, expert.why);
  // If no task checked these experts, all have been checked before. Finish() then repeats the check only of those that
  // it found broken.
  const std::vector<absl::Status> checked =
      taken.checked.has_value() ? *taken.checked : taken.store->Finish(taken.places, *args_.host_pool);
  std::vector<ExpertToRun> experts;
  experts.reserve(taken.places.size());
  for (size_t i = 0; i < taken.places.size(); ++i) {
    const ExpertPlace& place = taken.places[i];
    if (checked[i].ok()) {
      experts.push_back({taken.store->layouts().expert_idx_of(place.key), taken.store->Weights(place)});
    } else {
      FailExpert(operations, place, checked[i]);
    }
  }
  if (ranks_ != nullptr) operations.GatherInputs(experts);
  operations.Experts(layer_idx, experts);
  if (args_.comm == CommFormat::kF32) return;
  const std::span<const int64_t> offsets = operations.activations().group_offsets;
  for (const ExpertToRun& expert : experts) {
    // Outputs for rows of other ranks are rounded when they are sent.
    if (ranks_ != nullptr) {
      ranks_->RoundOwnOutputs(operations, expert.expert_idx);
    } else {
      operations.RoundOutputs({offsets[expert.expert_idx], offsets[expert.expert_idx + 1]}, args_.comm);
    }
  }
}

void PassFfn::FailExpert(Operations& operations, const ExpertPlace& place, const absl::Status& status) {
  const int64_t expert_idx = args_.experts->layouts().expert_idx_of(place.key);
  const std::vector<int64_t> rows = operations.ClearExpert(expert_idx);
  if (ranks_ != nullptr) ranks_->FailExpert(expert_idx, status);
  for (const int64_t row_idx : rows) {
    if (row_idx < args_.batch.num_rows()) FailRow(row_idx, status);  // the others are of other ranks
  }
}

void PassFfn::FailRow(int64_t row_idx, const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(status_mutex_);
  args_.row_status[row_idx].Update(status);
}

Event PassFfn::Combine(RowRange rows, int64_t layer_idx) {
  std::function<void(Operations&)> combine = [=](Operations& operations) { operations.Combine(rows, layer_idx); };
  if (ranks_ != nullptr) {
    ExpertExchange::Returned returned = ranks_->Finish(layer_idx);
    combine = std::move(returned.combine);
    expert_outputs_.insert(expert_outputs_.end(), returned.received.begin(), returned.received.end());
  }
  combined_ = tasks_.Issue(args_.compute(), tasks_.LabelOf("combine", rows, layer_idx), args_.cost.Combine(rows.size()),
                           std::exchange(expert_outputs_, {}), std::move(combine));
  return combined_;
}

Event PassFfn::Dense(RowRange rows, int64_t layer_idx) {
  if (rows.size() == 0 || !args_.config.has_ffn(layer_idx)) return {};
  return tasks_.Issue(args_.compute(), tasks_.LabelOf("dense ffn", rows, layer_idx), args_.cost.DenseFfn(rows.size()),
                      {}, [=](Operations& operations) { operations.DenseFfn(rows, layer_idx); });
}

}  // namespace penstock
