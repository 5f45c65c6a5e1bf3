// Result lines in the format of OpenAI's batch API.
//
// They hold no clock and no random number: `created` is 0 and ids come from the job and the line, so that two runs of
// one job give equal lines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/engine.h"
#include "penstock/job/request_line.h"

namespace penstock {

// "batch_req_<16 hex>": a bijection of the line number that depends on the job, so that results know their line.
std::string ResultId(uint64_t job_digest, int64_t line_number);
// The line number (>= 1) of an id of this job; ids of other jobs give nullopt or, hardly ever, a number by chance.
std::optional<int64_t> LineOfResultId(std::string_view id, uint64_t job_digest);

struct ResultHead {
  uint64_t job_digest = 0;
  int64_t line_number = 0;
  std::optional<std::string> custom_id;
};

struct RequestResult {
  RequestKind kind = RequestKind::kCompletion;
  std::string model;
  Completion completion;             // of the last turn
  ChatAnswer answer = {};            // the same by its parts; not of kCompletion
  std::vector<std::string> answers;  // kTurns: of every turn
  int64_t prompt_tokens = 0;         // of all turns
  int64_t completion_tokens = 0;
  int logprobs = -1;  // as the request asked for
};

// Engine::TokenBytes
using TokenText = std::function<std::string(TokenId, bool begins_text)>;

// One line each, without the newline; always valid UTF-8 and valid JSON.
std::string FormatResult(const ResultHead& head, const RequestResult& result, const TokenText& token_text);
std::string FormatError(const ResultHead& head, const LineError& error);

}  // namespace penstock
