// Offline batch jobs: a JSONL file of requests in, a JSONL file of results out.
//
// A job can be killed at any moment and continued with `resume`; it ends with exactly one result line per request.
// Texts depend on the model, the request and the seed alone. Everything about the files is checked before the model is
// opened.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/input_report.h"
#include "penstock/job/manifest.h"
#include "penstock/job/output_file.h"
#include "penstock/job/sampling_fields.h"
#include "penstock/job/stats.h"

namespace penstock {

struct JobOptions {
  std::string input_path;  // "-": standard input
  std::string output_path;
  bool resume = false;     // continue the job of this output; a fresh start when there is none yet
  std::string stats_path;  // empty: none
  // Flags that name other files to be written, with the names: none of them may be a file of the job.
  std::vector<std::pair<std::string, std::string>> other_files = {};
  bool quiet = false;
  uint64_t seed = 0;           // of requests that give none
  SamplingOverrides sampling;  // flags; over the model's defaults, under the request's own fields
  // Flags that the texts depend on beside the sampling ones, e.g. {"dtype", "bf16"}: a resumed job must have the same.
  Settings engine_settings;
  // The output's system calls; tests replace them. Not owned, may be nullptr.
  OutputCalls* output_calls = nullptr;
};

struct JobSummary {
  JobNumbers numbers;          // num_failed counts this run's and earlier runs' failed requests
  int64_t num_blank = 0;       // input lines skipped
  int64_t num_torn_lines = 0;  // cut off the output before resuming
  bool nothing_to_do = false;  // the job was finished already; no engine was opened
};

struct OpenedEngine {
  OpenedEngine() = default;
  template <typename AnyEngine>
  OpenedEngine(std::unique_ptr<AnyEngine> opened, double predicted = 0)  // NOLINT(google-explicit-constructor)
      : engine(std::move(opened)), predicted_tokens_per_s(predicted) {}

  std::unique_ptr<Engine> engine;
  double predicted_tokens_per_s = 0;  // what a plan says of the whole job; 0: there is no plan
};

// Called once the input is known, so that JobMemory(report) can be charged to the budget.
using EngineOpener = absl::StatusOr<OpenedEngine>(const InputReport& report);

// Runs the job. OK when every request has its result line, also when some of these are errors (numbers.num_failed).
// kStopped when `stop` was set or the disk is full: `resume` continues. The statistics are written in both cases.
absl::StatusOr<JobSummary> RunJob(const JobOptions& options, absl::FunctionRef<EngineOpener> open_engine,
                                  const std::atomic<bool>& stop);

// Checks the input alone (`run --validate-only`): reads options.input_path and writes nothing but, for piped input, a
// temporary file.
absl::StatusOr<InputReport> ValidateJob(const JobOptions& options, const std::atomic<bool>& stop);

}  // namespace penstock
