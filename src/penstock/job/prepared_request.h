// A request of a job or of a server as the engine takes it: prompt, output format, and how its answers are read.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/format_cache.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/prompt.h"

namespace penstock {

struct PreparedRequest {
  Request request;
  // Returns what splits one of the answers; empty unless it is a chat. The engine must outlive it.
  std::function<std::unique_ptr<AnswerStream>()> new_stream;
};

// Makes the prompt, as PromptOf(), and compiles the output format, or that of the call which `tool_choice` demands.
// REQUIRES: the request has no choices.
absl::StatusOr<PreparedRequest> Prepare(const Engine& engine, const PromptMaker& maker, FormatCache& formats,
                                        JobRequest& request, const SamplingParams& sampling,
                                        const std::vector<std::string>& answers);

}  // namespace penstock
