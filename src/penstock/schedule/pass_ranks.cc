#include "penstock/schedule/pass_ranks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr size_t kMaxReason = 1000;  // bytes of the message about failed experts

std::span<const std::byte> BytesOf(const std::vector<int32_t>& values) { return std::as_bytes(std::span(values)); }

}  // namespace

PassRanks::PassRanks(const PassArgs& args, PassTasks& tasks, FailRow fail_row)
    : args_(args),
      tasks_(tasks),
      fail_row_(std::move(fail_row)),
      split_{args.ranks->communicator->rank(), args.ranks->communicator->num_ranks()},
      here_(split_.ExpertsOf(args.config.num_experts)) {}

absl::Status PassRanks::ForEachOther(absl::FunctionRef<absl::Status(int rank)> visit) const {
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (rank != split_.rank) PENSTOCK_RETURN_IF_ERROR(visit(rank));
  }
  return absl::OkStatus();
}

Event PassRanks::ExchangeChoices(RowRange rows, int64_t layer_idx, const Event& routed) {
  if (std::exchange(is_dispatched_, false)) routed_.clear();
  auto own = std::make_shared<Routed>(Routed{.rows = rows, .choices = {}, .received = {}});
  own->choices.resize(num_ranks());
  routed_.push_back(own);
  const uint64_t bytes = 4 * static_cast<uint64_t>(rows.size() * args_.config.num_topk);
  tasks_.Transfer(
      args_.ranks->to_ranks_lane, {.name = "send choices", .layer_idx = layer_idx}, bytes, {routed}, [this, rows] {
        const std::span<const int32_t> choices = args_.host.operations->Choices(rows);
        return ForEachOther(
            [&](int rank) { return communicator().Send(rank, MessageStream::kExperts, std::as_bytes(choices)); });
      });
  own->received = tasks_.Transfer(args_.ranks->from_ranks_lane, {.name = "receive choices", .layer_idx = layer_idx},
                                  bytes, {routed}, [this, own] { return ReceiveChoices(*own); });
  return own->received;
}

absl::Status PassRanks::ReceiveChoices(Routed& routed) {
  const std::span<const int32_t> choices = args_.host.operations->Choices(routed.rows);
  routed.choices[split_.rank].assign(choices.begin(), choices.end());
  incoming_.resize(static_cast<size_t>(activations().dims.max_rows * args_.config.num_topk));
  return ForEachOther([&](int rank) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const size_t size, communicator().Receive(rank, MessageStream::kExperts,
                                                                        std::as_writable_bytes(std::span(incoming_))));
    const auto came = std::span(incoming_).first(size / sizeof(int32_t));
    const bool is_valid = std::ranges::all_of(
        came, [&](int32_t expert_idx) { return expert_idx >= 0 && expert_idx < args_.config.num_experts; });
    if (!is_valid || came.size() % static_cast<size_t>(args_.config.num_topk) != 0) {
      return MakeError(Fault::kInternal, fmt::format("rank {} sent choices that are none: do all ranks run the same "
                                                     "schedule?",
                                                     rank));
    }
    routed.choices[rank].assign(came.begin(), came.end());
    return absl::OkStatus();
  });
}

void PassRanks::ForEachChoiceHere(RowRange rows, absl::FunctionRef<void(int32_t expert_idx)> visit) const {
  for (const std::shared_ptr<Routed>& routed : routed_) {
    if (routed->rows.begin < rows.begin || routed->rows.end > rows.end) continue;
    // An empty micro-batch lies within its neighbours, and its choices may still be on their way.
    if (!args_.runtime.Done(routed->received)) continue;
    for (const std::vector<int32_t>& choices : routed->choices) {
      for (const int32_t expert_idx : choices) {
        if (here_.contains(expert_idx)) visit(expert_idx);
      }
    }
  }
}

PassRanks::Dispatched PassRanks::Dispatch(RowRange rows, int64_t layer_idx) {
  auto exchange = std::make_shared<Exchange>();
  exchange->own.rows = rows;
  std::vector<std::vector<int32_t>> choices(num_ranks());
  for (const std::shared_ptr<Routed>& routed : routed_) {
    for (int rank = 0; rank < num_ranks(); ++rank) {
      choices[rank].insert(choices[rank].end(), routed->choices[rank].begin(), routed->choices[rank].end());
    }
  }
  is_dispatched_ = true;
  PENSTOCK_CHECK(std::ssize(choices[split_.rank]) == rows.size() * args_.config.num_topk);
  PlanExchange(choices, *exchange);
  exchange_ = exchange;
  const auto bytes_of = [&](int64_t num_rows) { return static_cast<uint64_t>(num_rows * args_.ffn_row_bytes); };
  int64_t num_sent = 0;
  for (const std::vector<int64_t>& sent : exchange->sent_rows) num_sent += std::ssize(sent);
  const int64_t num_received = std::reduce(exchange->num_inputs.begin(), exchange->num_inputs.end());
  tasks_.Transfer(args_.ranks->to_ranks_lane, {.name = "send rows", .layer_idx = layer_idx}, bytes_of(num_sent), {},
                  [this, exchange] { return SendRows(*exchange); });
  const Event received =
      tasks_.Transfer(args_.ranks->from_ranks_lane, {.name = "receive rows", .layer_idx = layer_idx},
                      bytes_of(num_received), {}, [this, exchange] { return ReceiveRows(*exchange); });
  return {std::shared_ptr<const RankAssignments>(exchange, &exchange->own), received};
}

