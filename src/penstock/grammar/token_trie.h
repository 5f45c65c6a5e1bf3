// The vocabulary of a tokenizer as a trie of bytes: tokens that begin alike share their beginning.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/grammar/byte_classes.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock::grammar {

// A set of tokens: bit `id % 64` of word `id / 64`.
using TokenMask = std::vector<uint64_t>;
inline size_t MaskWords(int64_t vocab_size) { return static_cast<size_t>((vocab_size + 63) / 64); }
inline bool HasToken(std::span<const uint64_t> mask, TokenId id) { return (mask[id / 64] >> (id % 64) & 1) != 0; }
inline void AddToken(std::span<uint64_t> mask, TokenId id) { mask[id / 64] |= uint64_t{1} << (id % 64); }
inline void RemoveToken(std::span<uint64_t> mask, TokenId id) { mask[id / 64] &= ~(uint64_t{1} << (id % 64)); }

// Marks are tokens that no text of a message becomes, such as <|channel|>. A format writes them in this way, which text
// in UTF-8 cannot contain.
std::string MarkText(std::string_view mark);

class TokenTrie {
 public:
  // The nodes of a subtree follow each other, a parent before its children.
  struct Node {
    uint32_t num_below : 24 = 0;  // nodes below this one
    uint32_t byte : 8 = 0;
    TokenId token = -1;  // -1: no token ends here
  };

  // Reads the text of each token; that of a mark is its MarkText(). Tokens without text are left out. kModel if texts
  // of this tokenizer are not those of their tokens, one after the other.
  static absl::StatusOr<TokenTrie> Create(const Tokenizer& tokenizer, int64_t vocab_size);
  // Returns the maximum of memory_bytes().
  static uint64_t MaxBytes(const Tokenizer& tokenizer, int64_t vocab_size);
  // The same from texts: [vocab_size], empty for tokens that are left out.
  explicit TokenTrie(std::span<const std::string> texts);

  std::span<const Node> nodes() const { return nodes_; }
  // Returns the classes of all bytes below a node. They are kWideClass only if whole characters begin behind the node.
  ByteClasses classes_below(uint32_t node) const { return classes_below_[node]; }
  int64_t vocab_size() const { return static_cast<int64_t>(ends_.size()); }
  std::string_view Text(TokenId id) const {
    const uint32_t begin = id == 0 ? 0 : ends_[id - 1];
    return std::string_view(bytes_).substr(begin, ends_[id] - begin);
  }
  // The tokens that have another text at the beginning of an answer, without a leading space.
  std::span<const uint64_t> changed_at_start() const { return changed_at_start_; }
  // All tokens that have a node.
  std::span<const uint64_t> all_tokens() const { return all_tokens_; }
  size_t longest_token() const { return longest_token_; }

  uint64_t memory_bytes() const {
    return nodes_.capacity() * (sizeof(Node) + sizeof(ByteClasses)) + ends_.capacity() * sizeof(uint32_t) +
           bytes_.capacity() + (changed_at_start_.capacity() + all_tokens_.capacity()) * sizeof(uint64_t);
  }

 private:
  std::vector<Node> nodes_;
  std::vector<ByteClasses> classes_below_;  // [nodes]
  std::vector<uint32_t> ends_;              // [vocab_size]: of each text in bytes_
  std::string bytes_;
  TokenMask changed_at_start_, all_tokens_;
  size_t longest_token_ = 0;
};

}  // namespace penstock::grammar
