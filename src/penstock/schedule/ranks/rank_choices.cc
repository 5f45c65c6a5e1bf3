#include "penstock/schedule/ranks/rank_choices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {

Event RankChoices::Exchange(RowRange rows, int64_t layer_idx, const Event& routed) {
  if (std::exchange(is_taken_, false)) routed_.clear();
  auto own = std::make_shared<Routed>(Routed{.rows = rows, .layer_idx = layer_idx, .of_all = {}, .received = {}});
  own->of_all.choices.resize(transfers_.num_ranks());
  if (has_weights()) own->of_all.weights.resize(transfers_.num_ranks());
  routed_.push_back(own);
  const auto bytes_of = [&](int64_t num_choices) {
    return 4 * static_cast<uint64_t>(num_choices * words_per_choice());
  };
  const TaskLabel label{.name = "receive choices", .layer_idx = layer_idx};
  const int64_t num_own = rows.size() * args_.config.num_topk;
  const Event sent = transfers_.Send(
      {.name = "send choices", .layer_idx = layer_idx}, bytes_of(num_own * (transfers_.num_ranks() - 1)), {routed},
      [this, rows] {
        const Activations& a = args_.host.operations->activations();
        const std::span<const int32_t> choices = args_.host.operations->Choices(rows);
        outgoing_.assign(choices.begin(), choices.end());
        if (has_weights()) {
          outgoing_.resize(2 * choices.size());
          std::copy_n(reinterpret_cast<const int32_t*>(a.topk_weights.data()) + rows.begin * args_.config.num_topk,
                      choices.size(), outgoing_.begin() + std::ssize(choices));
        }
        return transfers_.ForEachOther([&](int rank) {
          return transfers_.communicator().Send(rank, MessageStream::kPass, std::as_bytes(std::span(outgoing_)));
        });
      });
  if (!args_.is_simulated()) {
    own->received = transfers_.Receive(label, bytes_of(num_own), {routed}, [this, own] { return Receive(*own); });
    return own->received;
  }
  PENSTOCK_CHECK(ReceiveInSimulation(*own).ok());  // ranks in virtual time do not fail
  int64_t num_received = -num_own;
  for (const std::vector<int32_t>& choices : own->of_all.choices) num_received += std::ssize(choices);
  own->received = transfers_.ReceiveSent(label, bytes_of(num_received), {}, nullptr, sent, [](int) { return true; });
  return own->received;
}

void RankChoices::Learn(int rank, std::span<const int32_t> message, Rows& rows) const {
  const size_t num_choices = message.size() / static_cast<size_t>(words_per_choice());
  rows.choices[rank].assign(message.begin(), message.begin() + static_cast<int64_t>(num_choices));
  if (!has_weights()) return;
  rows.weights[rank].resize(num_choices);
  if (num_choices > 0) {
    std::memcpy(rows.weights[rank].data(), message.data() + num_choices, num_choices * sizeof(float));
  }
}

absl::Status RankChoices::Receive(Routed& routed) {
  const Activations& a = args_.host.operations->activations();
  const int64_t num_topk = args_.config.num_topk;
  const std::span<const int32_t> own = args_.host.operations->Choices(routed.rows);
  routed.of_all.choices[transfers_.rank()].assign(own.begin(), own.end());
  if (has_weights()) {
    const auto* weights = a.topk_weights.data() + routed.rows.begin * num_topk;
    routed.of_all.weights[transfers_.rank()].assign(weights, weights + own.size());
  }
  incoming_.resize(static_cast<size_t>(a.dims.max_rows * num_topk * words_per_choice()));
  PENSTOCK_RETURN_IF_ERROR(transfers_.ForEachOther([&](int rank) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(
        const size_t size,
        transfers_.communicator().Receive(rank, MessageStream::kPass, std::as_writable_bytes(std::span(incoming_))));
    Learn(rank, std::span(incoming_).first(size / sizeof(int32_t)), routed.of_all);
    const std::vector<int32_t>& came = routed.of_all.choices[rank];
    const bool is_valid = std::ranges::all_of(
        came, [&](int32_t expert_idx) { return expert_idx >= 0 && expert_idx < args_.config.num_experts; });
    if (is_valid && std::ssize(came) % num_topk == 0) return absl::OkStatus();
    return MakeError(Fault::kInternal,
                     fmt::format("rank {} sent choices that are none: do all ranks run the same schedule?", rank));
  }));
  ChooseRanks(routed);
  return absl::OkStatus();
}

void RankChoices::ChooseRanks(Routed& routed) const {
  if (placement_ != nullptr)
    routed.of_all.ranks = placement_->RanksOf(routed.layer_idx, routed.of_all.choices, rows_of_weights_);
}

absl::Status RankChoices::ReceiveInSimulation(Routed& routed) {
  const std::span<const int32_t> choices =
      args_.routing.Choices(routed.layer_idx, routed.rows.begin, routed.rows.size());
  std::vector<int32_t> own(choices.begin(), choices.end());
  own.resize(own.size() * static_cast<size_t>(words_per_choice()));  // weights of 0
  Learn(transfers_.rank(), own, routed.of_all);
  PENSTOCK_RETURN_IF_ERROR(transfers_.ForEachOther([&](int rank) {
    return SendSized(transfers_.communicator(), rank, MessageStream::kPass, std::as_bytes(std::span(own)));
  }));
  PENSTOCK_RETURN_IF_ERROR(transfers_.ForEachOther([&](int rank) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::byte> message,
                              ReceiveSized(transfers_.communicator(), rank, MessageStream::kPass, kMaxMessageBytes));
    std::vector<int32_t> words(message.size() / sizeof(int32_t));
    if (!words.empty()) std::memcpy(words.data(), message.data(), message.size());
    Learn(rank, words, routed.of_all);
    return absl::OkStatus();
  }));
  ChooseRanks(routed);
  return absl::OkStatus();
}

void RankChoices::ForEach(RowRange rows, absl::FunctionRef<void(int32_t expert_idx)> visit) const {
  for (const std::shared_ptr<Routed>& routed : routed_) {
    if (routed->rows.begin < rows.begin || routed->rows.end > rows.end) continue;
    // An empty micro-batch lies within its neighbours, and its choices may still be on their way.
    if (!args_.runtime.Done(routed->received)) continue;
    const Rows& all = routed->of_all;
    for (int home = 0; home < transfers_.num_ranks(); ++home) {
      for (size_t i = 0; i < all.choices[home].size(); ++i) {
        if (placement_ == nullptr || all.ranks[home][i] == transfers_.rank()) visit(all.choices[home][i]);
      }
    }
  }
}

RankChoices::Rows RankChoices::Take() {
  Rows all;
  all.choices.resize(transfers_.num_ranks());
  all.weights.resize(transfers_.num_ranks());
  all.ranks.resize(transfers_.num_ranks());
  for (const std::shared_ptr<Routed>& routed : routed_) {
    for (int rank = 0; rank < transfers_.num_ranks(); ++rank) {
      const auto add = [rank](const auto& from, auto& to) {
        to[rank].insert(to[rank].end(), from[rank].begin(), from[rank].end());
      };
      add(routed->of_all.choices, all.choices);
      if (has_weights()) {
        add(routed->of_all.weights, all.weights);
      } else {
        add(routed->of_all.ranks, all.ranks);
      }
    }
  }
  is_taken_ = true;
  return all;
}

}  // namespace penstock