void PassRanks::PlanExchange(const std::vector<std::vector<int32_t>>& choices, Exchange& exchange) const {
  exchange.sent_rows.resize(num_ranks());
  exchange.num_inputs.resize(num_ranks());
  exchange.sent_outputs.resize(num_ranks());
  exchange.num_outputs.resize(num_ranks());
  exchange.own_choices = choices[split_.rank];
  exchange.own.assignments.resize(exchange.own_choices.size());
  PlanHere(choices, exchange);
  PlanElsewhere(exchange);
}

// Gives places to the assignments of all ranks' rows to this rank's experts: by expert, then by rank and row.
void PassRanks::PlanHere(const std::vector<std::vector<int32_t>>& choices, Exchange& exchange) const {
  std::vector<int64_t>& offsets = exchange.own.group_offsets;
  offsets.resize(args_.config.num_experts + 1);
  for (const std::vector<int32_t>& of_rank : choices) {
    for (const int32_t expert_idx : of_rank) offsets[expert_idx + 1] += here_.contains(expert_idx) ? 1 : 0;
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  exchange.own.input_rows.resize(offsets.back());
  std::vector<int64_t> next_place = offsets;
  int64_t next_input = activations().dims.max_rows;  // inputs of other ranks come behind this rank's rows
  const int64_t num_topk = args_.config.num_topk;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const bool is_own = rank == split_.rank;
    for (int64_t row = 0; row < std::ssize(choices[rank]) / num_topk; ++row) {
      bool has_come = false;
      for (int64_t i = row * num_topk; i < (row + 1) * num_topk; ++i) {
        const int32_t expert_idx = choices[rank][i];
        if (!here_.contains(expert_idx)) continue;
        if (!is_own && !std::exchange(has_come, true)) {
          ++next_input;
          ++exchange.num_inputs[rank];
        }
        const int64_t place = next_place[expert_idx]++;
        exchange.own.input_rows[place] = is_own ? exchange.own.rows.begin + row : next_input - 1;
        if (is_own) {
          exchange.own.assignments[i] = place;
        } else {
          exchange.sent_outputs[rank].push_back(place);
        }
      }
    }
  }
}

// Gives places to the outputs of other ranks' experts for this rank's rows: by rank, then by row and choice. The other
// rank lists its outputs in the same order.
void PassRanks::PlanElsewhere(Exchange& exchange) const {
  const int64_t num_topk = args_.config.num_topk;
  int64_t next_place = exchange.own.group_offsets.back();
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (rank == split_.rank) continue;
    const ExpertRange there = RankSplit{rank, num_ranks()}.ExpertsOf(args_.config.num_experts);
    for (int64_t row = 0; row < exchange.own.rows.size(); ++row) {
      bool is_sent = false;
      for (int64_t i = row * num_topk; i < (row + 1) * num_topk; ++i) {
        if (!there.contains(exchange.own_choices[i])) continue;
        exchange.own.assignments[i] = next_place++;
        ++exchange.num_outputs[rank];
        if (!std::exchange(is_sent, true)) exchange.sent_rows[rank].push_back(exchange.own.rows.begin + row);
      }
    }
  }
}

absl::Status PassRanks::SendElements(int rank, std::span<const int64_t> elements, const std::byte* data,
                                     int64_t size_bytes) {
  const std::span<std::byte> message = activations().to_rank;
  const size_t num_bytes = elements.size() * static_cast<size_t>(size_bytes);
  PENSTOCK_CHECK(num_bytes <= message.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    std::memcpy(message.data() + i * static_cast<size_t>(size_bytes), data + elements[i] * size_bytes,
                static_cast<size_t>(size_bytes));
  }
  return communicator().Send(rank, MessageStream::kExperts, message.first(num_bytes));
}

absl::Status PassRanks::SendRows(const Exchange& exchange) {
  return ForEachOther([&](int rank) {
    return SendElements(rank, exchange.sent_rows[rank], activations().ffn_input.data(), args_.ffn_row_bytes);
  });
}

absl::Status PassRanks::ReceiveRows(const Exchange& exchange) {
  int64_t row = activations().dims.max_rows;
  return ForEachOther([&](int rank) -> absl::Status {
    const std::span<std::byte> room =
        activations().ffn_input.subspan(static_cast<size_t>(row * args_.ffn_row_bytes),
                                        static_cast<size_t>(exchange.num_inputs[rank] * args_.ffn_row_bytes));
    PENSTOCK_ASSIGN_OR_RETURN(const size_t size, communicator().Receive(rank, MessageStream::kExperts, room));
    PENSTOCK_CHECK(size == room.size());
    row += exchange.num_inputs[rank];
    return absl::OkStatus();
  });
}

