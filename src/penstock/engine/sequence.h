// A request in the batch: its tokens, its KV pages, and the text that it has generated so far.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/engine.h"
#include "penstock/grammar/constraint.h"
#include "penstock/memory/kv_sequence.h"
#include "penstock/ops/sampler.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

class Sequence {
 public:
  // With a null `tokenizer` there are token ids but no text.
  Sequence(RequestId id, Request request, const Tokenizer* tokenizer);

  RequestId id() const { return id_; }
  int priority() const { return priority_; }
  const SamplingParams& sampling() const { return sampling_; }

  // num_known() counts the tokens that passes compute, num_computed() those of them whose KV entries exist, and
  // num_pending() the others.
  int64_t num_computed() const { return num_computed_; }
  int64_t num_known() const { return static_cast<int64_t>(token_ids_.size()) - num_unwanted_; }
  int64_t num_pending() const { return num_known() - num_computed_; }
  int64_t num_unwanted() const { return num_unwanted_; }
  void AdvanceComputed(int64_t num_rows) {
    num_computed_ += num_rows;
    repeats_drafts_ = false;
  }
  // Says that the rows of drafts that were right must be computed again, because the recurrent state was taken back.
  void SetRepeatsDrafts() { repeats_drafts_ = true; }
  // Returns whether such rows are pending.
  bool repeats_drafts() const { return repeats_drafts_; }
  // The same for rows that other sequences have computed.
  void SkipShared(int64_t num_rows) {
    num_computed_ += num_rows;
    num_shared_ += num_rows;
  }
  TokenId token_id(int64_t pos) const { return token_ids_[pos]; }
  // Whether a part of the prompt is not yet computed; after a pause, also a part of the answer so far.
  bool in_prefill() const { return num_computed_ < num_to_prefill_; }
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  // Returns how many positions an encoder reads, and how many of them it has not read.
  int64_t num_encoded() const { return num_encoded_; }
  int64_t num_to_encode() const { return std::max<int64_t>(0, num_encoded_ - num_computed_); }
  // Returns how long the sequence may get: prompt and answer together.
  int64_t max_length() const { return num_prompt_tokens_ + sampling_.max_tokens; }
  // Returns the maximum number of positions that the sequence can take.
  int64_t max_positions() const { return max_length() - num_unwanted_; }
  int64_t num_generated() const { return static_cast<int64_t>(token_ids_.size()) - num_prompt_tokens_; }
  std::span<const TokenId> generated_ids() const { return token_ids().subspan(num_prompt_tokens_); }
  const TokenHistory& history() const { return history_; }

  std::span<const TokenId> token_ids() const { return token_ids_; }
  // The pages of its KV entries, once it has a place in the batch.
  std::optional<KvSequence>& kv() { return kv_; }

  // The state of the format that the answer follows; absent: there is none.
  const std::optional<ConstraintState>& format() const { return format_; }
  // Returns the next token if the format forces it, or -1. Without log-probabilities such tokens are appended at once,
  // so that one pass computes them together. With them, each is computed by itself, and the tokens are the same.
  TokenId forced_token() const { return forced_.empty() ? -1 : forced_.front(); }

  // Returns how many tokens guesses have been learnt from, and says that they now have been from all.
  int64_t SetLearned() { return std::exchange(num_learned_, std::ssize(token_ids_)); }

  // Takes a generated token that is not the end-of-sequence token. It must be allowed by the format. Tokens that the
  // format then forces follow.
  void Append(TokenId token_id, bool with_logprobs, TokenLogprobs logprobs);
  // Returns the first row that the sequence must compute itself, for its logits.
  int64_t first_needed_row() const {
    if (num_generated() > 0) return num_to_prefill_ - 1;
    return sampling_.prompt_logprobs < 0 ? num_prompt_tokens_ - 1 : std::max<int64_t>(first_scored_, 1) - 1;
  }
  // Returns whether log-probabilities are wanted for the token at `pos`: a token of the prompt, or the first one behind
  // it.
  bool wants_prompt_logprobs(int64_t pos) const {
    return sampling_.prompt_logprobs >= 0 && num_generated() == 0 && pos >= first_scored_ &&
           (pos < num_prompt_tokens_ || (pos == first_scored_ && !rivals_.empty()));
  }
  // Returns the tokens whose log-probabilities are wanted at `pos`: the prompt's own, then rivals.
  std::vector<TokenId> scored_at(int64_t pos) const;
  // Takes the log-probabilities of these tokens.
  void SetPromptLogprobs(int64_t pos, std::vector<TokenLogprobs> logprobs);
  // Gives up the place in the batch. All tokens so far are computed again when the sequence gets another one.
  void Pause() {
    kv_.reset();
    num_computed_ = 0;
    num_to_prefill_ = std::ssize(token_ids_);
  }
  // Ends a sequence that only scores its prompt, once that is computed.
  void FinishIfOnlyScored() {
    if (sampling_.max_tokens == 0 && num_pending() == 0 && !finished_) Finish(FinishReason::kLength);
  }
  // Ends the sequence because the end-of-sequence token, or a stop token, was generated.
  void FinishByEos() { Finish(FinishReason::kStop); }
  // Ends the sequence because a pass could not compute one of its rows.
  void Fail(const absl::Status& status) {
    status_.Update(status);
    finished_ = true;
  }

  bool finished() const { return finished_; }
  bool failed() const { return !status_.ok(); }
  // Calls `sink` with what the answer gained since the last call, if that is anything.
  void HandOut(const std::function<void(const AnswerPiece&)>& sink);
  // Moves the results out. REQUIRES: finished().
  Completion Release();

 private:
  void AppendOne(TokenId token_id, bool with_logprobs, TokenLogprobs logprobs);
  // Finds the tokens that the format forces next.
  void FindForced();
  void AddText(std::string_view piece);
  void Finish(FinishReason reason);
  // Returns how many bytes of the text are final. A possible beginning of a stop text is not.
  size_t NumFinalBytes() const;

  RequestId id_;
  int priority_;
  SamplingParams sampling_;
  int64_t num_prompt_tokens_;
  int64_t num_encoded_;
  std::vector<TokenId> token_ids_;  // prompt and generated
  int64_t num_to_prefill_;          // the prompt; after a pause, all tokens that there were
  int64_t num_computed_ = 0;
  bool repeats_drafts_ = false;
  int64_t num_learned_ = 0;
  int64_t num_shared_ = 0;  // rows among them that other sequences had computed
  TokenHistory history_;
  std::optional<KvSequence> kv_;
  const Tokenizer* tokenizer_;  // null: there is none
  std::optional<StreamDecoder> decoder_;
  std::optional<ConstraintState> format_;
  std::deque<TokenId> forced_;
  std::string text_;
  std::string stop_text_;         // that ended the text
  size_t num_given_bytes_ = 0;    // bytes of text_ that HandOut() has given
  int64_t num_given_tokens_ = 0;  // the same of generated tokens
  int64_t first_scored_;
  std::vector<TokenId> rivals_;
  int64_t num_unwanted_;  // tokens at the end of the prompt that nothing depends on
  std::vector<TokenLogprobs> logprobs_, prompt_logprobs_, rival_logprobs_;
  bool finished_ = false;
  FinishReason finish_reason_ = FinishReason::kStop;
  absl::Status status_;  // the first failure of its passes
};

}  // namespace penstock
