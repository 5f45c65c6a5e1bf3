// Reads "harmony", the format of gpt-oss's answers: messages whose header names a channel and a recipient.
//
//   <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>the answer<|return|>
//   <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat/answer/marked_text.h"
#include "penstock/chat_answer.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

struct HarmonyTokens {
  // Returns nothing if the vocabulary lacks the format's special tokens.
  static std::optional<HarmonyTokens> Find(const Tokenizer& tokenizer);

  TokenId start = -1, channel = -1, constrain = -1, message = -1, end = -1, last = -1, call = -1;
};

// Reads what a model generated after a prompt that ends in "<|start|>assistant", or in content of a message. Analysis
// is reasoning, and so are messages to tools that are not functions. Function names lose their prefix "functions.". Any
// tokens give an answer: text without a header is content, and a message that is cut off counts.
class HarmonyStream : public AnswerStream {
 public:
  // REQUIRES: HarmonyTokens::Find(tokenizer). The tokenizer must outlive the stream.
  explicit HarmonyStream(const Tokenizer& tokenizer, AnswerStart start = AnswerStart::kUnknown);

  std::vector<AnswerDelta> Push(std::span<const TokenId> ids, std::string_view text) override;
  std::vector<AnswerDelta> Finish() override;
  int64_t num_reasoning_tokens() const override { return num_reasoning_tokens_; }

 private:
  enum class Part : uint8_t { kBefore, kChannel, kType, kMessage };  // of a message; the first three are its header

  void TakeMark(TokenId mark, std::vector<AnswerDelta>& deltas);
  void BeginMessage(std::vector<AnswerDelta>& deltas);

  HarmonyTokens tokens_;
  MarkedText::Hidden hidden_;
  MarkedText marked_;
  Part part_ = Part::kBefore;
  std::string before_, channel_;  // text of the header
  bool is_named_ = false;         // <|start|>, or another message, came before
  bool has_channel_ = false;
  AnswerDelta::Kind kind_ = AnswerDelta::Kind::kContent;  // of the message
  int64_t num_calls_ = 0;
  int64_t num_reasoning_tokens_ = 0;
};

}  // namespace penstock
