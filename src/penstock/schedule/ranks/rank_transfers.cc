#include "penstock/schedule/ranks/rank_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {

absl::Status RankTransfers::ForEachOther(absl::FunctionRef<absl::Status(int rank)> visit) const {
  for (int other = 0; other < num_ranks(); ++other) {
    if (other != rank()) PENSTOCK_RETURN_IF_ERROR(visit(other));
  }
  return absl::OkStatus();
}

absl::Status RankTransfers::SendToAll(std::span<const std::byte> bytes) const {
  if (bytes.empty()) return absl::OkStatus();
  return ForEachOther([&](int other) { return communicator().Send(other, MessageStream::kPass, bytes); });
}

absl::Status RankTransfers::ReceiveFrom(int other, std::span<std::byte> room) const {
  if (room.empty()) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const size_t size, communicator().Receive(other, MessageStream::kPass, room));
  PENSTOCK_CHECK(size == room.size());
  return absl::OkStatus();
}

Event RankTransfers::Send(TaskLabel label, uint64_t bytes, Events after, std::function<absl::Status()> body) {
  return tasks_.Transfer(args_.ranks->to_ranks_lane, label, bytes, std::move(after), std::move(body));
}

Event RankTransfers::Receive(TaskLabel label, uint64_t bytes, Events after, std::function<absl::Status()> body) {
  PENSTOCK_CHECK(!args_.is_simulated());
  return tasks_.Transfer(args_.ranks->from_ranks_lane, label, bytes, std::move(after), std::move(body));
}

Event RankTransfers::ReceiveSent(TaskLabel label, uint64_t bytes, Events after, std::function<absl::Status()> body,
                                 const Event& own, absl::FunctionRef<bool(int rank)> sends) {
  if (!args_.is_simulated()) return Receive(label, bytes, std::move(after), std::move(body));
  const std::vector<SendTimes> times = ExchangeTimes({SimulatedRuntime::TimesOf(own)});
  return IssueArrival(label, bytes, [&](int other) -> std::optional<SimulatedRuntime::Times> {
    if (!sends(other)) return std::nullopt;
    return times[other][0];
  });
}

std::vector<RankTransfers::SendTimes> RankTransfers::ExchangeTimes(const SendTimes& own) const {
  const auto all = AllGather(communicator(), MessageStream::kSteps, std::as_bytes(std::span(own)),
                             own.size() * sizeof(SimulatedRuntime::Times));
  PENSTOCK_CHECK(all.ok());  // ranks in virtual time do not fail
  std::vector<SendTimes> times;
  for (const std::vector<std::byte>& message : *all) {
    times.emplace_back(own.size());
    std::memcpy(times.back().data(), message.data(), message.size());
  }
  return times;
}

Event RankTransfers::IssueArrival(TaskLabel label, uint64_t bytes,
                                  absl::FunctionRef<std::optional<SimulatedRuntime::Times>(int rank)> of_rank) {
  SimulatedRuntime::Times sent;
  bool is_first = true;
  for (int other = 0; other < num_ranks(); ++other) {
    if (other == rank()) continue;
    const std::optional<SimulatedRuntime::Times> times = of_rank(other);
    if (!times.has_value()) continue;
    sent.begin_s = std::exchange(is_first, false) ? times->begin_s : std::min(sent.begin_s, times->begin_s);
    sent.end_s = std::max(sent.end_s, times->end_s);
  }
  return tasks_.Arrive(label, bytes, sent);
}

}  // namespace penstock
