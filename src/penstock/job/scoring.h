// Requests that score given choices instead of generating an answer.
//
// The prompt is computed once. Its last row predicts the first token of every choice, so a choice of one token costs
// nothing more. A longer choice becomes a request of its own, which shares the prompt's KV entries and computes only
// the choice.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/prompt.h"
#include "penstock/job/result_line.h"

namespace penstock {

// The tokens of a request with choices.
struct ScoredPrompt {
  std::vector<TokenId> prompt;                // with an encoder, also the token with which the decoder begins
  int64_t num_encoded = 0;                    // Request::num_encoded
  std::vector<std::vector<TokenId>> choices;  // none is empty
};

// Tokenizes the prompt and the choices. A choice that is a text continues the text of the prompt: its tokens are those
// of both together behind the prompt's, and spaces at the prompt's end count as the choice's. So does
// lm-evaluation-harness. Behind a chat, a prompt of token ids, or a prompt that an encoder reads, the choice's text is
// tokenized on its own. kInput as PromptOf(), and for a choice without tokens.
absl::StatusOr<ScoredPrompt> ScoredPromptOf(const PromptMaker& maker, JobRequest& request);

// Returns the request that computes the prompt and scores the first token of each choice, with `num_top` alternatives.
Request FirstScoringRequest(const ScoredPrompt& scored, int num_top);
// Returns the request that scores the further tokens of a choice. REQUIRES: it has several.
Request FurtherScoringRequest(const ScoredPrompt& scored, size_t choice_idx, int num_top);

// Returns the choices with the scores of their first tokens, which the first request has found. Keeps the tokens'
// log-probabilities if `keeps_logprobs`. `texts` are the request's choices; `token_text` makes the text of one that has
// only ids.
std::vector<ResultChoice> FirstScores(const std::vector<ScoredText>& texts, Completion of_prompt, bool keeps_logprobs,
                                      const TokenText& token_text);

// Adds the scores of a choice's further tokens, which its own request has found.
void AddScores(Completion of_choice, bool keeps_logprobs, ResultChoice& choice);

// Returns the first choice with the largest log-likelihood. With `num_chars` [num_choices], each is divided by the
// number of its characters, at least one.
int64_t BestChoice(const std::vector<ChoiceScore>& scores, const std::vector<int64_t>& num_chars = {});

}  // namespace penstock
