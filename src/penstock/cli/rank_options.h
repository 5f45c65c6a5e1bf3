// Options of a rank that a launcher of MPI started.
#pragma once

#include "penstock/engine.h"
#include "penstock/parallel/mpi_ranks.h"

namespace penstock::cli {

// Ranks on one machine share its memory and, unless the launcher binds them, its CPUs.
void ShareMachine(const MpiRanks& ranks, EngineOptions& options);

// Gives another rank than 0 files of its own: "trace.rank1.json" for "trace.json". Records of routing are rank 0's
// alone.
void UseFilesOfRank(int rank, EngineOptions& options);

}  // namespace penstock::cli
