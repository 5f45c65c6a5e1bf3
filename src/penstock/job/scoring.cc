#include "penstock/job/scoring.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

// Tokenizes the choices of a prompt that is a text.
absl::Status TokenizeBehindText(const PromptMaker& maker, const JobRequest& request, ScoredPrompt& scored) {
  JobRequest stripped;
  stripped.prompt = WithoutTrailingSpace(request.prompt);
  PENSTOCK_ASSIGN_OR_RETURN(scored.prompt, PromptOf(maker, stripped, {}));
  for (const ScoredText& choice : request.choices) {
    if (!choice.ids.empty()) {
      scored.choices.push_back(choice.ids);
      continue;
    }
    JobRequest whole;
    whole.prompt = request.prompt + choice.text;
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, PromptOf(maker, whole, {}));
    const size_t num_prompt = std::min(ids.size(), scored.prompt.size());
    scored.choices.emplace_back(ids.begin() + static_cast<int64_t>(num_prompt), ids.end());
  }
  return absl::OkStatus();
}

SamplingParams ScoringParams(int num_top) {
  return {.temperature = 0, .max_tokens = 0, .prompt_logprobs = std::max(1, num_top)};
}

}  // namespace

absl::StatusOr<ScoredPrompt> ScoredPromptOf(const PromptMaker& maker, JobRequest& request) {
  ScoredPrompt scored;
  const std::optional<TokenId> start = maker.model.decoder_start_id;
  if (request.kind == RequestKind::kCompletion && request.prompt_ids.empty() && !start.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(TokenizeBehindText(maker, request, scored));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(scored.prompt, PromptOf(maker, request, {}));
    if (start.has_value()) {
      scored.num_encoded = std::ssize(scored.prompt);
      scored.prompt.push_back(*start);
    }
    for (const ScoredText& choice : request.choices) {
      if (choice.ids.empty()) {
        PENSTOCK_ASSIGN_OR_RETURN(scored.choices.emplace_back(), maker.tokenize_piece(choice.text));
      } else {
        scored.choices.push_back(choice.ids);
      }
    }
  }
  for (size_t i = 0; i < scored.choices.size(); ++i) {
    if (scored.choices[i].empty()) return InputError("choices: number {} adds no token to the prompt", i + 1);
  }
  return scored;
}

Request FirstScoringRequest(const ScoredPrompt& scored, int num_top) {
  Request request{.prompt_ids = scored.prompt,
                  .sampling = ScoringParams(num_top),
                  .first_scored = std::ssize(scored.prompt),
                  .num_encoded = scored.num_encoded};
  for (const std::vector<TokenId>& choice : scored.choices) request.rivals.push_back(choice[0]);
  return request;
}

Request FurtherScoringRequest(const ScoredPrompt& scored, size_t choice_idx, int num_top) {
  const std::vector<TokenId>& choice = scored.choices[choice_idx];
  Request request{.prompt_ids = scored.prompt,
                  .sampling = ScoringParams(num_top),
                  .first_scored = std::ssize(scored.prompt) + 1,
                  .num_encoded = scored.num_encoded};
  request.prompt_ids.insert(request.prompt_ids.end(), choice.begin(), choice.end());
  return request;
}

std::vector<ResultChoice> FirstScores(const std::vector<ScoredText>& texts, Completion of_prompt, bool keeps_logprobs,
                                      const TokenText& token_text) {
  std::vector<ResultChoice> choices(texts.size());
  for (size_t i = 0; i < choices.size(); ++i) {
    Completion& choice = choices[i].completion;
    choices[i].score.Add(of_prompt.rivals[i]);
    if (keeps_logprobs) choice.logprobs.push_back(std::move(of_prompt.rivals[i]));
    choice.finish_reason = FinishReason::kLength;
    choice.text = texts[i].text;
    for (const TokenId id : texts[i].ids) choice.text += token_text(id, /*begins_text=*/false);
  }
  return choices;
}

void AddScores(Completion of_choice, bool keeps_logprobs, ResultChoice& choice) {
  for (TokenLogprobs& token : of_choice.prompt_logprobs) {
    choice.score.Add(token);
    if (keeps_logprobs) choice.completion.logprobs.push_back(std::move(token));
  }
}

int64_t BestChoice(const std::vector<ChoiceScore>& scores, const std::vector<int64_t>& num_chars) {
  const auto value = [&](size_t i) {
    return scores[i].logprob / static_cast<double>(num_chars.empty() ? 1 : std::max<int64_t>(1, num_chars[i]));
  };
  size_t best = 0;
  for (size_t i = 1; i < scores.size(); ++i) {
    if (value(i) > value(best)) best = i;
  }
  return static_cast<int64_t>(best);
}

}  // namespace penstock
