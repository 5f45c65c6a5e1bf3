// Tells whether a launcher of MPI started this process.
#pragma once

#include <cstdlib>
#include <string_view>

namespace penstock {

// Returns whether a launcher started this process together with others: Open MPI's mpirun, MPICH's mpiexec or Slurm's
// srun with --mpi=pmi2. A process that starts alone must not wait for MPI.
inline bool IsLaunchedWithOthers() {
  for (const char* const size : {std::getenv("OMPI_COMM_WORLD_SIZE"), std::getenv("PMI_SIZE")}) {
    if (size != nullptr && std::string_view(size) != "1") return true;
  }
  return false;
}

}  // namespace penstock
