#include "penstock/engine/sequence.h"

#include <algorithm>
#include <iterator>

#include "penstock/base/check.h"

namespace penstock {

Sequence::Sequence(RequestId id, Request request, const Tokenizer* tokenizer)
    : id_(id),
      priority_(request.priority),
      sampling_(std::move(request.sampling)),
      num_prompt_tokens_(static_cast<int64_t>(request.prompt_ids.size())),
      num_encoded_(request.num_encoded),
      token_ids_(std::move(request.prompt_ids)),
      num_to_prefill_(num_prompt_tokens_),
      history_(sampling_),
      tokenizer_(tokenizer),
      decoder_(tokenizer == nullptr ? std::nullopt : std::optional<StreamDecoder>(*tokenizer)),
      first_scored_(request.first_scored),
      rivals_(std::move(request.rivals)),
      // The last token of a prompt that is only scored predicts nothing.
      num_unwanted_(sampling_.max_tokens == 0 && rivals_.empty() && num_prompt_tokens_ > 1 ? 1 : 0) {
  if (decoder_ && request.continues_text) decoder_->ContinueText();
  if (request.constraint != nullptr) format_.emplace(std::move(request.constraint), !request.continues_text);
  history_.AddPrompt(token_ids().subspan(num_encoded_));
  if (sampling_.prompt_logprobs >= 0) {
    prompt_logprobs_.resize(static_cast<size_t>(num_prompt_tokens_ - first_scored_));
    if (first_scored_ == 0) prompt_logprobs_[0].chosen.token_id = token_ids_[0];
  }
}

std::vector<TokenId> Sequence::scored_at(int64_t pos) const {
  std::vector<TokenId> ids;
  if (pos < num_prompt_tokens_) ids.push_back(token_ids_[pos]);
  if (pos == std::max<int64_t>(first_scored_, 1)) ids.insert(ids.end(), rivals_.begin(), rivals_.end());
  return ids;
}

void Sequence::SetPromptLogprobs(int64_t pos, std::vector<TokenLogprobs> logprobs) {
  auto next = logprobs.begin();
  if (pos < num_prompt_tokens_) prompt_logprobs_[pos - first_scored_] = std::move(*next++);
  if (next != logprobs.end()) rival_logprobs_.assign(std::move_iterator(next), std::move_iterator(logprobs.end()));
}

void Sequence::Append(TokenId token_id, bool with_logprobs, TokenLogprobs logprobs) {
  const bool was_forced = !forced_.empty();
  if (was_forced) forced_.pop_front();
  AppendOne(token_id, with_logprobs, std::move(logprobs));
  if (!format_ || finished_) return;
  if (!was_forced) FindForced();
  while (!with_logprobs && !finished_ && !forced_.empty()) {
    const TokenId forced = forced_.front();
    forced_.pop_front();
    AppendOne(forced, false, {});
  }
}

void Sequence::FindForced() {
  constexpr size_t kMaxForcedBytes = 512;
  const std::string text = format_->ForcedText(kMaxForcedBytes);
  if (text.empty() || tokenizer_ == nullptr) return;
  const std::vector<TokenId> ids = tokenizer_->Encode(text, Origin::kMessage, AddSpecial::kNo);
  ConstraintState ahead = *format_;
  size_t num_bytes = 0;
  for (const TokenId id : ids) {
    if (std::ranges::find(sampling_.stop_token_ids, id) != sampling_.stop_token_ids.end()) break;
    // Some tokenizers put a space before a text, or change it.
    const std::string_view piece = ahead.TokenText(id);
    if (!std::string_view(text).substr(num_bytes).starts_with(piece) || !ahead.Accept(id)) break;
    num_bytes += piece.size();
    forced_.push_back(id);
  }
  // The last token may be the beginning of a longer one, unless it ends the answer.
  const bool ends_answer = num_bytes == text.size() && !ahead.can_go_on();
  if (!forced_.empty() && !ends_answer) forced_.pop_back();
}

void Sequence::AppendOne(TokenId token_id, bool with_logprobs, TokenLogprobs logprobs) {
  token_ids_.push_back(token_id);
  history_.AddGenerated(token_id);
  if (with_logprobs) logprobs_.push_back(std::move(logprobs));
  if (decoder_) AddText(decoder_->Push(token_id));
  if (format_) {
    const bool is_allowed = format_->Accept(token_id);
    PENSTOCK_CHECK(is_allowed);
    if (!finished_ && !format_->can_go_on()) Finish(FinishReason::kStop);
  }
  if (!finished_ && num_generated() >= sampling_.max_tokens) Finish(FinishReason::kLength);
}

void Sequence::AddText(std::string_view piece) {
  const size_t old_size = text_.size();
  text_ += piece;
  if (num_generated() < sampling_.min_tokens) return;
  size_t cut = std::string::npos;
  for (const std::string& stop : sampling_.stop) {
    const size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    const size_t found = text_.find(stop, from);
    if (found < cut) {
      cut = found;
      stop_text_ = stop;
    }
  }
  if (cut == std::string::npos) return;
  text_.resize(cut + (sampling_.includes_stop ? stop_text_.size() : 0));
  finished_ = true;
  finish_reason_ = FinishReason::kStop;
}

void Sequence::Finish(FinishReason reason) {
  if (decoder_) AddText(decoder_->Finish());
  if (finished_) return;  // the last piece completed a stop text
  finished_ = true;
  finish_reason_ = reason;
}

size_t Sequence::NumFinalBytes() const {
  size_t final_size = text_.size();
  if (finished_) return final_size;
  for (const std::string& stop : sampling_.stop) {
    for (size_t length = std::min(stop.size() - 1, text_.size()); length > 0; --length) {
      if (text_.ends_with(std::string_view(stop).substr(0, length))) {
        final_size = std::min(final_size, text_.size() - length);
        break;
      }
    }
  }
  return final_size;
}

void Sequence::HandOut(const std::function<void(const AnswerPiece&)>& sink) {
  if (failed()) return;
  const size_t final_size = std::max(NumFinalBytes(), num_given_bytes_);
  const auto num_given = static_cast<size_t>(num_given_tokens_);
  const AnswerPiece piece{.request_id = id_,
                          .token_ids = generated_ids().subspan(num_given),
                          .logprobs = std::span(logprobs_).subspan(std::min(num_given, logprobs_.size())),
                          .text = std::string_view(text_).substr(num_given_bytes_, final_size - num_given_bytes_)};
  if (piece.token_ids.empty() && piece.text.empty()) return;
  num_given_bytes_ = final_size;
  num_given_tokens_ = num_generated();
  sink(piece);
}

Completion Sequence::Release() {
  PENSTOCK_CHECK(finished_);
  Completion completion;
  completion.request_id = id_;
  // The token with which a decoder begins is not the caller's.
  completion.num_prompt_tokens = num_prompt_tokens_ - (num_encoded_ > 0 ? 1 : 0);
  completion.num_shared_tokens = num_shared_;
  if (failed()) {
    completion.status = std::move(status_);
    return completion;
  }
  completion.token_ids.assign(token_ids_.begin() + num_prompt_tokens_, token_ids_.end());
  completion.text = std::move(text_);
  completion.finish_reason = finish_reason_;
  completion.stop_text = std::move(stop_text_);
  completion.logprobs = std::move(logprobs_);
  completion.prompt_logprobs = std::move(prompt_logprobs_);
  completion.rivals = std::move(rival_logprobs_);
  return completion;
}

}  // namespace penstock
