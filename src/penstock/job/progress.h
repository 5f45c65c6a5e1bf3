// The job's progress on stderr: one redrawn line on a terminal, otherwise a plain line every ten seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/engine.h"
#include "penstock/job/stats.h"

namespace penstock {

// Tokens of prompts and of answers.
struct TokenCounts {
  double prompt = 0;
  double answer = 0;
};

struct ProgressCounts {
  std::string_view unit = "requests";  // what is counted: requests of a job, windows of a text
  int64_t num_requests = 0;            // in the whole job
  int64_t num_done = 0;                // including failed ones
  int64_t num_failed = 0;
  int64_t num_resumed = 0;              // done by an earlier run
  LabelCounts labels = {};              // also of earlier runs
  TokenCounts finished = {};            // of the requests that this run has answered
  TokenCounts max_expected = {};        // of an average request, from its text and max_tokens
  std::vector<Failures> failures = {};  // of this run
  std::string result = {};              // what was found so far, such as "perplexity 55.1"; empty: nothing

  // Counts a failed request; the first one with its code is kept.
  void AddFailure(Failures one);
};

enum class ProgressMode : uint8_t { kSilent, kPlain, kRedraw };

// Silent when `quiet`; redrawn when stderr is a capable terminal (TERM is not "dumb", NO_COLOR is unset).
ProgressMode ChooseProgressMode(bool quiet);

// Returns "[######------] 40/80 requests, 1 failed, 12.3 tokens/s of 13.0 predicted, disk_to_dram 84%, 1m40s left".
// With a number of `columns`, leaves out what does not fit: first the lanes, then the bar. The time that is left
// assumes that the other requests are like the finished ones; before there are any, it is a limit ("at most 2m left").
std::string FormatProgress(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s,
                           double predicted_tokens_per_s = 0, int columns = 0);

class Progress {
 public:
  Progress(ProgressMode mode, int fd) : mode_(mode), fd_(fd) {}

  // Sets the plan's prediction for the whole job; 0: no plan.
  void Predict(double tokens_per_s) { predicted_tokens_per_s_ = tokens_per_s; }
  // Writes a line if the last one is old enough: 0.1 s when redrawn, 10 s when plain. `elapsed_s` counts from the begin
  // of the job.
  void Update(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s);
  // Always writes the last line, unless silent.
  void Finish(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s);
  // Writes text of several lines, such as the summary, unless silent.
  void Print(const std::string& text);

 private:
  void Write(const std::string& text);

  ProgressMode mode_;
  int fd_;
  double predicted_tokens_per_s_ = 0;
  double last_s_ = -1;
  bool drawn_ = false;
};

}  // namespace penstock
