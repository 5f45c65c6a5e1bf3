// The validation pass: one read through the input before anything else happens.
//
// Counts, checks every line, finds ids that appear twice, and takes the digests by which a resumed job knows its input.
// Memory: 16 bytes per request while it runs (for the ids), nothing per line afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/input_file.h"
#include "penstock/job/request_line.h"
#include "penstock/plan/workload.h"

namespace penstock {

// Digests of the input's first `stride`, 2 * stride, ... lines. The stride doubles whenever there are too many, so a
// short input has one for each line and a long one still tells roughly where it changed.
struct InputCheckpoints {
  int64_t stride = 1;
  std::vector<uint64_t> digests;
};

inline constexpr size_t kMaxInputCheckpoints = 4096;

struct BadLine {
  int64_t number = 0;
  LineError error;
};

inline constexpr size_t kMaxReportedBadLines = 20;

// What the engine will be asked for, as far as texts and max_tokens tell: each turn is a prompt of its own, with the
// turns and answers before it.
struct PromptTotals {
  int64_t num_prompts = 0;
  uint64_t text_bytes = 0;     // of prompts that are texts
  int64_t num_tokens = 0;      // of prompts that are token ids, and of the answers that later turns repeat
  int64_t new_tokens = 0;      // at most
  uint64_t longest_bytes = 0;  // of one prompt
  int64_t longest_tokens = 0;
  std::string sample;  // the beginnings of some texts, to find out how many bytes a token has
};
inline constexpr size_t kPromptSampleBytes = 32 << 10;

struct InputReport {
  int64_t num_lines = 0;     // all of them; line numbers go up to here
  int64_t num_requests = 0;  // lines that get a result or an error record
  int64_t num_bad = 0;       // of which these are certain to get an error record
  int64_t num_blank = 0;     // skipped
  int64_t num_completions = 0;
  int64_t num_chats = 0;
  int64_t num_turns_requests = 0;
  uint64_t num_bytes = 0;
  std::string digest;  // 128 bits in hex, over the lines without their ends
  InputCheckpoints checkpoints;
  std::string model;  // the first `model` that a line names; the others must agree
  int64_t model_line = 0;
  std::vector<BadLine> bad_lines;  // the first of them
  // For JobMemory.
  uint64_t parse_bytes = 0;    // most memory that one line takes to be read and parsed
  int64_t costliest_line = 0;  // the line that does
  uint64_t longest_line_bytes = 0;
  uint64_t longest_turns_bytes = 0;  // of one request
  int64_t mean_positions = 0;        // KV entries of a request, as far as its text and max_tokens tell; 0: none
  PromptTotals prompts;
  int max_logprobs = -1;           // most alternatives that a request wants; -1: none wants log-probabilities
  int64_t max_logprob_tokens = 0;  // longest answer with log-probabilities
};

// kInput when two lines have one id (naming both), kIo when reading fails, kStopped when `stop` is set.
// `sampling` is what lines start from.
absl::StatusOr<InputReport> ValidateInput(const InputFile& input, const SamplingOverrides& sampling,
                                          const std::atomic<bool>& stop);

// The job in numbers. `bytes_per_token`: of its texts.
Workload WorkloadOf(const InputReport& report, double bytes_per_token);

// What the job will hold beside the engine.
CallerMemory JobMemory(const InputReport& report, const ModelInfo& model);

// Makes a line that names another model than the report's an error; one job runs one model.
void CheckLineModel(const InputReport& report, RequestLine& line);

// "80 lines: 80 requests (0 completions, 0 chats, 80 with turns), 0 bad, 0 blank" and the first bad lines, for people.
std::string FormatInputReport(const InputReport& report);

}  // namespace penstock
