// The ranks that a launcher of MPI started: mpirun, mpiexec or srun.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "penstock/parallel/communicator.h"

namespace penstock {

struct MpiRanks {
  std::unique_ptr<Communicator> communicator;
  int num_ranks_here = 1;  // ranks on this machine, which share its memory
  // The ranks here that the launcher allows the same CPUs, and this rank's place among them.
  int num_sharing_cpus = 1;
  int place_among_sharing = 0;
};

// Joins the other ranks. Returns no communicator if no launcher started this process, or if it started no other. kUsage
// when a launcher started several processes and this build has no MPI. REQUIRES: called once, before threads start.
//
// Joining and leaving wait for all ranks, and MPI cannot be told to give up. If they take longer than a minute, a
// thread calls `on_stuck`, which must end the process.
absl::StatusOr<MpiRanks> JoinMpiRanks(std::function<void()> on_stuck);

}  // namespace penstock
