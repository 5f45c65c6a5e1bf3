#include "penstock/schedule/pass.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {

Pass::Pass(Args args) : args_(std::move(args)), group_rows_(static_cast<size_t>(args_.config.num_experts)) {
  args_.row_status.assign(static_cast<size_t>(args_.batch.num_rows()), absl::OkStatus());
}

Pass::~Pass() { (void)args_.runtime.Wait(last_); }

Event Pass::Issue(TaskLabel label, const OperationCost& cost, std::vector<Event> after, Body body) {
  Task task{.lane = args_.compute_lane,
            .label = label,
            .cost = {.flops = cost.flops, .memory_bytes = cost.bytes},
            .after = std::move(after)};
  task.after.push_back(last_);  // what fails ends the pass
  if (args_.context != nullptr) {
    task.body = [context = args_.context, run = std::move(body)] {
      run(*context);
      return absl::OkStatus();
    };
  }
  last_ = args_.runtime.Issue(std::move(task));
  return last_;
}

ModelCost::Context Pass::ContextOf(RowRange rows) const {
  const int64_t window = args_.config.sliding_window;
  ModelCost::Context context;
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    int64_t seen = args_.batch.positions[row_idx] + 1;
    if (window > 0) seen = std::min(seen, window);
    context.seen_tokens += seen;
    const bool is_last =
        row_idx + 1 == rows.end || args_.batch.sequence_ids[row_idx + 1] != args_.batch.sequence_ids[row_idx];
    if (is_last) context.read_tokens += seen;
  }
  return context;
}

Event Pass::Embed(RowRange rows) {
  return Issue({.name = "embed"}, {}, {},
               [this, rows](const OpContext& context) { ops::Embed(context, args_.batch, rows); });
}

Event Pass::Attention(RowRange rows, int64_t layer_idx) {
  return Issue({.name = "attention", .layer_idx = layer_idx}, args_.cost.Attention(rows.size(), ContextOf(rows)), {},
               [=, this](const OpContext& context) {
                 ops::PreAttention(context, rows, layer_idx);
                 ops::Attend(context, args_.batch, rows, layer_idx);
                 ops::PostAttention(context, rows, layer_idx);
               });
}

Event Pass::Route(RowRange rows, int64_t layer_idx) {
  return Issue({.name = "route", .layer_idx = layer_idx}, args_.cost.Route(rows.size()), {},
               [=](const OpContext& context) { ops::Route(context, rows, layer_idx); });
}

std::vector<int32_t> Pass::Chosen(RowRange rows, int64_t layer_idx) {
  std::vector<bool> seen(static_cast<size_t>(args_.config.num_experts));
  for (const int32_t expert_idx : args_.routing.Choices(layer_idx, rows.begin, rows.size())) seen[expert_idx] = true;
  std::vector<int32_t> chosen;
  for (size_t expert_idx = 0; expert_idx < seen.size(); ++expert_idx) {
    if (seen[expert_idx]) chosen.push_back(static_cast<int32_t>(expert_idx));
  }
  return chosen;
}

Event Pass::Group(RowRange rows, int64_t layer_idx) {
  std::fill(group_rows_.begin(), group_rows_.end(), 0);
  const std::span<const int32_t> choices = args_.routing.Choices(layer_idx, rows.begin, rows.size());
  for (const int32_t expert_idx : choices) ++group_rows_[expert_idx];
  if (args_.on_routing) args_.on_routing(layer_idx, rows, choices);
  return Issue({.name = "group", .layer_idx = layer_idx}, {}, {},
               [rows](const OpContext& context) { ops::Group(context, rows); });
}

