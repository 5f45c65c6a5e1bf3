// Finds the results that a job's output already holds: the output file is the journal of the job.
//
// Every result names its input line by its id, so a line is done exactly when its whole result is in the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "penstock/job/input/line_reader.h"
#include "penstock/job/result_line.h"

namespace penstock {

// A result with 20 alternatives for each of 16k tokens has about 30 MiB.
inline constexpr uint64_t kMaxResultLineBytes = 1ull << 30;

struct OutputScan {
  std::vector<bool> done;  // [num_lines + 1], by line number
  int64_t num_done = 0;
  int64_t num_failed = 0;             // results that are error records
  std::vector<int64_t> failed_lines;  // their lines in the output
  LabelCounts labels;                 // of results that say whether they are correct
  uint64_t good_bytes = 0;            // the file up to here is whole results of this job
  int64_t num_torn_lines = 0;         // whole or partial lines after good_bytes, left by a crash
};

// The output of a job with this digest and number of input lines.
struct OutputToScan {
  int fd;
  std::string path;
  uint64_t job_digest;
  int64_t num_lines;
};

// A whole result.
struct FoundResult {
  int64_t input_line;
  bool failed;                        // it is an error record
  std::optional<LabelCounts> labels;  // of this result, if it says whether it is correct
  const Line& line;
};

struct OutputTail {
  uint64_t good_bytes = 0;
  int64_t num_torn_lines = 0;
};

// Gives the results of an output to `on_result` in the order of the file, and returns where they end. A power loss can
// leave a damaged tail of at most as many lines as may be unsynced; these count as torn. kIo, naming the output's line,
// for any other line that is not the result of a line of this job. An error of `on_result` ends the scan.
absl::StatusOr<OutputTail> ForEachResult(const OutputToScan& output,
                                         absl::FunctionRef<absl::Status(const FoundResult&)> on_result);

// Returns kIo for a second result of one input line, which `line` of the output holds.
absl::Status SecondResult(const std::string& path, const FoundResult& result);

// Finds the results. kIo as for ForEachResult(). Also kIo for a second result of one input line, and for the result of
// a line for which `has_line` is false.
absl::StatusOr<OutputScan> ScanOutput(const OutputToScan& output, absl::FunctionRef<bool(int64_t input_line)> has_line);

}  // namespace penstock
