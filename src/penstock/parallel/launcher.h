// Tells whether a launcher of MPI started this process.
#pragma once

#include <cstdlib>
#include <string_view>

namespace penstock {

// Returns whether a launcher started this process together with others: Open MPI's mpirun, MPICH's mpiexec or Slurm's
// srun. A process that starts alone must not wait for MPI.
inline bool IsLaunchedWithOthers() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const size = std::getenv(name);
    if (size != nullptr && std::string_view(size) != "1") return true;
  }
  return false;
}

}  // namespace penstock
