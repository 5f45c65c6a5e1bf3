#include "penstock/schedule/ranks/pass_cut_experts.h"

#include <algorithm>
#include <numeric>

#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "penstock/schedule/ranks/rank_message.h"

namespace penstock {

PassCutExperts::PassCutExperts(const PassArgs& args, PassTasks& tasks, FailRow fail_row)
    : args_(args),
      tasks_(tasks),
      transfers_(args, tasks),
      fail_row_(std::move(fail_row)),
      choices_(args, transfers_, /*placement=*/nullptr, /*rows_of_weights=*/0) {}

// Places outputs by expert, then by rank and row of the choices. The sums of all ranks' rows lie behind all outputs,
// and then the sums that the other ranks send for this rank's rows.
void PassCutExperts::Plan(const RankChoices::Rows& routed, Exchange& exchange) const {
  const int64_t num_topk = args_.config.num_topk;
  exchange.own_choices = routed.choices[transfers_.rank()];
  PENSTOCK_CHECK(std::ssize(exchange.own_choices) == exchange.rows.size() * num_topk);
  std::vector<int64_t>& offsets = exchange.assignments.group_offsets;
  offsets.resize(args_.config.num_experts + 1);
  for (const std::vector<int32_t>& choices : routed.choices) {
    for (const int32_t expert_idx : choices) ++offsets[expert_idx + 1];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  exchange.assignments.input_rows.resize(offsets.back());
  std::vector<int64_t> next_place(offsets.begin(), offsets.end() - 1);
  int64_t next_sum = offsets.back(), next_input = args_.is_simulated() ? 0 : activations().dims.max_rows;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const std::vector<int32_t>& choices = routed.choices[rank];
    const int64_t num_rows = std::ssize(choices) / num_topk;
    const bool is_own = rank == transfers_.rank();
    const Place place = {is_own ? exchange.rows.begin : next_input, next_sum, num_rows};
    exchange.of_rank.push_back(place);
    next_sum += num_rows;
    if (!is_own) next_input += num_rows;
    for (int64_t i = 0; i < std::ssize(choices); ++i) {
      const int64_t output = next_place[choices[i]]++;
      exchange.assignments.input_rows[output] = place.input + i / num_topk;
      exchange.places.push_back(output);
    }
    exchange.weights.insert(exchange.weights.end(), routed.weights[rank].begin(), routed.weights[rank].end());
  }
  for (int64_t row = 0; row < exchange.rows.size(); ++row) {
    int64_t received = next_sum + row;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      const bool is_own = rank == transfers_.rank();
      exchange.sums.push_back(is_own ? exchange.of_rank[rank].sum + row : received);
      if (!is_own) received += exchange.rows.size();
    }
  }
}

std::shared_ptr<const RankAssignments> PassCutExperts::Dispatch(RowRange rows, int64_t layer_idx) {
  auto exchange = std::make_shared<Exchange>();
  exchange->rows = rows;
  Plan(choices_.Take(), *exchange);
  exchange_ = exchange;
  int64_t num_elsewhere = -rows.size();
  for (const Place& place : exchange->of_rank) num_elsewhere += place.num_rows;
  const auto bytes_of = [&](int64_t num_rows) { return static_cast<uint64_t>(num_rows * args_.ffn_row_bytes); };
  exchange->rows_sent = transfers_.Send(
      {.name = "send rows", .layer_idx = layer_idx}, bytes_of(rows.size() * (num_ranks() - 1)), {},
      [this, exchange] { return transfers_.SendToAll(InputsOf(exchange->of_rank[transfers_.rank()])); });
  // The sums of the last exchange were sent, so its experts have been computed, and need their inputs no more.
  exchange->rows_here = transfers_.ReceiveSent(
      {.name = "receive rows", .layer_idx = layer_idx}, bytes_of(num_elsewhere), {sums_sent_},
      [this, exchange] {
        return transfers_.ForEachOther(
            [&](int rank) { return transfers_.ReceiveFrom(rank, InputsOf(exchange->of_rank[rank])); });
      },
      exchange->rows_sent, [&](int rank) { return exchange->of_rank[rank].num_rows > 0; });
  return {exchange, &exchange->assignments};
}

std::span<std::byte> PassCutExperts::InputsOf(const Place& place) const {
  return activations().ffn_input.subspan(static_cast<size_t>(place.input * args_.ffn_row_bytes),
                                         static_cast<size_t>(place.num_rows * args_.ffn_row_bytes));
}

