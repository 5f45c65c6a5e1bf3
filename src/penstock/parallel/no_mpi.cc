// Ranks of a build without MPI: there are none.
#include "penstock/base/status.h"
#include "penstock/parallel/launcher.h"
#include "penstock/parallel/mpi_ranks.h"

namespace penstock {

absl::StatusOr<MpiRanks> JoinMpiRanks(std::function<void()>) {
  if (!IsLaunchedWithOthers()) return MpiRanks();
  return UsageError(
      "several processes were started together, but this build has no MPI: install libopenmpi-dev and build "
      "again, or start one process");
}

}  // namespace penstock
