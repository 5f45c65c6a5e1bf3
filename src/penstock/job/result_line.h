// Result lines in the format of OpenAI's batch API.
//
// They contain no time and no random number, so that two runs of one job give equal lines: `created` is 0, and ids come
// from the job and the line.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/engine.h"
#include "penstock/job/input/inputs.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/result_logprobs.h"

namespace penstock {

// Returns "batch_req_<16 hex>". The digits are a bijection of the line number that depends on the job, so that the id
// identifies the line.
std::string ResultId(uint64_t job_digest, int64_t line_number);
// Returns the line number (>= 1) of an id of this job. Ids of other jobs give nullopt, or very rarely a wrong number.
std::optional<int64_t> LineOfResultId(std::string_view id, uint64_t job_digest);

struct ResultHead {
  uint64_t job_digest = 0;
  int64_t line_number = 0;  // in all inputs together
  std::optional<std::string> custom_id;
  LinePlace place = {};
};

// The log-likelihood of a given choice: the sum of its tokens' log-probabilities.
struct ChoiceScore {
  double logprob = 0;
  int64_t num_tokens = 0;
  bool is_greedy = true;  // each of its tokens is the most likely one

  // Adds the next token. REQUIRES: it has an alternative.
  void Add(const TokenLogprobs& token) {
    logprob += token.chosen.logprob;
    is_greedy = is_greedy && token.chosen.token_id == token.top[0].token_id;
    ++num_tokens;
  }
};

struct ResultChoice {
  Completion completion;   // the last turn's; of a given choice only its text, and its log-probabilities if requested
  ChatAnswer answer = {};  // the same, split into its parts; not for kCompletion
  ChoiceScore score = {};  // of a given choice
};

struct RequestResult {
  RequestKind kind = RequestKind::kCompletion;
  std::string model;
  std::vector<ResultChoice> choices;
  std::vector<std::string> answers;   // kTurns: the answer to every turn
  int64_t prompt_tokens = 0;          // sum over all turns, not over choices
  int64_t completion_tokens = 0;      // sum over all turns and choices
  int64_t reasoning_tokens = 0;       // of these
  int logprobs = -1;                  // as requested
  bool echoes_prompt = false;         // log-probabilities begin with those of the prompt
  std::string prompt = {};            // that the text of a completion begins with
  int shown_prompt_logprobs = -1;     // alternatives in the field prompt_logprobs; -1: no such field
  bool is_scored = false;             // the choices were given
  bool is_short = false;              // if scored: only the best choice is written in full
  std::optional<int64_t> label = {};  // if scored: the index of the right choice
};

// The choices that a scored request finds best.
struct BestChoices {
  int64_t by_logprob = 0;
  int64_t by_logprob_per_char = 0;
};
// REQUIRES: result.is_scored.
BestChoices BestOf(const RequestResult& result);

// Requests that say which of their choices is right.
struct LabelCounts {
  int64_t num_labelled = 0;
  int64_t num_correct = 0;           // the most likely choice was the right one
  int64_t num_correct_per_char = 0;  // the same for the most likely one per character

  void Add(const LabelCounts& other) {
    num_labelled += other.num_labelled;
    num_correct += other.num_correct;
    num_correct_per_char += other.num_correct_per_char;
  }
  double Share(int64_t count) const { return static_cast<double>(count) / static_cast<double>(num_labelled); }
};

// Returns the counts of one request. REQUIRES: it has a label.
LabelCounts LabelsOf(const RequestResult& result);

// The parts in which the bodies of two equal results differ.
struct BodyHead {
  uint64_t number = 0;         // makes the body's id
  int64_t request_number = 0;  // makes the ids of tool calls; at least 0
  int64_t created = 0;         // seconds since 1970
  // Prompt tokens that other requests had computed. Jobs leave it out, so that equal jobs have equal results.
  std::optional<int64_t> shared_tokens = {};
};

// Returns nine letters and digits, as Mistral's templates require. Equal numbers give equal ids.
std::string CallId(int64_t request_number, size_t choice_idx, size_t call_idx);

// Returns "chatcmpl-<16 hex>" or "cmpl-<16 hex>".
std::string BodyId(RequestKind kind, uint64_t number);
// Returns the object `usage` of several results together.
json::object UsageOf(std::span<const RequestResult> results);
// Appends results as one JSON object: a chat completion, a completion or, if they are short, a classification. Several
// results are those of a completion's prompts.
void AppendBody(const BodyHead& head, std::span<const RequestResult> results, const TokenText& token_text,
                std::string& out);

// Each returns one line without the newline, always valid UTF-8 and valid JSON.
std::string FormatResult(const ResultHead& head, const RequestResult& result, const TokenText& token_text);
// `answers` are those of the turns before the one that failed.
std::string FormatError(const ResultHead& head, const LineError& error, const std::vector<std::string>& answers = {});

}  // namespace penstock
