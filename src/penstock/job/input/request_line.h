// One line of a job's input: an OpenAI batch line or a plain one.
//
//   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], "max_tokens": 64}}
//   {"id": "a", "prompt": "Once upon a time", "max_tokens": 64}
//   {"question_id": 81, "turns": ["first question", "second question"]}
//   {"id": "a", "prompt": "The sky is", "choices": [" blue", " green"], "label": 0}
//
// Parsing is a pure function of the line's bytes. It ignores unknown fields, with two exceptions. Fields that would
// change the answer (stream, suffix ...) are errors unless they ask for what happens anyway. Names that look misspelt
// are errors, too.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/chat/chat_parts.h"
#include "penstock/engine.h"
#include "penstock/job/input/format_fields.h"
#include "penstock/job/input/sampling_fields.h"

namespace penstock {

enum class RequestKind : uint8_t { kCompletion, kChat, kTurns };

// A text, or tokens, whose log-likelihood is wanted.
struct ScoredText {
  std::string text;          // empty if there are ids
  std::vector<TokenId> ids;  // empty if there is a text
};

struct JobRequest {
  RequestKind kind = RequestKind::kCompletion;
  std::string prompt;               // kCompletion, when prompt_ids is empty
  std::vector<TokenId> prompt_ids;  // kCompletion
  ChatParts chat;                   // kChat, kTurns: turns have tools and variables, but no messages
  std::vector<std::string> turns;   // kTurns: questions, asked one after the other
  SamplingOverrides sampling;
  std::vector<std::string> bad_words;   // texts that the answer must not contain
  std::optional<RequestFormat> format;  // which answers follow; not with choices
  AnswerRule rule;                      // kChat, kTurns: which calls the answer has; its content is in `format`
  int64_t num_answers = 1;              // more than one: not for kTurns
  bool echoes_prompt = false;           // kCompletion: the answer begins with the prompt
  int shown_prompt_logprobs = -1;       // alternatives in the result's own field prompt_logprobs; -1: no such field
  std::optional<std::string> system;    // kChat, kTurns: the system message, if messages have none
  std::vector<ScoredText> choices;      // not empty: they are scored, and nothing is generated; not for kTurns
  std::optional<int64_t> label;         // the index of the right choice
};

// The work that a job does on its requests.
enum class JobTask : uint8_t {
  kAnswer,    // generates answers, and scores the choices of requests that have some
  kClassify,  // all requests have choices, and results are short
};

struct JobTaskTraits {
  JobTask value;
  std::string_view name;
  std::string_view summary;
};
std::span<const JobTaskTraits> JobTasks();

struct RequestLine {
  // "line-<N>" when the line has none; absent when the line is too broken to tell.
  std::optional<std::string> id;
  std::string model;   // `model` of the batch body; may be empty
  JobRequest request;  // meaningful when there is no error
  std::optional<LineError> error;
  std::vector<std::string> ignored;  // names of fields that mean nothing in this request
};

// `text` is one line without its end; `number` is its line number, from 1.
RequestLine ParseRequestLine(std::string_view text, int64_t number);

// Parses the body of a request to /v1/chat/completions (kChat) or /v1/completions (kCompletion), which is the same in a
// batch line and over HTTP. The line has no id; errors name fields behind `prefix`, such as "body.".
RequestLine ParseRequestBody(const json::object& body, RequestKind kind, std::string_view prefix = "");

// Returns whether one of the messages is of the system or the developer.
bool HasSystemMessage(const json::array& messages);

// Returns the error record of a line longer than kMaxRequestLineBytes.
RequestLine TooLongLine(uint64_t num_bytes);

// Returns whether the line has only spaces and tabs.
bool IsBlank(std::string_view text);

}  // namespace penstock
