// Reads "harmony", the format of gpt-oss's answers: messages whose header names a channel and a recipient.
//
//   <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>the answer<|return|>
//   <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/chat_answer.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

class HarmonyReader {
 public:
  // Returns nothing if the vocabulary lacks the format's special tokens. `tokenizer` must outlive the reader.
  static std::optional<HarmonyReader> For(const Tokenizer& tokenizer);

  // Reads what a model generated after a prompt that ends in "<|start|>assistant", with or without its last token. Only
  // the text `kept` counts: a stop text and everything after it is cut off. Analysis is reasoning, and so are messages
  // to tools that are not functions. Function names lose their prefix "functions.". Any tokens give an answer: text
  // without a header is content, and a message that is cut off counts.
  ChatAnswer Read(std::span<const TokenId> ids, std::string_view kept) const;

 private:
  explicit HarmonyReader(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string Text(std::span<const TokenId> ids) const;
  void AddMessage(std::span<const TokenId> header, std::span<const TokenId> body, size_t num_cut_bytes,
                  ChatAnswer& answer) const;

  const Tokenizer* tokenizer_;
  TokenId start_ = -1, channel_ = -1, constrain_ = -1, message_ = -1, end_ = -1, return_ = -1, call_ = -1;
};

}  // namespace penstock
