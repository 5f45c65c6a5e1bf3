#include "penstock/engine/request_check.h"

#include <span>
#include <vector>

#include "penstock/base/status.h"
#include "penstock/grammar/constraint.h"
#include "penstock/ops/sampler.h"

namespace penstock {
namespace {

// Checks what only encoder-decoder models take, or cannot take.
absl::Status CheckEncoded(const Request& request, const ModelConfig& config) {
  const int64_t num_prompt = std::ssize(request.prompt_ids), num_encoded = request.num_encoded;
  if (!config.encoder.is_on()) {
    return num_encoded == 0 ? absl::OkStatus() : InputError("num_encoded: the model has no encoder");
  }
  if (num_encoded < 1 || num_encoded >= num_prompt) {
    return InputError("num_encoded: expected a number from 1 to {}, found {}", num_prompt - 1, num_encoded);
  }
  if (request.sampling.prompt_logprobs >= 0 && request.first_scored <= num_encoded) {
    return NoPromptLogprobs();
  }
  if (request.sampling.max_tokens == 0 && request.sampling.prompt_logprobs < 0) {
    return InputError("max_tokens: expected 1 or more, found 0");
  }
  return absl::OkStatus();
}

}  // namespace

void BeginDecoding(const LoadedModel& model, Request& request) {
  if (!model.config.encoder.is_on() || request.num_encoded != 0 || request.prompt_ids.empty()) return;
  request.num_encoded = std::ssize(request.prompt_ids);
  request.prompt_ids.push_back(model.config.encoder.start_id);
}

absl::Status CheckRequest(const Request& request, const LoadedModel& model, int64_t context_length) {
  const int64_t vocab_size = model.config.vocab_size;
  const auto check_ids = [=](std::span<const TokenId> ids, std::string_view field = "") {
    return CheckTokenIds(ids, vocab_size, field);
  };
  PENSTOCK_RETURN_IF_ERROR(ValidateSampling(request.sampling));
  // The last token of a text predicts nothing if nothing follows, so it takes no position.
  const int64_t num_behind = request.sampling.max_tokens > 0 ? 1 : request.rivals.empty() ? -1 : 0;
  const std::span<const TokenId> ids = request.prompt_ids;
  if (!ids.empty()) PENSTOCK_RETURN_IF_ERROR(CheckEncoded(request, model.config));
  // Messages count the tokens of the prompt alone, not those that a decoder is given.
  const int64_t num_given = request.num_encoded > 0 ? std::ssize(ids) - request.num_encoded : 0;
  PENSTOCK_RETURN_IF_ERROR(check_ids(ids.last(static_cast<size_t>(num_given))));
  PENSTOCK_RETURN_IF_ERROR(CheckPrompt(ids.first(ids.size() - static_cast<size_t>(num_given)), vocab_size,
                                       context_length, num_given + num_behind));
  for (const auto& [id, bias] : request.sampling.logit_bias)
    PENSTOCK_RETURN_IF_ERROR(check_ids({&id, 1}, "logit_bias"));
  for (const std::vector<TokenId>& word : request.sampling.bad_words)
    PENSTOCK_RETURN_IF_ERROR(check_ids(word, "bad_words"));
  PENSTOCK_RETURN_IF_ERROR(check_ids(request.sampling.stop_token_ids, "stop_token_ids"));
  PENSTOCK_RETURN_IF_ERROR(check_ids(request.rivals));
  if (!request.rivals.empty() && (request.sampling.max_tokens > 0 || request.sampling.prompt_logprobs < 0)) {
    return InputError("rivals: only a prompt that is scored, with max_tokens 0 and prompt_logprobs, has them");
  }
  const int64_t last_scored = std::ssize(request.prompt_ids) - (request.rivals.empty() ? 1 : 0);
  const int64_t min_scored = request.rivals.empty() ? 0 : 1;
  if (request.first_scored < min_scored || request.first_scored > last_scored) {
    return InputError("first_scored: expected a number from {} to {}, found {}", min_scored, last_scored,
                      request.first_scored);
  }
  if (request.constraint != nullptr && request.constraint->trie().vocab_size() != vocab_size) {
    return InputError("constraint: it was compiled for another model");
  }
  if (model.tokenizer == nullptr && !request.sampling.stop.empty()) {
    return InputError("stop texts need a tokenizer, and the model folder has none");
  }
  return absl::OkStatus();
}

}  // namespace penstock