void PassRanks::FailExpert(int64_t expert_idx, const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(exchange_->mutex);
  exchange_->failed.push_back(static_cast<int32_t>(expert_idx));
  exchange_->why.Update(status);
}

Event PassRanks::Return(int64_t layer_idx, const Event& computed) {
  const std::shared_ptr<Exchange> exchange = exchange_;
  const auto bytes_of = [&](int64_t num_outputs) {
    return static_cast<uint64_t>(num_outputs * args_.config.model_dim) * sizeof(float);
  };
  int64_t num_sent = 0;
  for (const std::vector<int64_t>& sent : exchange->sent_outputs) num_sent += std::ssize(sent);
  const int64_t num_received = std::reduce(exchange->num_outputs.begin(), exchange->num_outputs.end());
  tasks_.Transfer(args_.ranks->to_ranks_lane, {.name = "send outputs", .layer_idx = layer_idx}, bytes_of(num_sent),
                  {computed}, [this, exchange] { return SendOutputs(*exchange); });
  return tasks_.Transfer(args_.ranks->from_ranks_lane, {.name = "receive outputs", .layer_idx = layer_idx},
                         bytes_of(num_received), {computed}, [this, exchange] { return ReceiveOutputs(*exchange); });
}

absl::Status PassRanks::SendOutputs(Exchange& exchange) {
  const auto* const data = reinterpret_cast<const std::byte*>(activations().expert_output.data());
  const auto output_bytes = args_.config.model_dim * static_cast<int64_t>(sizeof(float));
  return ForEachOther([&](int rank) -> absl::Status {
    PENSTOCK_RETURN_IF_ERROR(SendFailures(rank, exchange));
    return SendElements(rank, exchange.sent_outputs[rank], data, output_bytes);
  });
}

absl::Status PassRanks::ReceiveOutputs(Exchange& exchange) {
  const int64_t dim = args_.config.model_dim;
  int64_t place = exchange.own.group_offsets.back();
  return ForEachOther([&](int rank) -> absl::Status {
    PENSTOCK_RETURN_IF_ERROR(ReceiveFailures(rank, exchange));
    const std::span<float> room = activations().expert_output.subspan(
        static_cast<size_t>(place * dim), static_cast<size_t>(exchange.num_outputs[rank] * dim));
    PENSTOCK_ASSIGN_OR_RETURN(const size_t size,
                              communicator().Receive(rank, MessageStream::kExperts, std::as_writable_bytes(room)));
    PENSTOCK_CHECK(size == room.size_bytes());
    place += exchange.num_outputs[rank];
    return absl::OkStatus();
  });
}

// A message of failures: the fault, the number of experts, the experts, then the reason as text.
absl::Status PassRanks::SendFailures(int rank, Exchange& exchange) {
  std::vector<int32_t> numbers;
  std::string reason;
  {
    const std::lock_guard<std::mutex> lock(exchange.mutex);
    numbers = {exchange.failed.empty() ? 0 : static_cast<int32_t>(FaultOf(exchange.why)),
               static_cast<int32_t>(exchange.failed.size())};
    numbers.insert(numbers.end(), exchange.failed.begin(), exchange.failed.end());
    if (!exchange.failed.empty()) reason = Message(exchange.why).substr(0, kMaxReason);
  }
  std::vector<std::byte> message(BytesOf(numbers).begin(), BytesOf(numbers).end());
  const std::span<const std::byte> text = std::as_bytes(std::span(reason));
  message.insert(message.end(), text.begin(), text.end());
  return communicator().Send(rank, MessageStream::kExperts, message);
}

absl::Status PassRanks::ReceiveFailures(int rank, const Exchange& exchange) {
  std::vector<std::byte> message(sizeof(int32_t) * (2 + args_.config.num_experts) + kMaxReason);
  PENSTOCK_ASSIGN_OR_RETURN(const size_t size, communicator().Receive(rank, MessageStream::kExperts, message));
  const auto number = [&](size_t idx) {
    int32_t value = 0;
    PENSTOCK_CHECK((idx + 1) * sizeof(value) <= size);
    std::memcpy(&value, message.data() + idx * sizeof(value), sizeof(value));
    return value;
  };
  const auto num_failed = static_cast<size_t>(number(1));
  if (num_failed == 0) return absl::OkStatus();
  const size_t text_at = (2 + num_failed) * sizeof(int32_t);
  PENSTOCK_CHECK(text_at <= size);
  const absl::Status why = MakeError(static_cast<Fault>(number(0)),
                                     {reinterpret_cast<const char*>(message.data()) + text_at, size - text_at});
  for (size_t i = 0; i < num_failed; ++i) {
    const int32_t expert_idx = number(2 + i);
    for (size_t at = 0; at < exchange.own_choices.size(); ++at) {
      if (exchange.own_choices[at] != expert_idx) continue;
      fail_row_(exchange.own.rows.begin + static_cast<int64_t>(at) / args_.config.num_topk, why);
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
