// The main loop of a job: reads lines as the engine has room, runs steps, writes results as they finish.
//
// Memory is constant: it holds only the requests that the engine runs, and one that waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "penstock/engine.h"
#include "penstock/job/input_file.h"
#include "penstock/job/line_reader.h"
#include "penstock/job/output_file.h"
#include "penstock/job/output_scan.h"
#include "penstock/job/progress.h"
#include "penstock/job/request_line.h"
#include "penstock/job/result_line.h"
#include "penstock/job/validate_input.h"

namespace penstock {

// Returns the seed of a line without one. It depends only on the job's seed and the line number.
uint64_t RequestSeed(uint64_t job_seed, int64_t line_number);

class Runner {
 public:
  struct Args {
    Engine& engine;
    const InputFile& input;
    const InputReport& report;
    OutputFile& output;
    const OutputScan& scan;  // lines that are already done
    uint64_t job_digest;
    uint64_t seed;
    SamplingParams sampling;                                 // where requests start from
    std::function<void(const ProgressCounts&)> on_progress;  // called after each step
  };
  explicit Runner(const Args& args);

  // Runs the lines that are not done. OK when every line has its result, kStopped when `stop` was set or the output has
  // no room. Otherwise the error of the engine, the input or the output. Finished results are on disk in each case,
  // unless the output itself failed.
  absl::Status Run(const std::atomic<bool>& stop);

  const ProgressCounts& counts() const { return counts_; }

 private:
  struct Active {
    ResultHead head;
    JobRequest request;
    SamplingParams sampling;
    std::vector<std::string> answers;  // answers to the turns so far
    int64_t prompt_tokens = 0;
    int64_t completion_tokens = 0;
  };

  absl::Status Loop(const std::atomic<bool>& stop);
  absl::Status Fill(const std::atomic<bool>& stop);
  absl::Status StartLine(const Line& line);
  // Submits the request or its next turn. A kInput error becomes the line's error record.
  absl::Status Submit(Active active);
  absl::StatusOr<RequestId> TrySubmit(Active& active);
  absl::Status Finish(const Completion& completion);
  absl::Status WriteResult(const std::string& result, bool failed);

  Args args_;
  LineReader reader_;
  bool at_end_ = false;
  bool told_of_io_error_ = false;
  int num_io_errors_in_a_row_ = 0;
  absl::flat_hash_map<RequestId, Active> active_;
  ProgressCounts counts_;
};

}  // namespace penstock
