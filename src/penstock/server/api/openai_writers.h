// Answers in the forms of /v1/chat/completions and /v1/completions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "penstock/server/api/answering.h"

namespace penstock::server {

struct OpenAiForm {
  RequestKind kind = RequestKind::kChat;
  BodyHead head = {};
  std::string model = {};
  int logprobs = -1;         // as requested
  bool shows_usage = false;  // stream_options.include_usage
  // stream_options.continuous_usage_stats, as vLLM has it: each chunk of a stream has its answer's usage so far.
  bool shows_usage_so_far = false;
  std::vector<int64_t> prompt_tokens = {};  // of each prompt
  size_t num_answers = 1;                   // to each prompt
  std::vector<std::string> echoes = {};     // the prompts with which texts of a stream begin
};

std::unique_ptr<AnswerWriter> OpenAiWriter(OpenAiForm form, TokenText token_text);

// Returns "stop", "length" or "tool_calls".
std::string_view FinishName(const ResultChoice& choice);

}  // namespace penstock::server
