#include "penstock/parallel/communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// The messages on their way between all ranks of a process.
class Mailboxes {
 public:
  Mailboxes(int num_ranks, size_t eager_bytes)
      : num_ranks_(num_ranks),
        eager_bytes_(eager_bytes),
        boxes_(static_cast<size_t>(num_ranks) * num_ranks * kNumMessageStreams) {}

  int num_ranks() const { return num_ranks_; }

  absl::Status Put(int from, int to, MessageStream stream, std::span<const std::byte> bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!aborted_.ok()) return aborted_;
    Box& box = BoxOf(from, to, stream);
    box.messages.emplace_back(bytes.begin(), bytes.end());
    const int64_t number = ++box.num_put;
    changed_.notify_all();
    if (bytes.size() > eager_bytes_) changed_.wait(lock, [&] { return box.num_taken >= number || !aborted_.ok(); });
    return aborted_;
  }

  struct Message {
    int from = 0;
    std::vector<std::byte> bytes;
  };
  absl::StatusOr<Message> Take(std::span<const int> ranks, int to, MessageStream stream) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto from = ranks.end();
    changed_.wait(lock, [&] {
      from = std::ranges::find_if(ranks, [&](int rank) { return !BoxOf(rank, to, stream).messages.empty(); });
      return from != ranks.end() || !aborted_.ok();
    });
    if (!aborted_.ok()) return aborted_;
    Box& box = BoxOf(*from, to, stream);
    Message message{*from, std::move(box.messages.front())};
    box.messages.pop_front();
    ++box.num_taken;
    changed_.notify_all();
    return message;
  }

  void Abort(const absl::Status& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    aborted_.Update(why);
    changed_.notify_all();
  }

 private:
  struct Box {
    std::deque<std::vector<std::byte>> messages;
    int64_t num_put = 0, num_taken = 0;
  };
  Box& BoxOf(int from, int to, MessageStream stream) {
    return boxes_[(static_cast<size_t>(from) * num_ranks_ + to) * kNumMessageStreams + static_cast<size_t>(stream)];
  }

  const int num_ranks_;
  const size_t eager_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Box> boxes_;  // [num_ranks, num_ranks, kNumMessageStreams]
  absl::Status aborted_;
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Mailboxes> mailboxes, int rank) : mailboxes_(std::move(mailboxes)), rank_(rank) {}

  int rank() const override { return rank_; }
  int num_ranks() const override { return mailboxes_->num_ranks(); }

  absl::Status Send(int to, MessageStream stream, std::span<const std::byte> bytes) override {
    return mailboxes_->Put(rank_, to, stream, bytes);
  }
  absl::StatusOr<Received> ReceiveAny(std::span<const int> ranks, MessageStream stream, RoomOfRank room) override {
    PENSTOCK_ASSIGN_OR_RETURN(const Mailboxes::Message message, mailboxes_->Take(ranks, rank_, stream));
    const std::span<std::byte> to = room(message.from);
    PENSTOCK_RETURN_IF_ERROR(CheckMessageFits(message.from, rank_, message.bytes.size(), to.size()));
    std::copy(message.bytes.begin(), message.bytes.end(), to.begin());
    return Received{message.from, message.bytes.size()};
  }
  void Abort(const absl::Status& why) override { mailboxes_->Abort(Annotate(why, fmt::format("rank {}", rank_))); }

 private:
  std::shared_ptr<Mailboxes> mailboxes_;
  const int rank_;
};

}  // namespace

absl::Status CheckMessageFits(int from, int to, size_t size, size_t room) {
  if (size <= room) return absl::OkStatus();
  return MakeError(Fault::kInternal,
                   fmt::format("rank {} sent a message of {} bytes to rank {}, expected {}", from, size, to, room));
}

absl::StatusOr<size_t> Communicator::Receive(int from, MessageStream stream, std::span<std::byte> room) {
  PENSTOCK_ASSIGN_OR_RETURN(const Received received, ReceiveAny({&from, 1}, stream, [&](int) { return room; }));
  return received.size;
}

absl::Status SendSized(Communicator& communicator, int to, MessageStream stream, std::span<const std::byte> bytes) {
  const uint64_t size = bytes.size();
  PENSTOCK_RETURN_IF_ERROR(communicator.Send(to, stream, std::as_bytes(std::span(&size, 1))));
  return communicator.Send(to, stream, bytes);
}

