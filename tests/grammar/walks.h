// Answers for tests of output formats: random ones, token by token, and given ones.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/grammar/constraint.h"

namespace penstock {

// A vocabulary with one token for each byte, and a few longer ones.
inline std::shared_ptr<const grammar::FormatVocabulary> ByteVocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"\":",  "\": ", "\",",    "\"}",  "{\"", "[{\"",  "\"]}",     "}}",
                             "]]",   "},",   "abc",    "true", "12",  "\",\"", "\xC3\xA9", "\xF0\x9F\x98\x80",
                             "\n  ", "null", "\": \"", "\\n"}) {
      texts.emplace_back(text);
    }
    return std::make_shared<const grammar::FormatVocabulary>(grammar::TokenTrie(texts));
  }();
  return vocabulary;
}

// Draws tokens uniformly from the allowed ones, with a preference for those that close something. Returns nothing if
// the answer has not ended after `max_tokens`, or cannot go on although it is not complete.
inline std::optional<std::string> RandomAnswer(const std::shared_ptr<const Constraint>& constraint, uint64_t seed,
                                               int max_tokens = 4000) {
  std::mt19937_64 random(seed);
  ConstraintState state(constraint, false);
  std::string answer;
  for (int i = 0; i < max_tokens; ++i) {
    if (state.is_complete() && (!state.can_go_on() || random() % 4 == 0)) return answer;
    grammar::TokenMask mask(grammar::MaskWords(constraint->trie().vocab_size()), 0);
    if (!state.AllowedTokens(mask).ok()) return std::nullopt;
    std::vector<TokenId> allowed, closing;
    for (TokenId id = 0; id < constraint->trie().vocab_size(); ++id) {
      if (!grammar::HasToken(mask, id)) continue;
      allowed.push_back(id);
      const std::string_view text = state.TokenText(id);
      if (text.find_first_of("\"]}") != std::string_view::npos) closing.push_back(id);
    }
    if (allowed.empty()) return std::nullopt;
    const auto& from = !closing.empty() && random() % 3 == 0 ? closing : allowed;
    const TokenId token = from[random() % from.size()];
    if (!state.Accept(token)) return std::nullopt;
    answer += constraint->trie().Text(token);
  }
  return std::nullopt;
}

// Whether an answer may be this text. Checks each byte against the mask, too.
inline bool AcceptsAnswer(const std::shared_ptr<const Constraint>& constraint, std::string_view text) {
  ConstraintState state(constraint, false);
  for (const char c : text) {
    const auto token = static_cast<TokenId>(static_cast<uint8_t>(c));
    grammar::TokenMask mask(grammar::MaskWords(constraint->trie().vocab_size()), 0);
    const bool is_allowed = state.AllowedTokens(mask).ok() && grammar::HasToken(mask, token);
    if (state.Accept(token) != is_allowed) return false;
    if (!is_allowed) return false;
  }
  return state.is_complete();
}

}  // namespace penstock
