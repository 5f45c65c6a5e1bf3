// Added tokens: strings that become a token before the model sees the text (special tokens, and words that users
// added).
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

// Added tokens and user-defined pieces are at most this long. It bounds the work per byte of text.
inline constexpr size_t kMaxAddedTokenBytes = 512;
inline constexpr size_t kMaxAddedTokens = 1 << 16;

// Finds the longest of many patterns at a place, in steps proportional to its length.
class PatternMatcher {
 public:
  struct Match {
    int pattern = -1;  // the pattern's value, -1: none
    size_t num_bytes = 0;
  };

  // REQUIRES: value >= 0, pattern is not empty. A pattern that is added again keeps its first value.
  void Add(std::string_view pattern, int value);

  // The longest pattern at text[pos] for which accept(value, num_bytes) holds.
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

  // Calls found(value, num_bytes) for each pattern at text[pos], the shortest first.
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
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = true;    // matches in the normalised text
  bool special = false;      // matches in template text only; Decode can skip it
  bool control = false;      // matches in template text only, though it is not special
};

class AddedTokens {
 public:
  // A part of a text: a token, or text between tokens (id -1).
  struct Part {
    size_t begin;
    size_t end;
    TokenId id;
  };

  // `normalized_content` is what the normalizer makes of token.content; used when token.normalized.
  void Add(AddedToken token, std::string_view normalized_content);

  // Parts that cover the text, of the tokens with normalized == false.
  std::vector<Part> SplitRaw(const TrackedText& text) const { return Split(text, raw_); }
  // The same of the tokens with normalized == true.
  std::vector<Part> SplitNormalized(const TrackedText& text) const { return Split(text, normalized_); }

  // From now on a token that is_control holds for matches in template text only.
  template <typename IsControl>
  void Guard(IsControl is_control) {
    for (AddedToken& token : tokens_) token.control = token.control || is_control(token);
  }

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // nullptr when no added token has this id.
  const AddedToken* Find(TokenId id) const;
  const AddedToken* Find(std::string_view content) const;
  // What the token stands for in a text: its content, normalised when the token is.
  std::string_view DecodedText(const AddedToken& token) const;
  uint64_t memory_bytes() const;

 private:
  std::vector<Part> Split(const TrackedText& text, const PatternMatcher& patterns) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> patterns_;  // what Split looks for
  std::vector<size_t> core_bytes_;     // of each token's pattern, the bytes at its end that must be template text
  absl::flat_hash_map<TokenId, int> by_id_;
  absl::flat_hash_map<std::string, int> by_content_;
  PatternMatcher raw_;
  PatternMatcher normalized_;
};

}  // namespace penstock