absl::StatusOr<std::vector<std::byte>> ReceiveSized(Communicator& communicator, int from, MessageStream stream,
                                                    uint64_t max_bytes) {
  uint64_t size = 0;
  PENSTOCK_RETURN_IF_ERROR(communicator.Receive(from, stream, std::as_writable_bytes(std::span(&size, 1))).status());
  if (size > max_bytes) {
    return MakeError(Fault::kInternal, fmt::format("rank {} announced a message of {} bytes to rank {}, at most {} are "
                                                   "allowed",
                                                   from, size, communicator.rank(), max_bytes));
  }
  std::vector<std::byte> message(size);
  PENSTOCK_RETURN_IF_ERROR(communicator.Receive(from, stream, message).status());
  return message;
}

absl::StatusOr<std::vector<std::vector<std::byte>>> AllGather(Communicator& communicator, MessageStream stream,
                                                              std::span<const std::byte> own, size_t max_bytes) {
  PENSTOCK_CHECK(own.size() <= max_bytes && max_bytes <= kEagerBytes);
  std::vector<std::vector<std::byte>> all(communicator.num_ranks());
  for (int rank = 0; rank < communicator.num_ranks(); ++rank) {
    if (rank != communicator.rank()) PENSTOCK_RETURN_IF_ERROR(communicator.Send(rank, stream, own));
  }
  for (int rank = 0; rank < communicator.num_ranks(); ++rank) {
    if (rank == communicator.rank()) {
      all[rank].assign(own.begin(), own.end());
      continue;
    }
    all[rank].resize(max_bytes);
    PENSTOCK_ASSIGN_OR_RETURN(const size_t size, communicator.Receive(rank, stream, all[rank]));
    all[rank].resize(size);
  }
  return all;
}

absl::StatusOr<std::vector<std::vector<std::byte>>> AllGatherSized(Communicator& communicator, MessageStream stream,
                                                                   std::span<const std::byte> own) {
  const uint64_t own_size = own.size();
  PENSTOCK_ASSIGN_OR_RETURN(const auto told,
                            AllGather(communicator, stream, std::as_bytes(std::span(&own_size, 1)), sizeof(own_size)));
  std::vector<uint64_t> sizes(told.size());
  for (size_t rank = 0; rank < told.size(); ++rank) std::memcpy(&sizes[rank], told[rank].data(), sizeof(uint64_t));
  if (std::ranges::max(sizes) <= kEagerBytes) return AllGather(communicator, stream, own, kEagerBytes);
  std::vector<std::vector<std::byte>> all(told.size());
  all[communicator.rank()].assign(own.begin(), own.end());
  // All ranks go through the pairs in one order, so none waits for itself.
  for (int other = 0; other < communicator.num_ranks(); ++other) {
    if (other == communicator.rank()) continue;
    if (sizes[other] > kMaxMessageBytes)
      return CheckMessageFits(other, communicator.rank(), sizes[other], kMaxMessageBytes);
    all[other].resize(sizes[other]);
    if (communicator.rank() < other) PENSTOCK_RETURN_IF_ERROR(communicator.Send(other, stream, own));
    PENSTOCK_ASSIGN_OR_RETURN(const size_t size, communicator.Receive(other, stream, all[other]));
    all[other].resize(size);
    if (communicator.rank() > other) PENSTOCK_RETURN_IF_ERROR(communicator.Send(other, stream, own));
  }
  return all;
}

absl::StatusOr<std::vector<int64_t>> MaxOfRanks(Communicator& communicator, std::span<const int64_t> own) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::vector<std::byte>> all,
                            AllGather(communicator, MessageStream::kSteps, std::as_bytes(own), own.size_bytes()));
  std::vector<int64_t> max(own.begin(), own.end());
  for (const std::vector<std::byte>& message : all) {
    PENSTOCK_CHECK(message.size() == own.size_bytes());
    std::vector<int64_t> values(own.size());
    std::memcpy(values.data(), message.data(), message.size());
    for (size_t i = 0; i < values.size(); ++i) max[i] = std::max(max[i], values[i]);
  }
  return max;
}

absl::Status WaitForRanks(Communicator& communicator) {
  const int64_t nothing = 0;
  return MaxOfRanks(communicator, {&nothing, 1}).status();
}

std::vector<std::unique_ptr<Communicator>> MakeLocalCommunicators(int num_ranks, size_t eager_bytes) {
  const auto mailboxes = std::make_shared<Mailboxes>(num_ranks, eager_bytes);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < num_ranks; ++rank) {
    communicators.push_back(std::make_unique<LocalCommunicator>(mailboxes, rank));
  }
  return communicators;
}

}  // namespace penstock
