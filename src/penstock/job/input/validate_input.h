// The validation pass: reads the input once before anything else happens.
//
// It counts and checks every line, finds ids that appear twice, and takes the digests by which a resumed job recognises
// its input. While it runs it keeps 16 bytes per request, for the ids. Afterwards it keeps a bit per line for a shard,
// and nothing for a whole job.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/input/input_digest.h"
#include "penstock/job/input/inputs.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/input/shard.h"
#include "penstock/plan/workload.h"

namespace penstock {

struct BadLine {
  LinePlace place;
  LineError error;
};

inline constexpr size_t kMaxReportedBadLines = 20;

// The tokens that the engine will be asked for, estimated from texts and max_tokens. Each turn is a prompt of its own,
// which contains the turns and answers before it.
struct PromptTotals {
  int64_t num_prompts = 0;
  uint64_t text_bytes = 0;  // prompts that are texts
  // Tokens of prompts given as token ids, and of answers that later turns repeat.
  int64_t num_tokens = 0;
  int64_t new_tokens = 0;  // upper limit
  // Sums over the prompts: how much a prompt has in common with the beginning of the one before it.
  uint64_t shared_bytes = 0;
  int64_t shared_tokens = 0;
  uint64_t longest_bytes = 0;  // the longest prompt
  int64_t longest_tokens = 0;
  std::string sample;  // beginnings of some texts, to measure the bytes per token
};
inline constexpr size_t kPromptSampleBytes = 32 << 10;

// Only the requests of the shard count, except where the whole input is named.
struct InputReport {
  Shard shard;
  std::vector<bool> of_shard;  // [num_lines + 1], by line number; empty for a whole job: see Has()
  int64_t num_lines = 0;       // all lines of the whole input, which is also the highest line number
  int64_t num_requests = 0;    // lines that get a result or an error record
  int64_t num_bad = 0;         // requests that are certain to get an error record
  int64_t num_blank = 0;       // blank lines of the whole input, which are skipped
  int64_t num_scored = 0;      // requests with choices; they also count as completions or chats
  int64_t num_completions = 0;
  int64_t num_texts = 0;      // completions whose prompt is a text
  int64_t num_drawn = 0;      // good requests whose temperature is above 0
  int64_t num_undecided = 0;  // good requests without a temperature, also from flags: the model's counts
  int64_t num_chats = 0;
  int64_t num_turns_requests = 0;
  // Whether all good requests of the whole input, and at least one, need the model's chat template or its tokenizer.
  bool all_need_template = false;
  bool all_need_tokenizer = false;
  std::string digest;  // 128 bits in hex, over the lines of the whole input without their line ends
  InputCheckpoints checkpoints;
  std::string model;  // the first model name in a line of the whole input; the others must be equal
  LinePlace model_place;
  std::vector<BadLine> bad_lines;  // the first few bad lines
  std::map<std::string, int64_t>
      ignored_fields;  // the first few fields that mean nothing, with the good requests that have them
  // Used by JobMemory().
  uint64_t parse_bytes = 0;  // most memory to read and parse one line of the whole input
  LinePlace costliest_line;
  uint64_t longest_line_bytes = 0;
  uint64_t longest_turns_bytes = 0;  // turns of one request
  int64_t mean_positions = 0;        // KV entries of a request, estimated from its text and max_tokens; 0: none
  PromptTotals prompts;
  int max_logprobs = -1;              // most alternatives that a request asks for; -1: no log-probabilities
  int64_t max_logprob_tokens = 0;     // longest answer with log-probabilities
  bool lists_logprobs_twice = false;  // a request echoes its prompt with logprobs, and asks for prompt_logprobs
  // Bytes of one request's bad words and biases, as token ids, of types of tools, and of its format.
  uint64_t max_field_bytes = 0;
  bool has_formats = false;               // requests have output formats
  int64_t max_further_answers = 0;        // of one request, beyond its first
  int64_t max_further_tokens = 0;         // tokens of these
  int64_t max_further_listed_tokens = 0;  // of which log-probabilities are listed, the prompt's for each answer
  int64_t max_choices = 0;                // of one request
  uint64_t max_choice_bytes = 0;          // of one request's choices, as texts
  int64_t max_choice_tokens = 0;          // of one request's choices
  int64_t max_listed_tokens = 0;          // the same of requests whose results list them with log-probabilities

  // Returns whether the line, which must not be blank, is a request of the shard.
  bool Has(int64_t line_number) const { return of_shard.empty() || of_shard[static_cast<size_t>(line_number)]; }
};

// Returns the most memory that the values of a JSON text take, without their texts.
uint64_t BytesOfValues(std::string_view text);

struct InputChecks {
  Shard shard = {};
  JobTask task = JobTask::kAnswer;
  // The memory that ids and the costliest line may take. The default suffices for every input.
  uint64_t max_bytes = std::numeric_limits<uint64_t>::max();
};

// Validates the whole input, starting each line from the parameters in `sampling`, and counts the requests of the
// shard. kInput when two lines have one id (naming both), kResources when the input needs more than max_bytes, kIo when
// reading fails, kStopped when `stop` is set.
absl::StatusOr<InputReport> ValidateInput(Inputs& inputs, const SamplingOverrides& sampling,
                                          const std::atomic<bool>& stop, const InputChecks& checks = {});

// Returns the job in numbers; its texts have `bytes_per_token`.
Workload WorkloadOf(const InputReport& report, double bytes_per_token);

// Returns what is needed for JobMemory() of a job like the workload, whose prompts are lists of token ids.
InputReport ReportOf(const Workload& workload);

// Returns the memory that the job will hold besides the engine's.
CallerMemory JobMemory(const InputReport& report, const ModelInfo& model);

// Turns a line that names another model than the report into an error; one job runs one model.
void CheckLineModel(const InputReport& report, RequestLine& line);

// Turns a line that the task cannot take into an error.
void CheckLineTask(JobTask task, RequestLine& line);

// Returns "80 lines: 80 requests (0 completions, 0 chats, 80 with turns, 0 bad), 0 blank lines", and the fields that
// mean nothing.
std::string FormatInputReport(const InputReport& report);
// Returns a line for each of `lines`, and how many more of the `num_bad` there are.
std::string FormatBadLines(const std::vector<BadLine>& lines, int64_t num_bad);
// Returns "category (80 requests), user (1 request)".
std::string FormatIgnoredFields(const InputReport& report);
json::object ToJson(const InputReport& report);
json::array ToJson(const std::vector<BadLine>& lines);

}  // namespace penstock
