// Sends and receives between ranks as tasks of a pass, in a real run and in virtual time.
//
// In a simulation each rank has a thread and a runtime of its own. Messages carry no data: the ranks tell each other
// when they leave. All clocks begin together, so these times are the receivers' times, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/parallel/communicator.h"
#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/pass_tasks.h"

namespace penstock {

class RankTransfers {
 public:
  // REQUIRES: a pass with ranks. `args` and `tasks` must outlive the object and its tasks.
  RankTransfers(const PassArgs& args, PassTasks& tasks) : args_(args), tasks_(tasks) {}

  Communicator& communicator() const { return *args_.ranks->communicator; }
  int rank() const { return communicator().rank(); }
  int num_ranks() const { return communicator().num_ranks(); }
  // Calls visit(rank) for every other rank until one fails.
  absl::Status ForEachOther(absl::FunctionRef<absl::Status(int rank)> visit) const;

  // Sends `bytes` to all other ranks; receives into `room` exactly its size from one rank. Nothing travels for an empty
  // span. Called by the bodies of tasks.
  absl::Status SendToAll(std::span<const std::byte> bytes) const;
  absl::Status ReceiveFrom(int other, std::span<std::byte> room) const;

  // Issues the sending of `bytes` to other ranks. A simulation ignores the body.
  Event Send(TaskLabel label, uint64_t bytes, Events after, std::function<absl::Status()> body);
  // Issues the receipt of `bytes` from other ranks. REQUIRES: no simulation.
  Event Receive(TaskLabel label, uint64_t bytes, Events after, std::function<absl::Status()> body);
  // Issues the receipt of what other ranks send with the Send() that corresponds to `own`; also in a simulation. All
  // ranks call it for the same sends. `sends(rank)`: whether another rank sends something to this one.
  Event ReceiveSent(TaskLabel label, uint64_t bytes, Events after, std::function<absl::Status()> body, const Event& own,
                    absl::FunctionRef<bool(int rank)> sends);

  // In a simulation, for several sends at once: tells the other ranks when something is sent, and learns when they send
  // it: [num_ranks, the same number]. A rank that sends nothing gives times of 0.
  using SendTimes = std::vector<SimulatedRuntime::Times>;
  std::vector<SendTimes> ExchangeTimes(const SendTimes& own) const;
  // Issues the arrival of what these ranks send. `of_rank` returns the times of a rank that sends something.
  Event IssueArrival(TaskLabel label, uint64_t bytes,
                     absl::FunctionRef<std::optional<SimulatedRuntime::Times>(int rank)> of_rank);

 private:
  const PassArgs& args_;
  PassTasks& tasks_;
};

}  // namespace penstock
