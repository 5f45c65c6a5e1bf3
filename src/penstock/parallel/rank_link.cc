#include "penstock/parallel/rank_link.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr int kEmptyMessages = 32;
constexpr uint64_t kFirstBytes = 64 * kKiB, kLastBytes = 4 * kMiB;
// Long enough that neither bursts which a network lets pass nor the handshake of a large message count: over 0.2 Gbit/s
// (25 MB/s), messages of 20 ms reached 16 MB/s.
constexpr double kEnoughSeconds = 0.1;

// Sends a message to the next rank while one comes from the rank before.
absl::Status PassOn(Communicator& communicator, std::span<const std::byte> bytes, std::span<std::byte> room) {
  const int num_ranks = communicator.num_ranks(), rank = communicator.rank();
  absl::Status sent;
  // A large message may wait for its receiver, so sending has a thread of its own.
  std::thread sender([&] { sent = communicator.Send((rank + 1) % num_ranks, MessageStream::kPass, bytes); });
  const absl::Status received =
      communicator.Receive((rank + num_ranks - 1) % num_ranks, MessageStream::kPass, room).status();
  sender.join();
  PENSTOCK_RETURN_IF_ERROR(sent);
  return received;
}

// Returns the slowest rank's seconds for something.
absl::StatusOr<double> SlowestSeconds(Communicator& communicator, double seconds) {
  const auto nanoseconds = static_cast<int64_t>(std::llround(seconds * 1e9));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> max, MaxOfRanks(communicator, {&nanoseconds, 1}));
  return static_cast<double>(std::max<int64_t>(1, max[0])) * 1e-9;
}

}  // namespace

absl::StatusOr<Link> MeasureRankLink(Communicator& communicator) {
  Link link{.name = std::string(kRankLink)};
  PENSTOCK_RETURN_IF_ERROR(WaitForRanks(communicator));
  const int num_ranks = communicator.num_ranks(), rank = communicator.rank();
  auto start = Clock::now();
  for (int i = 0; i < kEmptyMessages; ++i) {  // empty messages do not wait for their receiver
    PENSTOCK_RETURN_IF_ERROR(communicator.Send((rank + 1) % num_ranks, MessageStream::kPass, {}));
    PENSTOCK_RETURN_IF_ERROR(
        communicator.Receive((rank + num_ranks - 1) % num_ranks, MessageStream::kPass, {}).status());
  }
  PENSTOCK_ASSIGN_OR_RETURN(link.latency_s, SlowestSeconds(communicator, SecondsSince(start) / kEmptyMessages));
  for (uint64_t num_bytes = kFirstBytes; num_bytes <= kLastBytes; num_bytes *= 2) {
    const std::vector<std::byte> bytes(num_bytes);
    std::vector<std::byte> room(num_bytes);
    start = Clock::now();
    PENSTOCK_RETURN_IF_ERROR(PassOn(communicator, bytes, room));
    PENSTOCK_ASSIGN_OR_RETURN(const double seconds, SlowestSeconds(communicator, SecondsSince(start)));
    link.bytes_per_s = static_cast<double>(num_bytes) / std::max(seconds - link.latency_s, 0.1 * seconds);
    if (seconds >= kEnoughSeconds) break;
  }
  return link;
}

}  // namespace penstock
