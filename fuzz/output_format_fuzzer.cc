// Feeds bytes to the compilers of output formats: the first byte chooses the kind, the rest is the text. Then follows
// the text itself through the automaton, and draws the answer that the lowest allowed tokens give.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "penstock/grammar/constraint.h"

namespace {

const std::shared_ptr<const penstock::grammar::FormatVocabulary>& Vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"\":", "\"}", "{\"", "abc", "12", "]}"}) texts.emplace_back(text);
    return std::make_shared<const penstock::grammar::FormatVocabulary>(penstock::grammar::TokenTrie(texts));
  }();
  return vocabulary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::OutputFormat;
  if (size == 0) return 0;
  const auto kind = static_cast<OutputFormat::Kind>(data[0] % 4);
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto constraint = penstock::Constraint::Compile({kind, text}, Vocabulary());
  if (!constraint.ok()) return 0;
  penstock::ConstraintState given(*constraint, true), drawn(*constraint, true);
  for (const char c : text) {
    if (!given.Accept(static_cast<uint8_t>(c))) break;
  }
  constexpr int kMaxTokens = 64;
  for (int i = 0; i < kMaxTokens && drawn.can_go_on(); ++i) {
    penstock::grammar::TokenMask mask(penstock::grammar::MaskWords(Vocabulary()->trie().vocab_size()), 0);
    if (!drawn.AllowedTokens(mask).ok()) break;
    penstock::TokenId token = 0;
    while (token < Vocabulary()->trie().vocab_size() && !penstock::grammar::HasToken(mask, token)) ++token;
    // All bytes are tokens, so an answer that can go on has a token that may come next.
    if (token == Vocabulary()->trie().vocab_size() || !drawn.Accept(token)) std::abort();
  }
  return 0;
}
