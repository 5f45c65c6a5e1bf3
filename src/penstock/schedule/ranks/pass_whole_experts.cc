#include "penstock/schedule/ranks/pass_whole_experts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "penstock/schedule/ranks/rank_message.h"

namespace penstock {
namespace {

constexpr int64_t kMaxGroups = 32;

// Returns the number of rows whose computation takes as long as reading an expert's weights.
int64_t RowsOfWeights(const PassArgs& args) {
  constexpr int64_t kManyRows = 1 << 14;  // enough to hide the reading of weights
  const auto seconds = [&](int64_t num_rows) {
    const OperationCost cost = args.cost.Expert(num_rows);
    return args.ranks->compute_time({.flops = cost.flops, .memory_bytes = cost.bytes});
  };
  const double of_row_s = (seconds(2 * kManyRows) - seconds(kManyRows)) / kManyRows;
  return std::max<int64_t>(1, static_cast<int64_t>(seconds(1) / of_row_s));
}

// Returns the group of each expert with rows. The groups have about equally many rows. No group is empty if there are
// enough experts.
std::vector<int64_t> CutIntoGroups(std::span<const int64_t> rows_of, int64_t num_groups) {
  std::vector<int64_t> group_of(rows_of.size());
  const int64_t num_rows = std::reduce(rows_of.begin(), rows_of.end());
  const int64_t num_used = std::ssize(rows_of) - std::ranges::count(rows_of, 0);
  int64_t num_before = 0, used_idx = 0;
  for (size_t expert_idx = 0; expert_idx < rows_of.size(); ++expert_idx) {
    if (rows_of[expert_idx] == 0) continue;
    const int64_t middle = 2 * num_before + rows_of[expert_idx];  // in half rows
    const int64_t last = std::min(num_groups - 1, used_idx);
    const int64_t first = std::clamp<int64_t>(num_groups - num_used + used_idx, 0, last);
    group_of[expert_idx] = std::clamp(middle * num_groups / (2 * num_rows), first, last);
    num_before += rows_of[expert_idx];
    ++used_idx;
  }
  return group_of;
}

TaskLabel ReceiveOutputsLabel(int64_t layer_idx) { return {.name = "receive outputs", .layer_idx = layer_idx}; }

}  // namespace

PassWholeExperts::PassWholeExperts(const PassArgs& args, PassTasks& tasks, FailRow fail_row)
    : args_(args),
      transfers_(args, tasks),
      fail_row_(std::move(fail_row)),
      choices_(args, transfers_, args.experts->layouts().placement().get(), RowsOfWeights(args)) {}

std::shared_ptr<const RankAssignments> PassWholeExperts::Dispatch(RowRange rows, int64_t layer_idx) {
  auto exchange = std::make_shared<Exchange>();
  exchange->rows = rows;
  const RankChoices::Rows routed = choices_.Take();
  PENSTOCK_CHECK(std::ssize(routed.choices[rank()]) == rows.size() * args_.config.num_topk);
  PlanExchange(routed, *exchange);
  if (exchange_ != nullptr && exchange_->num_sent_outputs > 0) outputs_sent_ = exchange_->outputs_sent;
  exchange_ = exchange;
  const auto bytes_of = [&](int64_t num_rows) { return static_cast<uint64_t>(num_rows * args_.ffn_row_bytes); };
  RankTransfers::SendTimes sending;  // of each group
  for (int64_t group = 0; group < exchange->num_groups; ++group) {
    int64_t num_sent = 0;
    for (const std::vector<int64_t>& sent : exchange->sent_rows[group]) num_sent += std::ssize(sent);
    exchange->rows_sent = transfers_.Send({.name = "send rows", .layer_idx = layer_idx}, bytes_of(num_sent), {},
                                          [this, exchange, group] { return SendRows(*exchange, group); });
    sending.push_back(SimulatedRuntime::TimesOf(exchange->rows_sent));
  }
  std::vector<RankTransfers::SendTimes> times;
  if (args_.is_simulated()) times = transfers_.ExchangeTimes(sending);
  for (int64_t group = 0; group < exchange->num_groups; ++group) {
    const TaskLabel label{.name = "receive rows", .layer_idx = layer_idx};
    const std::vector<Inputs>& inputs = exchange->inputs[group];
    int64_t num_received = 0;
    for (const Inputs& of_rank : inputs) num_received += of_rank.num_rows;
    if (args_.is_simulated()) {
      exchange->inputs_here.push_back(transfers_.IssueArrival(label, bytes_of(num_received),
                                                              [&](int rank) -> std::optional<SimulatedRuntime::Times> {
                                                                if (inputs[rank].num_rows == 0) return std::nullopt;
                                                                return times[rank][group];
                                                              }));
    } else {
      exchange->inputs_here.push_back(
          transfers_.Receive(label, bytes_of(num_received), {outputs_sent_},
                             [this, exchange, group] { return Receive(*exchange, group + 1, /*outputs=*/false); }));
    }
  }
  if (!args_.is_simulated()) {
    exchange->outputs_here =
        transfers_.Receive(ReceiveOutputsLabel(layer_idx), OutputBytes(exchange->num_outputs_here), {outputs_sent_},
                           [this, exchange] { return Receive(*exchange, exchange->num_groups, /*outputs=*/true); });
  }
  return {exchange, &exchange->own};
}

void PassWholeExperts::PlanExchange(const RankChoices::Rows& routed, Exchange& exchange) const {
  exchange.own_choices = routed.choices[rank()];
  exchange.own_ranks = routed.ranks[rank()];
  exchange.next_group.resize(num_ranks());
  exchange.outputs_left.resize(num_ranks());
  exchange.places.resize(exchange.own_choices.size());
  PlanGroups(routed, exchange);
  PlanHere(routed, exchange);
  PlanElsewhere(exchange);
}

// Chooses the number of groups, and cuts the experts of each rank into groups. Identity experts are in none.
void PassWholeExperts::PlanGroups(const RankChoices::Rows& routed, Exchange& exchange) const {
  RowsOfExperts rows_of(num_ranks(), std::vector<int64_t>(args_.config.num_experts));
  for (int home = 0; home < num_ranks(); ++home) {
    for (size_t i = 0; i < routed.choices[home].size(); ++i) {
      const int32_t expert_idx = routed.choices[home][i];
      if (expert_idx < args_.config.num_stored_experts()) ++rows_of[routed.ranks[home][i]][expert_idx];
    }
  }
  int64_t max_groups = 1;
  for (const std::vector<int64_t>& of_rank : rows_of) {
    max_groups = std::max<int64_t>(max_groups, std::ssize(of_rank) - std::ranges::count(of_rank, 0));
  }
  max_groups = std::min(max_groups, kMaxGroups);
  exchange.num_groups = args_.ranks->expert_groups > 0 ? std::min(args_.ranks->expert_groups, max_groups)
                                                       : BestExpertGroups(TimesOf(routed, rows_of), max_groups);
  for (const std::vector<int64_t>& of_rank : rows_of) {
    exchange.group_of.push_back(CutIntoGroups(of_rank, exchange.num_groups));
  }
}

PipelineTimes PassWholeExperts::TimesOf(const RankChoices::Rows& routed, const RowsOfExperts& rows_of) const {
  std::vector<int64_t> rows_out(num_ranks()), rows_in(num_ranks()), outputs_out(num_ranks()), outputs_in(num_ranks());
  double compute_s = 0;
  for (const std::vector<int64_t>& of_rank : rows_of) {
    TaskCost cost;
    for (const int64_t num_rows : of_rank) {
      if (num_rows == 0) continue;
      const OperationCost of_expert = args_.cost.Expert(num_rows);
      cost.flops += of_expert.flops;
      cost.memory_bytes += of_expert.bytes;
    }
    compute_s = std::max(compute_s, args_.ranks->compute_time(cost));
  }
  const int64_t num_topk = args_.config.num_topk;
  std::vector<int64_t> last_row(num_ranks());  // 1 + the last row that a rank gets from the home
  for (int home = 0; home < num_ranks(); ++home) {
    std::ranges::fill(last_row, 0);
    for (int64_t i = 0; i < std::ssize(routed.ranks[home]); ++i) {
      const int rank = routed.ranks[home][i];
      if (rank == home) continue;
      ++outputs_out[rank];
      ++outputs_in[home];
      if (std::exchange(last_row[rank], i / num_topk + 1) == i / num_topk + 1) continue;
      ++rows_out[home];
      ++rows_in[rank];
    }
  }
  const auto max_of = [](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
    return static_cast<uint64_t>(std::max(std::ranges::max(a), std::ranges::max(b)));
  };
  const Link& link = args_.ranks->link;
  return {.rows_s = static_cast<double>(max_of(rows_out, rows_in) * static_cast<uint64_t>(args_.ffn_row_bytes)) /
                    link.bytes_per_s,
          .compute_s = compute_s,
          .outputs_s = static_cast<double>(OutputBytes(static_cast<int64_t>(max_of(outputs_out, outputs_in)))) /
                       link.bytes_per_s,
          .group_s = link.latency_s,  // messages to several ranks are under way together
          .choices_per_row = static_cast<double>(std::reduce(outputs_in.begin(), outputs_in.end())) /
                             std::max<double>(1, static_cast<double>(std::reduce(rows_in.begin(), rows_in.end())))};
}

void PassWholeExperts::ForEachRow(std::span<const int32_t> choices, std::span<const int32_t> ranks, int rank,
                                  std::span<const int64_t> group_of,
                                  absl::FunctionRef<void(int64_t row_idx, int64_t group)> visit) const {
  const int64_t num_topk = args_.config.num_topk;
  for (int64_t row = 0; row < std::ssize(choices) / num_topk; ++row) {
    int64_t first_group = kMaxGroups;
    for (int64_t i = row * num_topk; i < (row + 1) * num_topk; ++i) {
      if (ranks[i] == rank) first_group = std::min(first_group, group_of[choices[i]]);
    }
    if (first_group < kMaxGroups) visit(row, first_group);
  }
}

// Gives places to the assignments of all ranks' rows to this rank's experts: by expert, then by rank and row. Gives
// rows of ffn_input to the rows of other ranks: by rank, then by group.
void PassWholeExperts::PlanHere(const RankChoices::Rows& routed, Exchange& exchange) const {
  const int64_t num_topk = args_.config.num_topk;
  const int64_t num_experts = args_.config.num_experts;
  std::vector<int64_t>& offsets = exchange.output_offsets;
  offsets.resize(num_experts * num_ranks() + 1);
  for (int home = 0; home < num_ranks(); ++home) {
    for (size_t i = 0; i < routed.choices[home].size(); ++i) {
      if (routed.ranks[home][i] == rank()) ++offsets[routed.choices[home][i] * num_ranks() + home + 1];
    }
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  for (int64_t expert_idx = 0; expert_idx <= num_experts; ++expert_idx) {
    exchange.own.group_offsets.push_back(offsets[expert_idx * num_ranks()]);
  }
  exchange.own.input_rows.resize(offsets.back());
  std::vector<int64_t> next_place = offsets;
  exchange.inputs.assign(exchange.num_groups, std::vector<Inputs>(num_ranks()));
  int64_t next_input = args_.is_simulated() ? 0 : activations().dims.max_rows;
  for (int home = 0; home < num_ranks(); ++home) {
    const bool is_own = home == rank();
    const std::span<const int32_t> choices = routed.choices[home], ranks = routed.ranks[home];
    std::vector<int64_t> input_of(choices.size() / num_topk);  // rows of ffn_input
    if (is_own) {
      std::iota(input_of.begin(), input_of.end(), exchange.rows.begin);
    } else {
      std::vector<std::vector<int64_t>> rows_of_group(exchange.num_groups);
      ForEachRow(choices, ranks, rank(), exchange.group_of[rank()],
                 [&](int64_t row, int64_t group) { rows_of_group[group].push_back(row); });
      for (int64_t group = 0; group < exchange.num_groups; ++group) {
        exchange.inputs[group][home] = {next_input, std::ssize(rows_of_group[group])};
        for (const int64_t row : rows_of_group[group]) input_of[row] = next_input++;
      }
    }
    for (int64_t i = 0; i < std::ssize(choices); ++i) {
      if (ranks[i] != rank()) continue;
      const int64_t place = next_place[choices[i] * num_ranks() + home]++;
      exchange.own.input_rows[place] = input_of[i / num_topk];
      if (is_own) {
        exchange.places[i] = place;
      } else {
        ++exchange.num_outputs_elsewhere;
      }
    }
  }
  exchange.next_place = offsets.back();
}

// Lists this rank's rows and choices by the ranks and experts that compute them.
void PassWholeExperts::PlanElsewhere(Exchange& exchange) const {
  exchange.sent_rows.assign(exchange.num_groups, std::vector<std::vector<int64_t>>(num_ranks()));
  exchange.choices_of.resize(args_.config.num_experts);
  for (int to = 0; to < num_ranks(); ++to) {
    if (to == rank()) continue;
    ForEachRow(exchange.own_choices, exchange.own_ranks, to, exchange.group_of[to],
               [&](int64_t row, int64_t group) { exchange.sent_rows[group][to].push_back(exchange.rows.begin + row); });
  }
  for (int64_t i = 0; i < std::ssize(exchange.own_choices); ++i) {
    if (exchange.own_ranks[i] == rank()) continue;
    exchange.choices_of[exchange.own_choices[i]].push_back(i);
    ++exchange.outputs_left[exchange.own_ranks[i]];
    ++exchange.num_outputs_here;
  }
}

Event PassWholeExperts::InputsOf(int64_t expert_idx) const {
  const auto first = exchange_->output_offsets.begin() + expert_idx * num_ranks();
  const int64_t num_own = first[rank() + 1] - first[rank()];
  if (first[num_ranks()] - first[0] == num_own) return {};
  return exchange_->inputs_here[exchange_->group_of[rank()][expert_idx]];
}

void PassWholeExperts::RoundOwnOutputs(Operations& operations, int64_t expert_idx) const {
  const auto first = exchange_->output_offsets.begin() + expert_idx * num_ranks() + rank();
  operations.RoundOutputs({first[0], first[1]}, args_.comm);
}

absl::Status PassWholeExperts::SendRows(const Exchange& exchange, int64_t group) {
  return transfers_.ForEachOther([&](int rank) -> absl::Status {
    const std::vector<int64_t>& rows = exchange.sent_rows[group][rank];
    if (rows.empty()) return absl::OkStatus();
    MessageWriter writer(activations().to_rank);
    for (const int64_t row : rows) {
      writer.Add(activations().ffn_input.data() + row * args_.ffn_row_bytes, static_cast<size_t>(args_.ffn_row_bytes));
    }
    return communicator().Send(rank, MessageStream::kPass, writer.message());
  });
}

absl::Status PassWholeExperts::Receive(Exchange& exchange, int64_t end_group, bool outputs) {
  for (;;) {
    // Any message of a rank that still owes some for this exchange is taken. So its sender need not wait.
    std::vector<int> owing;
    bool is_enough = true;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      int64_t& group = exchange.next_group[rank];
      while (group < exchange.num_groups && exchange.inputs[group][rank].num_rows == 0) ++group;
      if (group == exchange.num_groups && exchange.outputs_left[rank] == 0) continue;
      owing.push_back(rank);
      if (group < end_group || (outputs && exchange.outputs_left[rank] > 0)) is_enough = false;
    }
    if (is_enough) return absl::OkStatus();
    const auto outputs_room = std::as_writable_bytes(
        activations().expert_output.subspan(static_cast<size_t>(exchange.next_place * args_.config.expert_row_dim())));
    const auto room_of = [&](int rank) -> std::span<std::byte> {
      const int64_t group = exchange.next_group[rank];
      if (group == exchange.num_groups) return outputs_room;
      const Inputs& inputs = exchange.inputs[group][rank];
      return activations().ffn_input.subspan(static_cast<size_t>(inputs.begin * args_.ffn_row_bytes),
                                             static_cast<size_t>(inputs.num_rows * args_.ffn_row_bytes));
    };
    PENSTOCK_ASSIGN_OR_RETURN(const Communicator::Received received,
                              communicator().ReceiveAny(owing, MessageStream::kPass, room_of));
    if (exchange.next_group[received.from] < exchange.num_groups) {
      PENSTOCK_CHECK(received.size == room_of(received.from).size());
      ++exchange.next_group[received.from];
    } else {
      PENSTOCK_RETURN_IF_ERROR(TakeOutputs(exchange, received.from, outputs_room.first(received.size)));
    }
  }
}

void PassWholeExperts::FailExpert(int64_t expert_idx, const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(exchange_->mutex);
  exchange_->failed.emplace_back(expert_idx, status);
}

void PassWholeExperts::Return(int64_t layer_idx, std::span<const int64_t> expert_idxs, const Event& computed) {
  Exchange& exchange = *exchange_;
  for (const int64_t expert_idx : expert_idxs) {
    const auto first = exchange.output_offsets.begin() + expert_idx * num_ranks();
    const int64_t num_own = first[rank() + 1] - first[rank()];
    exchange.waiting.push_back(expert_idx);
    exchange.num_waiting_outputs += first[num_ranks()] - first[0] - num_own;
  }
  exchange.computed = computed;
  // Groups have different sizes, so half the usual number of outputs is enough for a message.
  const int64_t of_group = exchange.num_outputs_elsewhere / exchange.num_groups;
  if (exchange.num_groups > 1 && exchange.num_waiting_outputs > of_group / 2) IssueReturn(layer_idx);
}

void PassWholeExperts::IssueReturn(int64_t layer_idx) {
  const std::shared_ptr<Exchange> exchange = exchange_;
  const int64_t num_outputs = std::exchange(exchange->num_waiting_outputs, 0);
  const bool is_first = exchange->num_sent_outputs == 0;
  exchange->num_sent_outputs += num_outputs;
  exchange->outputs_sent =
      transfers_.Send({.name = "send outputs", .layer_idx = layer_idx}, OutputBytes(num_outputs), {exchange->computed},
                      [this, exchange, expert_idxs = std::exchange(exchange->waiting, {})] {
                        return SendOutputs(*exchange, expert_idxs);
                      });
  if (!args_.is_simulated()) return;
  const SimulatedRuntime::Times sending = SimulatedRuntime::TimesOf(exchange->outputs_sent);
  if (is_first) exchange->sending_outputs.begin_s = sending.begin_s;
  exchange->sending_outputs.end_s = sending.end_s;
}

PassWholeExperts::Returned PassWholeExperts::Finish(int64_t layer_idx) {
  if (exchange_->num_waiting_outputs > 0) IssueReturn(layer_idx);
  PENSTOCK_CHECK(exchange_->num_sent_outputs == exchange_->num_outputs_elsewhere);
  if (args_.is_simulated()) {
    const std::vector<RankTransfers::SendTimes> times = transfers_.ExchangeTimes({exchange_->sending_outputs});
    exchange_->outputs_here =
        transfers_.IssueArrival(ReceiveOutputsLabel(layer_idx), OutputBytes(exchange_->num_outputs_here),
                                [&](int rank) -> std::optional<SimulatedRuntime::Times> {
                                  if (exchange_->outputs_left[rank] == 0) return std::nullopt;
                                  return times[rank][0];
                                });
  }
  return {.combine =
              [exchange = exchange_, layer_idx](Operations& operations) {
                operations.PlaceOutputs(exchange->rows, exchange->places);
                operations.Combine(exchange->rows, layer_idx);
              },
          .received = {exchange_->rows_sent, exchange_->outputs_here}};
}

absl::Status PassWholeExperts::SendOutputs(Exchange& exchange, std::span<const int64_t> expert_idxs) {
  return transfers_.ForEachOther([&](int rank) -> absl::Status { return SendOutputsTo(rank, exchange, expert_idxs); });
}

absl::Status PassWholeExperts::SendOutputsTo(int rank, Exchange& exchange, std::span<const int64_t> expert_idxs) {
  MessageWriter writer(activations().to_rank);
  OutputsTrailer trailer;
  const std::lock_guard<std::mutex> lock(exchange.mutex);
  for (const int64_t expert_idx : expert_idxs) {
    const auto first = exchange.output_offsets.begin() + expert_idx * num_ranks() + rank;
    if (first[1] == first[0]) continue;
    trailer.experts.push_back(static_cast<int32_t>(expert_idx));
    const int64_t dim = args_.config.expert_row_dim();
    const std::span<const float> outputs = activations().expert_output.subspan(
        static_cast<size_t>(first[0] * dim), static_cast<size_t>((first[1] - first[0]) * dim));
    EncodeOutputs(args_.comm, outputs, dim, writer.Take(OutputBytes(first[1] - first[0])));
    const auto failure = std::ranges::find(exchange.failed, expert_idx, &std::pair<int64_t, absl::Status>::first);
    if (failure == exchange.failed.end()) continue;
    trailer.failed.push_back(static_cast<int32_t>(expert_idx));
    trailer.why = failure->second;
  }
  if (trailer.experts.empty()) return absl::OkStatus();
  AddTrailer(trailer, writer);
  return communicator().Send(rank, MessageStream::kPass, writer.message());
}

absl::Status PassWholeExperts::TakeOutputs(Exchange& exchange, int from, std::span<const std::byte> message) {
  const OutputsMessage read = ReadTrailer(message, args_.config.num_experts);
  // Calls visit(i) for each own choice of the expert that the rank computes.
  const auto for_each_choice = [&](int32_t expert_idx, auto visit) {
    for (const int64_t i : exchange.choices_of[expert_idx]) {
      if (exchange.own_ranks[i] == from) visit(i);
    }
  };
  int64_t num_outputs = 0;
  for (const int32_t expert_idx : read.trailer.experts) {
    for_each_choice(expert_idx, [&](int64_t i) { exchange.places[i] = exchange.next_place + num_outputs++; });
  }
  PENSTOCK_CHECK(read.outputs_bytes == OutputBytes(num_outputs) && num_outputs <= exchange.outputs_left[from]);
  const int64_t dim = args_.config.expert_row_dim();
  DecodeOutputs(args_.comm,
                activations().expert_output.subspan(static_cast<size_t>(exchange.next_place * dim),
                                                    static_cast<size_t>(num_outputs * dim)),
                dim);
  exchange.next_place += num_outputs;
  exchange.outputs_left[from] -= num_outputs;
  for (const int32_t expert_idx : read.trailer.failed) {
    for_each_choice(expert_idx,
                    [&](int64_t i) { fail_row_(exchange.rows.begin + i / args_.config.num_topk, read.trailer.why); });
  }
  return absl::OkStatus();
}

}  // namespace penstock
