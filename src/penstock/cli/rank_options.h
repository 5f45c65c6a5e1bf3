// Options of a rank that a launcher of MPI started.
#pragma once

#include "absl/status/status.h"
#include "penstock/engine.h"
#include "penstock/parallel/mpi_ranks.h"

namespace penstock::cli {

// Ranks on one machine share its memory and, unless the launcher binds them, its CPUs. They compute on these alone,
// also where there is a GPU.
void ShareMachine(const MpiRanks& ranks, EngineOptions& options);

// Gives another rank than 0 files of its own: "trace.rank1.json" for "trace.json". Records of routing are rank 0's
// alone.
void UseFilesOfRank(int rank, EngineOptions& options);

// Returns the exit code of another rank than 0. A launcher ends all ranks when one fails: this waits until rank 0 has
// written what is finished, and has said what failed.
int EndOtherRank(const absl::Status& status);

}  // namespace penstock::cli
