// What a model is asked to do, in numbers: how many requests, how long prompts and answers are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

struct Workload {
  int64_t num_requests = 0;   // 0: as many as are computed at once
  int64_t prompt_tokens = 0;  // on the average
  int64_t max_prompt_tokens = 0;
  int64_t new_tokens = 0;  // of every answer

  // Of one request: lengths are spread between 1 and the longest so that their average is prompt_tokens, the same for
  // everybody who asks.
  int64_t PromptTokens(int64_t request_idx) const;
  // Positions of a request's KV cache, on the average and at most.
  int64_t positions() const { return prompt_tokens + new_tokens; }
  int64_t max_positions() const { return max_prompt_tokens + new_tokens; }
};

// "prompt=128,gen=32", "prompt=77,max-prompt=418,gen=128,requests=500", or a workload of the papers, changed where one
// wants: "mtbench", "reasoning", "summarization" (MoE-Lightning, Table 3), "klotski" (512 + 32), "mtbench:gen=64".
// kUsage for what is not understood.
absl::StatusOr<Workload> ParseWorkload(std::string_view spec);

}  // namespace penstock
