// Tells whether a launcher of MPI started this process.
#pragma once

#include <cstdlib>
#include <string_view>

namespace penstock {

// Returns whether a launcher started this process together with others: Open MPI's mpirun, MPICH's mpiexec, or Slurm's
// srun with --mpi=pmi2 or --mpi=pmix. A process that starts alone must not wait for MPI.
inline bool IsLaunchedWithOthers() {
  const bool has_pmix = std::getenv("PMIX_RANK") != nullptr;  // its number of processes is Slurm's
  for (const char* const size : {std::getenv("OMPI_COMM_WORLD_SIZE"), std::getenv("PMI_SIZE"),
                                 has_pmix ? std::getenv("SLURM_STEP_NUM_TASKS") : nullptr}) {
    if (size != nullptr && std::string_view(size) != "1") return true;
  }
  return false;
}

// Returns whether this process is rank 0, or alone: the one that speaks to people.
inline bool IsFirstRank() {
  if (!IsLaunchedWithOthers()) return true;
  for (const char* const rank :
       {std::getenv("OMPI_COMM_WORLD_RANK"), std::getenv("PMI_RANK"), std::getenv("PMIX_RANK")}) {
    if (rank != nullptr) return std::string_view(rank) == "0";
  }
  return true;
}

}  // namespace penstock
