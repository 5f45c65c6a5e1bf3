// Offline batch jobs: a JSONL file of requests in, a JSONL file of results out.
//
// A job can be killed at any moment and continued with `resume`. It ends with exactly one result line per request.
// Texts depend only on the request and on what the manifest records: model, seed, settings, date (manifest.h). All
// files are checked before the model is opened.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/input/sampling_fields.h"
#include "penstock/job/input/shard.h"
#include "penstock/job/input/validate_input.h"
#include "penstock/job/manifest.h"
#include "penstock/job/output_file.h"
#include "penstock/job/progress.h"
#include "penstock/job/stats.h"

namespace penstock {

struct JobOptions {
  std::vector<std::string> input_paths;  // files or patterns; "-": standard input
  std::string output_path;               // "-": standard output
  Shard shard = {};                      // the requests to answer
  bool resume = false;                   // continue the job of this output; starts it when there is no output yet
  bool retry_failed = false;             // with `resume`: run requests again that have an error record
  double drain_s = 30;                   // time for the requests under way to finish after `stop` was set
  std::string stats_path;                // "-": standard output; empty: none
  // Flags that name other files to be written, with the file names. None may be a file of the job.
  std::vector<std::pair<std::string, std::string>> other_files = {};
  bool quiet = false;
  uint64_t seed = 0;  // for requests without a seed
  // The date that chat templates see, "2026-11-21"; empty: the day on which the job began.
  std::string date;
  JobTask task = JobTask::kAnswer;
  uint64_t max_input_bytes = InputChecks().max_bytes;  // that validating the input may take
  std::optional<std::string> system;                   // system message of chats and turns that have none
  // From flags: they override the model's defaults, and a request's own fields override them.
  SamplingOverrides sampling;
  int64_t default_max_tokens = SamplingParams().max_tokens;  // the model's, where neither flags nor request say it
  // Other flags that change the texts, e.g. {"dtype", "bf16"}. A resumed job must have the same flags.
  Settings engine_settings;
  // Returns the fingerprint of the model without opening an engine; optional. A finished job is compared with it, too.
  std::function<absl::StatusOr<std::string>()> fingerprint = {};
  std::function<void(const ProgressCounts&)> on_progress = {};  // called after each step; optional
  // The output's system calls, which tests replace. Not owned; may be nullptr.
  OutputCalls* output_calls = nullptr;
};

struct JobSummary {
  JobNumbers numbers;          // num_failed counts the failed requests of this run and of earlier runs
  int64_t num_blank = 0;       // blank input lines, which were skipped
  int64_t num_torn_lines = 0;  // lines cut off the output before resuming
  bool nothing_to_do = false;  // the job was already finished, so no engine was opened
};

struct OpenedEngine {
  OpenedEngine() = default;
  template <typename AnyEngine>
  OpenedEngine(std::unique_ptr<AnyEngine> opened, double predicted = 0)  // NOLINT(google-explicit-constructor)
      : engine(std::move(opened)), predicted_tokens_per_s(predicted) {}

  std::unique_ptr<Engine> engine;
  double predicted_tokens_per_s = 0;  // the plan's prediction for the whole job; 0: no plan
};

// Called once the input is known, so that the budget can account for JobMemory(report).
using EngineOpener = absl::StatusOr<OpenedEngine>(const InputReport& report);

// Runs the job, or a shard of it. OK when every request has its result line, even if some of these are errors
// (numbers.num_failed). kStopped when `stop` was set or the disk is full; `resume` continues the job. The statistics
// are written in both cases.
absl::StatusOr<JobSummary> RunJob(const JobOptions& options, absl::FunctionRef<EngineOpener> open_engine,
                                  const std::atomic<bool>& stop);

// Only checks the input (`run --validate-only`). Reads options.input_paths and writes nothing, except a temporary file
// for piped input.
struct ValidatedJob {
  Inputs inputs;
  InputReport report;
};
absl::StatusOr<ValidatedJob> ValidateJob(const JobOptions& options, const std::atomic<bool>& stop);

}  // namespace penstock
