// Messages between the ranks of one model: processes on several machines, or threads of one process in tests.
//
// A rank sends and receives on streams. Messages of one stream from one rank to another arrive in the order in which
// they were sent. So ranks that issue the same steps need no tags. Each stream is used by one thread at a time in each
// direction. Different streams and directions may be used at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// kSteps: what ranks agree on before a step. kPass: rows of a pass, and what becomes of them.
enum class MessageStream : uint8_t { kSteps, kPass };
inline constexpr int kNumMessageStreams = 2;
inline constexpr size_t kMaxMessageBytes = INT32_MAX;  // MPI counts bytes as an int
// Messages up to this size never wait for their receivers; larger ones may.
inline constexpr size_t kEagerBytes = 1024;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;

  // Sends a message to another rank. Returns when `bytes` may be overwritten, perhaps before the message has arrived.
  // After an Abort() of any rank, returns its error.
  virtual absl::Status Send(int to, MessageStream stream, std::span<const std::byte> bytes) = 0;
  // Waits for the next message of any of these ranks. Writes it to room(rank), which is called once. kInternal when it
  // is larger. After an Abort() of any rank, returns its error.
  struct Received {
    int from = 0;
    size_t size = 0;  // in bytes
  };
  using RoomOfRank = absl::FunctionRef<std::span<std::byte>(int rank)>;
  virtual absl::StatusOr<Received> ReceiveAny(std::span<const int> ranks, MessageStream stream, RoomOfRank room) = 0;
  // Waits for the next message of one rank, as ReceiveAny(), and returns its size in bytes.
  absl::StatusOr<size_t> Receive(int from, MessageStream stream, std::span<std::byte> room);
  // Makes all calls of all ranks fail, those that wait included. The error names this rank.
  virtual void Abort(const absl::Status& why) = 0;
};

// kInternal when a message is larger than its room. For communicators.
absl::Status CheckMessageFits(int from, int to, size_t size, size_t room);

// Send and receive a message whose size the receiver does not know. kInternal when it has more than max_bytes.
absl::Status SendSized(Communicator& communicator, int to, MessageStream stream, std::span<const std::byte> bytes);
absl::StatusOr<std::vector<std::byte>> ReceiveSized(Communicator& communicator, int from, MessageStream stream,
                                                    uint64_t max_bytes);

// Sends `own` to all other ranks and returns one message of each rank, at most max_bytes long; that of this rank is
// `own`. REQUIRES: max_bytes <= kEagerBytes, because all ranks send before they receive.
absl::StatusOr<std::vector<std::vector<std::byte>>> AllGather(Communicator& communicator, MessageStream stream,
                                                              std::span<const std::byte> own, size_t max_bytes);

// As AllGather(), for messages of any size. Messages that may wait for their receivers are exchanged pair by pair.
absl::StatusOr<std::vector<std::vector<std::byte>>> AllGatherSized(Communicator& communicator, MessageStream stream,
                                                                   std::span<const std::byte> own);

// Returns the largest of all ranks' values, for each of `own`. All ranks give equally many.
absl::StatusOr<std::vector<int64_t>> MaxOfRanks(Communicator& communicator, std::span<const int64_t> own);

// Returns when all ranks have called it.
absl::Status WaitForRanks(Communicator& communicator);

// Makes the communicators of `num_ranks` ranks in one process. Each is used by threads of its own rank. Messages above
// `eager_bytes` wait for their receivers, as those of MPI do.
std::vector<std::unique_ptr<Communicator>> MakeLocalCommunicators(int num_ranks, size_t eager_bytes = SIZE_MAX);

}  // namespace penstock
