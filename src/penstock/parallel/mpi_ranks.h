// The ranks that a launcher of MPI started: mpirun, mpiexec or srun.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "penstock/parallel/communicator.h"

namespace penstock {

struct MpiRanks {
  std::unique_ptr<Communicator> communicator;
  int num_ranks_here = 1;  // ranks on this machine, which share its memory and processors
};

// Joins the other ranks. Returns no communicator if no launcher started this process, or if it started no other. kUsage
// when a launcher started several processes and this build has no MPI. REQUIRES: called once, before threads start.
absl::StatusOr<MpiRanks> JoinMpiRanks();

}  // namespace penstock
