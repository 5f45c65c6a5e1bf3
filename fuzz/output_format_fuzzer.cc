// Feeds bytes to the compilers of output formats: the first byte chooses the kind, the rest is its text, or several
// texts with zeros between them. Follows the text itself through the automaton, and draws an answer of allowed tokens.
// Masks must allow what the automaton accepts, and no other token. Answers of JSON must be JSON when they are complete.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/json.h"
#include "penstock/chat/answer/format_parts.h"
#include "penstock/grammar/constraint.h"

namespace {

using namespace penstock;
using Kind = OutputFormat::Kind;

const std::shared_ptr<const grammar::FormatVocabulary>& Vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"\":", "\"}", "{\"", "abc", "12", "]}", "aaaaa", "\": \"", "\xC3\xA9\xC3\xA9", "a\xC3"}) {
      texts.emplace_back(text);
    }
    return std::make_shared<const grammar::FormatVocabulary>(grammar::TokenTrie(texts));
  }();
  return vocabulary;
}

// Returns the pieces of a text between its zeros.
std::vector<std::string> Pieces(const std::string& text) {
  std::vector<std::string> pieces;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

OutputFormat FormatOf(uint8_t choice, const std::string& text) {
  std::vector<std::string> pieces = Pieces(text);
  switch (choice % 7) {
    case 4: {
      form::Parts without;
      for (size_t i = 1; i < pieces.size(); ++i) {
        without.push_back(i % 2 == 1 ? form::Regex(pieces[i]) : form::Text(pieces[i]));
      }
      return form::TextWithout(std::move(without), pieces[0]);
    }
    case 5: return {Kind::kTaggedJson, text};
    case 6: {
      pieces.resize(3);
      return form::Sequence({form::Regex(pieces[0]), form::Repeat(form::Choice({{Kind::kJsonSchema, pieces[1]},
                                                                                {Kind::kGrammar, pieces[2]}}))});
    }
    default: return {static_cast<Kind>(choice % 7), text};
  }
}

// The mask has the tokens that the automaton accepts.
void CheckMask(const ConstraintState& state, const grammar::TokenMask& mask) {
  for (TokenId token = 0; token < Vocabulary()->trie().vocab_size(); ++token) {
    ConstraintState next = state;
    PENSTOCK_CHECK(next.Accept(token) == grammar::HasToken(mask, token));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const OutputFormat format = FormatOf(data[0], text);
  const auto constraint = Constraint::Compile(format, Vocabulary());
  if (!constraint.ok()) return 0;
  ConstraintState given(*constraint, true), drawn(*constraint, true);
  for (const char c : text) {
    if (!given.Accept(static_cast<uint8_t>(c))) break;
  }
  constexpr int kMaxTokens = 64, kNumChecked = 4;
  std::string answer;
  for (int i = 0; i < kMaxTokens && drawn.can_go_on(); ++i) {
    if (drawn.is_complete() && data[i % size] % 4 == 0) break;
    grammar::TokenMask mask(grammar::MaskWords(Vocabulary()->trie().vocab_size()), 0);
    if (!drawn.AllowedTokens(mask).ok()) return 0;
    if (i < kNumChecked) CheckMask(drawn, mask);
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < Vocabulary()->trie().vocab_size(); ++token) {
      if (grammar::HasToken(mask, token)) allowed.push_back(token);
    }
    // All bytes are tokens, so an answer that can go on has a token that may come next.
    PENSTOCK_CHECK(!allowed.empty());
    const TokenId token = allowed[(data[i % size] + static_cast<size_t>(i) * size) % allowed.size()];
    answer += drawn.TokenText(token);
    PENSTOCK_CHECK(drawn.Accept(token));
  }
  const bool is_json =
      format.kind == Kind::kJson || format.kind == Kind::kJsonSchema || format.kind == Kind::kTaggedJson;
  if (is_json && drawn.is_complete()) {
    json::error_code error;
    json::parse_options options;
    options.max_depth = 4 * kMaxTokens;
    json::parse(answer, error, {}, options);
    PENSTOCK_CHECK(!error);
  }
  return 0;
}