void PassCutExperts::FailExpert(int64_t expert_idx, const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(exchange_->mutex);
  exchange_->failed.emplace_back(expert_idx, status);
}

ExpertExchange::Returned PassCutExperts::Finish(int64_t layer_idx) {
  const std::shared_ptr<Exchange> exchange = exchange_;
  int64_t num_rows = 0;
  for (const Place& place : exchange->of_rank) num_rows += place.num_rows;
  const auto sum = [this, exchange](Operations& operations) {
    operations.SumOutputs(exchange->of_rank[0].sum, exchange->places, exchange->weights);
    if (args_.comm == CommFormat::kF32) return;
    // The other sums are rounded when they are sent.
    const Place& own = exchange->of_rank[transfers_.rank()];
    operations.RoundOutputs({own.sum, own.sum + own.num_rows}, args_.comm);
  };
  const Event summed = tasks_.Issue(args_.compute(), {.name = "sum", .layer_idx = layer_idx},
                                    args_.cost.Combine(num_rows), {sums_sent_}, sum);
  sums_sent_ =
      transfers_.Send({.name = "send sums", .layer_idx = layer_idx}, SumBytes(num_rows - exchange->rows.size()),
                      {summed}, [this, exchange] { return SendSums(*exchange); });
  const Event sums_here = transfers_.ReceiveSent(
      {.name = "receive sums", .layer_idx = layer_idx}, SumBytes(exchange->rows.size() * (num_ranks() - 1)), {summed},
      [this, exchange] { return ReceiveSums(*exchange); }, sums_sent_, [&](int) { return exchange->rows.size() > 0; });
  return {.combine =
              [exchange, layer_idx, num_ranks = num_ranks()](Operations& operations) {
                operations.AddSums(exchange->rows, layer_idx, exchange->sums, num_ranks);
              },
          .received = {exchange->rows_sent, sums_here}};
}

absl::Status PassCutExperts::SendSums(Exchange& exchange) {
  OutputsTrailer trailer;
  {
    const std::lock_guard<std::mutex> lock(exchange.mutex);
    for (const auto& [expert_idx, why] : exchange.failed) {
      trailer.failed.push_back(static_cast<int32_t>(expert_idx));
      trailer.why = why;
    }
  }
  return transfers_.ForEachOther([&](int rank) -> absl::Status {
    const Place& place = exchange.of_rank[rank];
    if (place.num_rows == 0) return absl::OkStatus();
    const int64_t dim = args_.config.expert_row_dim();
    MessageWriter writer(activations().to_rank);
    EncodeOutputs(args_.comm,
                  activations().expert_output.subspan(static_cast<size_t>(place.sum * dim),
                                                      static_cast<size_t>(place.num_rows * dim)),
                  dim, writer.Take(SumBytes(place.num_rows)));
    AddTrailer(trailer, writer);
    return communicator().Send(rank, MessageStream::kPass, writer.message());
  });
}

absl::Status PassCutExperts::ReceiveSums(const Exchange& exchange) {
  if (exchange.rows.size() == 0) return absl::OkStatus();
  const int64_t dim = args_.config.expert_row_dim(), num_topk = args_.config.num_topk;
  return transfers_.ForEachOther([&](int rank) -> absl::Status {
    // A message's trailer lies where the next sums will.
    const std::span<float> room = activations().expert_output.subspan(static_cast<size_t>(exchange.sums[rank] * dim));
    PENSTOCK_ASSIGN_OR_RETURN(const size_t size,
                              communicator().Receive(rank, MessageStream::kPass, std::as_writable_bytes(room)));
    const OutputsMessage read = ReadTrailer(std::as_bytes(room).first(size), args_.config.num_experts);
    PENSTOCK_CHECK(read.outputs_bytes == SumBytes(exchange.rows.size()));
    DecodeOutputs(args_.comm, room.first(static_cast<size_t>(exchange.rows.size() * dim)), dim);
    for (int64_t i = 0; i < std::ssize(exchange.own_choices); ++i) {
      if (std::ranges::find(read.trailer.failed, exchange.own_choices[i]) == read.trailer.failed.end()) continue;
      fail_row_(exchange.rows.begin + i / num_topk, read.trailer.why);
    }
    return absl::OkStatus();
  });
}

}  // namespace penstock