Event Pass::Experts(int64_t layer_idx, std::span<const ExpertLease> leases) {
  OperationCost cost;
  std::vector<Event> after;
  std::vector<ExpertPlace> places;
  std::vector<LostExpert> lost;
  for (const ExpertLease& lease : leases) {
    const int64_t expert_idx = args_.experts->layouts().expert_idx_of(lease.key());
    const int64_t num_rows = group_rows_[static_cast<size_t>(expert_idx)];
    if (num_rows == 0) continue;
    const absl::Status arrived = args_.runtime.Wait(lease.arrived());
    if (!arrived.ok()) {
      lost.push_back({lease.place(), arrived});
      continue;
    }
    cost += args_.cost.Expert(num_rows);
    after.push_back(lease.arrived());
    places.push_back(lease.place());
  }
  TaskLabel label{.name = "experts", .layer_idx = layer_idx};
  if (places.size() == 1) label.expert_idx = args_.experts->layouts().expert_idx_of(places[0].key);
  return Issue(label, cost, std::move(after),
               [=, this](const OpContext& context) { RunExperts(context, places, lost); });
}

void Pass::RunExperts(const OpContext& context, std::span<const ExpertPlace> places, std::span<const LostExpert> lost) {
  for (const LostExpert& expert : lost) FailExpert(context, expert.place, expert.why);
  const std::vector<absl::Status> finished = args_.experts->Finish(places, context.pool);
  std::vector<ExpertToRun> experts;
  experts.reserve(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    if (finished[i].ok()) {
      experts.push_back({args_.experts->layouts().expert_idx_of(places[i].key), args_.experts->Weights(places[i])});
    } else {
      FailExpert(context, places[i], finished[i]);
    }
  }
  ops::Experts(context, experts);
}

// The rows go on with zeros, so that nothing that follows meets numbers that nobody wrote.
void Pass::FailExpert(const OpContext& context, const ExpertPlace& place, const absl::Status& status) {
  Activations& a = context.activations;
  const int64_t expert_idx = args_.experts->layouts().expert_idx_of(place.key);
  const int64_t dim = args_.config.model_dim;
  for (int64_t i = a.group_offsets[expert_idx]; i < a.group_offsets[expert_idx + 1]; ++i) {
    std::fill_n(a.expert_output.data() + i * dim, dim, 0.0f);
    args_.row_status[static_cast<size_t>(a.assigned_row[i])].Update(status);
  }
}

Event Pass::Combine(RowRange rows, int64_t layer_idx) {
  return Issue({.name = "combine", .layer_idx = layer_idx}, args_.cost.Combine(rows.size()), {},
               [rows](const OpContext& context) { ops::Combine(context, rows); });
}

Event Pass::DenseFfn(RowRange rows, int64_t layer_idx) {
  return Issue({.name = "dense ffn", .layer_idx = layer_idx}, args_.cost.DenseFfn(rows.size()), {},
               [=](const OpContext& context) { ops::DenseFfn(context, rows, layer_idx); });
}

absl::Status Pass::Finish(LogitsSink sink) {
  const std::span<const int64_t> wanted = args_.batch.logit_rows;
  const auto rows_at_once = static_cast<size_t>(args_.rows_at_once);
  for (size_t begin = 0; begin < wanted.size(); begin += rows_at_once) {
    const auto rows = wanted.subspan(begin, std::min(rows_at_once, wanted.size() - begin));
    const Event done = Issue({.name = "logits"}, args_.cost.Logits(static_cast<int64_t>(rows.size())), {},
                             [rows](const OpContext& context) { ops::Logits(context, rows); });
    Task sample{.lane = args_.host_lane, .label = {.name = "sample"}, .after = {done}};
    if (args_.context != nullptr) {
      sample.body = [this, rows, sink] {
        sink(rows, args_.context->activations.logits.first(rows.size() * static_cast<size_t>(args_.config.vocab_size)));
        return absl::OkStatus();
      };
    }
    PENSTOCK_RETURN_IF_ERROR(args_.runtime.Wait(args_.runtime.Issue(std::move(sample))));
  }
  return args_.runtime.Wait(last_);
}

}  // namespace penstock
