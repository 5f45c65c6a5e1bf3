// The work for a model in numbers: how many requests, and how long their prompts and answers are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

struct Workload {
  int64_t num_requests = 0;   // 0: as many as are computed at once
  int64_t prompt_tokens = 0;  // average length of a prompt
  int64_t max_prompt_tokens = 0;
  int64_t new_tokens = 0;  // length of every answer

  // Returns the prompt length of one request. Lengths are spread between 1 and max_prompt_tokens so that their average
  // is prompt_tokens. The same index always gets the same length.
  int64_t PromptTokens(int64_t request_idx) const;
  // Return the positions of a request's KV cache: the average, and the maximum.
  int64_t positions() const { return prompt_tokens + new_tokens; }
  int64_t max_positions() const { return max_prompt_tokens + new_tokens; }
};

// Parses "prompt=128,gen=32", "prompt=77,max-prompt=418,gen=128,requests=500", or the name of a workload of the papers:
// "mtbench", "reasoning", "summarization" (MoE-Lightning, Table 3), "klotski" (512 + 32). Changes may follow a name:
// "mtbench:gen=64". kUsage for anything else.
absl::StatusOr<Workload> ParseWorkload(std::string_view spec);

}  // namespace penstock
