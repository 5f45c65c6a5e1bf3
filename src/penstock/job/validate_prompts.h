// Tokenizes all prompts of a job without computing anything: how many tokens there are, how many of them sharing saves,
// and which prompts are too long.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/job/input/inputs.h"
#include "penstock/job/input/validate_input.h"
#include "penstock/job/prompt.h"
#include "penstock/plan/workload.h"

namespace penstock {

struct PromptReport {
  int64_t num_prompts = 0;  // each turn, further answer, and choice of several tokens has one
  // Tokens of all prompts. In later turns, the answers between the questions are left out.
  int64_t prompt_tokens = 0;
  // Those that are computed when common beginnings are shared in whole KV pages, and all pages stay in memory. Engines
  // also share parts of a page, so they may compute a few less.
  int64_t computed_tokens = 0;
  int64_t longest_prompt = 0;
  LinePlace longest_place;
  int64_t new_tokens = 0;          // of all answers at most
  int64_t num_bad = 0;             // requests that only this model cannot take
  std::vector<BadLine> bad_lines;  // the first few bad requests of the input, also those that no model can take
};

struct PromptsToValidate {
  const Inputs& inputs;
  const InputReport& report;
  const PromptMaker& maker;
  SamplingParams sampling;  // what requests start from
  JobTask task = JobTask::kAnswer;
  bool shares_prefixes = true;
};

// Reads the input once. kIo when reading fails, kStopped when `stop` is set.
absl::StatusOr<PromptReport> ValidatePrompts(const PromptsToValidate& job, const std::atomic<bool>& stop);

// Returns the job in numbers, for the planner.
Workload WorkloadOf(const PromptReport& report);

// Returns lines of text, or the same as JSON.
std::string FormatPromptReport(const PromptReport& report);
json::object ToJson(const PromptReport& report);

}  // namespace penstock
