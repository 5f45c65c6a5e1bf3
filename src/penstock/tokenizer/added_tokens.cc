#include "penstock/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "penstock/tokenizer/split/unicode.h"

namespace penstock {
namespace {

bool WordBefore(std::string_view text, size_t pos) {
  return pos > 0 && unicode::RuneAt(text, unicode::PreviousRune(text, pos)).Is(unicode::kWord);
}

bool WordAt(std::string_view text, size_t pos) { return unicode::RuneAt(text, pos).Is(unicode::kWord); }

}  // namespace

void PatternMatcher::Add(std::string_view pattern, int value) {
  first_bytes_.set(static_cast<uint8_t>(pattern[0]));
  uint32_t node = 0;
  for (const char byte : pattern) {
    const auto [edge, is_new] = edges_.try_emplace(EdgeKey(node, byte), static_cast<uint32_t>(values_.size()));
    node = edge->second;
    if (is_new) values_.push_back(-1);
  }
  if (values_[node] < 0) values_[node] = value;
}

uint64_t PatternMatcher::memory_bytes() const {
  return edges_.capacity() * (sizeof(std::pair<uint64_t, uint32_t>) + 1) + values_.capacity() * sizeof(int);
}

void AddedTokens::Add(AddedToken token, std::string_view normalized_content) {
  const int index = static_cast<int>(tokens_.size());
  const std::string_view pattern = token.normalized ? normalized_content : std::string_view(token.content);
  if (!pattern.empty()) (token.normalized ? normalized_ : raw_).Add(pattern, index);
  // A normalizer may put something before every text ("\u2581"). The token is valid whoever wrote that prefix.
  core_bytes_.push_back(pattern.ends_with(token.content) ? token.content.size() : pattern.size());
  patterns_.emplace_back(pattern);
  by_id_.try_emplace(token.id, index);
  by_content_.try_emplace(token.content, index);
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::Find(TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::Find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

std::string_view AddedTokens::DecodedText(const AddedToken& token) const { return patterns_[&token - tokens_.data()]; }

// Finds the leftmost longest matches, as Hugging Face does. A match that single_word refuses is skipped as a whole.
std::vector<AddedTokens::Part> AddedTokens::Split(const TrackedText& tracked, const PatternMatcher& patterns) const {
  const std::string_view text = tracked.text();
  std::vector<Part> parts;
  if (patterns.empty()) {
    if (!text.empty()) parts.push_back({0, text.size(), -1});
    return parts;
  }
  size_t text_begin = 0;  // start of the text since the last token
  for (size_t pos = 0; pos < text.size();) {
    const PatternMatcher::Match match = patterns.LongestAt(text, pos, [&](int index, size_t num_bytes) {
      const size_t i = index;
      const bool anywhere = !tokens_[i].special && !tokens_[i].control;
      return anywhere || tracked.IsTemplate(pos + num_bytes - core_bytes_[i], pos + num_bytes);
    });
    if (match.pattern < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[match.pattern];
    size_t begin = pos;
    size_t end = pos + match.num_bytes;
    pos = end;
    if (token.single_word && (WordBefore(text, begin) || WordAt(text, end))) continue;
    if (token.lstrip) {
      while (begin > text_begin) {
        const size_t previous = unicode::PreviousRune(text, begin);
        if (previous < text_begin || !unicode::RuneAt(text, previous).Is(unicode::kSpace)) break;
        begin = previous;
      }
    }
    if (token.rstrip) end = unicode::SkipClass(text, end, unicode::kSpace);
    if (text_begin < begin) parts.push_back({text_begin, begin, -1});
    parts.push_back({begin, end, token.id});
    text_begin = end;
    pos = end;
  }
  if (text_begin < text.size()) parts.push_back({text_begin, text.size(), -1});
  return parts;
}

uint64_t AddedTokens::memory_bytes() const {
  uint64_t bytes = tokens_.capacity() * sizeof(AddedToken) + core_bytes_.capacity() * sizeof(size_t) +
                   by_id_.capacity() * (sizeof(std::pair<TokenId, int>) + 1) +
                   by_content_.capacity() * (sizeof(std::pair<std::string, int>) + 1) + raw_.memory_bytes() +
                   normalized_.memory_bytes();
  for (const AddedToken& token : tokens_) bytes += 3 * token.content.capacity() + sizeof(std::string);
  return bytes;
}

}  // namespace penstock
