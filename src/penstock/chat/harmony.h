// The format in which gpt-oss answers ("harmony"): messages with a header that names channel and recipient.
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
  // Nothing when the vocabulary has not the format's special tokens. `tokenizer` must outlive the reader.
  static std::optional<HarmonyReader> For(const Tokenizer& tokenizer);

  // What a model generated after a prompt that ends in "<|start|>assistant", without or with its last token, of which
  // the text `kept` counts: a stop text and what came with it is cut off. Analysis, and what goes to tools that are no
  // functions, is reasoning; of a function's name "functions." is left out. Whatever the tokens are, there is an
  // answer: text without any header is content, a message that is cut off counts.
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
