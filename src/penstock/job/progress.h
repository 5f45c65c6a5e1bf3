// The job's progress on stderr: one redrawn line on a terminal, a plain line every ten seconds elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/engine.h"

namespace penstock {

struct ProgressCounts {
  int64_t num_requests = 0;  // of the whole job
  int64_t num_done = 0;      // failed ones included
  int64_t num_failed = 0;
  int64_t num_resumed = 0;  // of the done ones, those that an earlier run did
};

enum class ProgressMode : uint8_t { kSilent, kPlain, kRedraw };

// Silent when `quiet`; redrawn when stderr is a terminal that can do so (TERM is not "dumb", NO_COLOR is unset).
ProgressMode ChooseProgressMode(bool quiet);

// "[######------] 40/80 requests, 1 failed, 12.3 tokens/s of 13.0 predicted, disk_to_dram 84%, 1m40s left"
std::string FormatProgress(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s,
                           double predicted_tokens_per_s = 0);

class Progress {
 public:
  Progress(ProgressMode mode, int fd) : mode_(mode), fd_(fd) {}

  // What a plan says of the whole job; 0: there is none.
  void Predict(double tokens_per_s) { predicted_tokens_per_s_ = tokens_per_s; }
  // Writes when enough time has passed since the last line: 0.1 s redrawn, 10 s plain. `elapsed_s` since the job began.
  void Update(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s);
  // The last line, always (but when silent).
  void Finish(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s);
  // Text of several lines, e.g. the summary (but when silent).
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
