// The work for a model in numbers: how many requests, how long their prompts and answers are, and how they are routed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/routing/generated_routing.h"

namespace penstock {

struct Workload {
  int64_t num_requests = 0;   // 0: as many as are computed at once
  int64_t prompt_tokens = 0;  // average length of a prompt
  int64_t max_prompt_tokens = 0;
  int64_t new_tokens = 0;     // length of every answer
  int64_t shared_tokens = 0;  // with which all prompts begin in common; less than prompt_tokens

  bool draws_tokens = false;  // temperature above 0
  RoutingSpec routing = TypicalRouting();

  // Returns the prompt length of one request. Lengths are spread between 1 and max_prompt_tokens so that their average
  // is prompt_tokens. The same index always gets the same length.
  int64_t PromptTokens(int64_t request_idx) const;
  // Returns how many tokens of a prompt the prompts before it begin with, too. A prompt's last token is its own.
  int64_t SharedTokens(int64_t request_idx) const {
    return request_idx == 0 ? 0 : std::min(shared_tokens, PromptTokens(request_idx) - 1);
  }
  // Returns the tokens of an average prompt that are computed for it alone.
  int64_t own_prompt_tokens() const { return prompt_tokens - std::min(shared_tokens, prompt_tokens - 1); }
  // Return the positions of a request's KV cache: the average, and the maximum.
  int64_t positions() const { return prompt_tokens + new_tokens; }
  int64_t max_positions() const { return max_prompt_tokens + new_tokens; }
};

// Parses "prompt=128,gen=32", "prompt=77,max-prompt=418,gen=128,requests=500,shared=40,sampled=1", or the name of a
// workload of the papers: "mtbench", "reasoning", "summarization" (MoE-Lightning, Table 3), "klotski" (512 + 32).
// Changes may follow a name: "mtbench:gen=64". A workload that does not say "sampled" has `model_draws`. kUsage for
// anything else.
absl::StatusOr<Workload> ParseWorkload(std::string_view spec, bool model_draws = false);

// Returns a line on each named workload.
std::string WorkloadList();

}  // namespace penstock
