// Added tokens: strings that become a token before the model splits the text. They are special tokens, and words that
// users added.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "penstock/tokenizer/tracked_text.h"

namespace penstock {

// Limits the length of added tokens and user-defined pieces, and so the work per byte of text.
inline constexpr size_t kMaxAddedTokenBytes = 512;
inline constexpr size_t kMaxAddedTokens = 1 << 16;

// Finds the longest of many patterns that begins at a given position, in steps proportional to its length.
class PatternMatcher {
 public:
  struct Match {
    int pattern = -1;  // the pattern's value, or -1 for no match
    size_t num_bytes = 0;
  };

  // REQUIRES: value >= 0 and `pattern` is not empty. A pattern that is added twice keeps its first value.
  void Add(std::string_view pattern, int value);

  // Returns the longest pattern at text[pos] for which accept(value, num_bytes) returns true.
  template <typename Accept>
  Match LongestAt(std::string_view text, size_t pos, Accept accept) const {
    Match best;
    if (!first_bytes_[static_cast<uint8_t>(text[pos])]) return best;
    uint32_t node = 0;
    for (size_t i = pos; i < text.size(); ++i) {
      const auto edge = edges_.find(EdgeKey(node, text[i]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (values_[node] >= 0 && accept(values_[node], i + 1 - pos)) best = {values_[node], i + 1 - pos};
    }
    return best;
  }

  // Calls found(value, num_bytes) for each pattern at text[pos], shortest first.
  template <typename Found>
  void ForEachAt(std::string_view text, size_t pos, Found found) const {
    LongestAt(text, pos, [&found](int value, size_t num_bytes) {
      found(value, num_bytes);
      return false;
    });
  }

  bool empty() const { return edges_.empty(); }
  uint64_t memory_bytes() const;

 private:
  static uint64_t EdgeKey(uint32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }

  std::bitset<256> first_bytes_;
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int> values_ = {-1};  // by node; node 0 is the root
};

struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool single_word = false;  // matches only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = true;    // is matched against the normalised text
  bool special = false;      // matches in template text only; Decode can skip it
  bool control = false;      // matches in template text only, though it is not special
};

class AddedTokens {
 public:
  // One part of a text: a token, or text between tokens (id -1).
  struct Part {
    size_t begin;
    size_t end;
    TokenId id;
  };

  // `normalized_content` is token.content after the normalizer; it is used if token.normalized.
  void Add(AddedToken token, std::string_view normalized_content);

  // Splits the text at tokens with normalized == false. The parts cover the whole text.
  std::vector<Part> SplitRaw(const TrackedText& text) const { return Split(text, raw_); }
  // Splits the text at tokens with normalized == true. The parts cover the whole text.
  std::vector<Part> SplitNormalized(const TrackedText& text) const { return Split(text, normalized_); }

  // Restricts the tokens for which is_control returns true: from now on they match in template text only.
  template <typename IsControl>
  void Guard(IsControl is_control) {
    for (AddedToken& token : tokens_) token.control = token.control || is_control(token);
  }

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // Returns nullptr if no added token has this id.
  const AddedToken* Find(TokenId id) const;
  const AddedToken* Find(std::string_view content) const;
  // Returns what the token looks like in a text: its content, normalised if the token is.
  std::string_view DecodedText(const AddedToken& token) const;
  uint64_t memory_bytes() const;

 private:
  std::vector<Part> Split(const TrackedText& text, const PatternMatcher& patterns) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> patterns_;  // the strings that Split looks for
  std::vector<size_t> core_bytes_;     // for each token: how many bytes at the end of its pattern must be template text
  absl::flat_hash_map<TokenId, int> by_id_;
  absl::flat_hash_map<std::string, int> by_content_;
  PatternMatcher raw_;
  PatternMatcher normalized_;
};

}  // namespace penstock
