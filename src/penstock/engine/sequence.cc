#include "penstock/engine/sequence.h"

#include <algorithm>

#include "penstock/base/check.h"

namespace penstock {

Sequence::Sequence(RequestId id, Request request, const Tokenizer* tokenizer)
    : id_(id),
      sampling_(std::move(request.sampling)),
      num_prompt_tokens_(static_cast<int64_t>(request.prompt_ids.size())),
      token_ids_(std::move(request.prompt_ids)),
      history_(sampling_),
      decoder_(tokenizer == nullptr ? std::nullopt : std::optional<StreamDecoder>(*tokenizer)) {
  if (decoder_ && request.continues_text) decoder_->ContinueText();
  history_.AddPrompt(token_ids_);
  if (sampling_.prompt_logprobs >= 0) {
    prompt_logprobs_.resize(token_ids_.size());
    prompt_logprobs_[0].chosen.token_id = token_ids_[0];
  }
}

void Sequence::Append(TokenId token_id, bool with_logprobs, TokenLogprobs logprobs) {
  token_ids_.push_back(token_id);
  history_.AddGenerated(token_id);
  if (with_logprobs) logprobs_.push_back(std::move(logprobs));
  if (decoder_) AddText(decoder_->Push(token_id));
  if (!finished_ && num_generated() >= sampling_.max_tokens) Finish(FinishReason::kLength);
}

void Sequence::AddText(std::string_view piece) {
  const size_t old_size = text_.size();
  text_ += piece;
  if (num_generated() < sampling_.min_tokens) return;
  size_t cut = std::string::npos, stop_size = 0;
  for (const std::string& stop : sampling_.stop) {
    const size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    const size_t found = text_.find(stop, from);
    if (found < cut) {
      cut = found;
      stop_size = stop.size();
    }
  }
  if (cut == std::string::npos) return;
  text_.resize(cut + (sampling_.includes_stop ? stop_size : 0));
  finished_ = true;
  finish_reason_ = FinishReason::kStop;
}

void Sequence::Finish(FinishReason reason) {
  if (decoder_) AddText(decoder_->Finish());
  if (finished_) return;  // the last piece completed a stop text
  finished_ = true;
  finish_reason_ = reason;
}

std::string Sequence::TakeFinalText() {
  size_t final_size = text_.size();
  if (!finished_) {
    for (const std::string& stop : sampling_.stop) {
      for (size_t length = std::min(stop.size() - 1, text_.size()); length > 0; --length) {
        if (text_.ends_with(std::string_view(stop).substr(0, length))) {
          final_size = std::min(final_size, text_.size() - length);
          break;
        }
      }
    }
  }
  if (final_size <= num_given_bytes_) return {};
  std::string text = text_.substr(num_given_bytes_, final_size - num_given_bytes_);
  num_given_bytes_ = final_size;
  return text;
}

Completion Sequence::Release() {
  PENSTOCK_CHECK(finished_);
  Completion completion;
  completion.request_id = id_;
  completion.num_prompt_tokens = num_prompt_tokens_;
  if (failed()) {
    completion.status = std::move(status_);
    return completion;
  }
  completion.token_ids.assign(token_ids_.begin() + num_prompt_tokens_, token_ids_.end());
  completion.text = std::move(text_);
  completion.finish_reason = finish_reason_;
  completion.logprobs = std::move(logprobs_);
  completion.prompt_logprobs = std::move(prompt_logprobs_);
  return completion;
}

}  // namespace penstock
