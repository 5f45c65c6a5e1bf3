// Finds the results that a job's output already holds: the output file is the journal of the job.
//
// Every result names its input line by its id, so a line is done exactly when its whole result is in the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// A result with 20 alternatives for each of 16k tokens has about 30 MiB.
inline constexpr uint64_t kMaxResultLineBytes = 1ull << 30;

struct OutputScan {
  std::vector<bool> done;  // [num_lines + 1], by line number
  int64_t num_done = 0;
  int64_t num_failed = 0;             // results that are error records
  std::vector<int64_t> failed_lines;  // their lines in the output
  uint64_t good_bytes = 0;            // the file up to here is whole results of this job
  int64_t num_torn_lines = 0;         // whole or partial lines after good_bytes, left by a crash
};

// Reads the output of the job with this digest and number of input lines. A power loss can leave a damaged tail of at
// most as many lines as may be unsynced; these count as torn. kIo, naming the output's line, for any other line that is
// not the only result of a line of this job.
absl::StatusOr<OutputScan> ScanOutput(int fd, const std::string& path, uint64_t job_digest, int64_t num_lines);

}  // namespace penstock
