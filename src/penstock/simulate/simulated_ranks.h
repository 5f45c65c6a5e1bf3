// Simulates passes of several ranks that share the experts, in one virtual time.
//
// Each rank has a simulator of its own, in a thread of its own. The threads exchange the choices and the times of their
// messages, so the result is deterministic. All ranks begin a pass when the last of them has ended the pass before.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "penstock/parallel/communicator.h"
#include "penstock/simulate/pass_simulator.h"

namespace penstock {

// The rows that one rank computes in a pass. All ranks have equally many micro-batches; some may be empty.
struct RankPass {
  const RowBatch& batch;
  std::vector<RowRange> micro_batches;
  RoutingSource& routing;  // used by no other rank
};

class SimulatedRanks {
 public:
  // Makes the simulators of `num_ranks` ranks; one rank has no messages. The sink of `args` sees the lanes of all
  // ranks; those of the others are named "rank 1: host_compute".
  static absl::StatusOr<std::unique_ptr<SimulatedRanks>> Create(const PassSimulator::Args& args, int num_ranks);
  ~SimulatedRanks();

  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  // Simulates one pass of each rank. Returns the virtual seconds until all ranks have ended.
  double Run(std::vector<RankPass> passes);
  // Simulates only the logits of the passes.
  double RunLogits(std::vector<RankPass> passes);

  ExpertCounters counters() const;                                          // of all ranks
  std::vector<LaneUsage> Usage() const { return ranks_.front()->Usage(); }  // of rank 0
  void ResetUsage();

 private:
  class RankSink;

  SimulatedRanks() = default;
  double Time(std::vector<RankPass>& passes, absl::FunctionRef<void(PassSimulator&, RankPass&)> run);

  std::mutex sink_mutex_;
  std::vector<std::unique_ptr<RankSink>> sinks_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<PassSimulator>> ranks_;
};

}  // namespace penstock
