// One engine over several ranks, for whoever runs requests on rank 0.
//
// Rank 0 deals requests to the ranks and orders their steps; the others obey (ServeRank). All ranks share the experts
// (schedule/ranks/expert_exchange.h), and each has KV pages for its own requests. So an answer does not depend on
// the rank.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/engine/rank_messages.h"
#include "penstock/hardware/hardware.h"
#include "penstock/parallel/communicator.h"

namespace penstock {

// Rank 0's end of the orders. Its destructor tells the other ranks that there is nothing more to do.
class RankLeader {
 public:
  explicit RankLeader(Communicator& communicator) : communicator_(&communicator) {}
  ~RankLeader();
  RankLeader(const RankLeader&) = delete;
  RankLeader& operator=(const RankLeader&) = delete;

  int num_ranks() const { return communicator_->num_ranks(); }
  // Returns what the caller on rank 0 needs: it holds the requests of all ranks. Open() counts it by itself.
  std::function<CallerMemory(const ModelInfo&)> MemoryOfAll(
      std::function<CallerMemory(const ModelInfo&)> of_rank) const;
  // Measures the network between all ranks.
  absl::StatusOr<Link> MeasureNetwork();
  // Opens the engines of all ranks. With `tells_policy` the others take rank 0's policy, but keep their own memory
  // budgets. Errors are as of Engine::Open(), on any rank; the message names another rank than 0. The leader must
  // outlive the engine.
  absl::StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options, bool tells_policy = false);

 private:
  // Gives an order to all other ranks.
  absl::Status Tell(const RankOrder& order);

  Communicator* communicator_;
};

// Obeys rank 0 until it says that there is nothing more to do. Returns this rank's error; rank 0 tells the user. An
// error instead of options counts once rank 0 orders to open an engine.
absl::Status ServeRank(absl::StatusOr<EngineOptions> options, Communicator& communicator);

}  // namespace penstock
