// Tokens and their ids, without an allocation per token: one arena of bytes, offsets by id, and a hash table of ids.
// Immutable after loading, and then safe to share between threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "penstock/token_id.h"

namespace penstock {

class Vocabulary {
 public:
  // Reserves room for `num_tokens` tokens of `num_bytes` bytes in total.
  void Reserve(size_t num_tokens, size_t num_bytes);

  // Returns kModel, naming `where`, if the id is negative or at least kMaxVocabSize, if the text is empty, or if the id
  // or the text is already present.
  absl::Status Add(std::string_view text, int64_t id, std::string_view where);

  // Returns -1 if there is no such token.
  TokenId Find(std::string_view text) const;
  // Returns "" if no token has this id.
  std::string_view Text(TokenId id) const;
  bool Has(TokenId id) const { return id >= 0 && id < size() && spans_[id].num_bytes > 0; }

  // One more than the largest id.
  int64_t size() const { return static_cast<int64_t>(spans_.size()); }
  int64_t num_tokens() const { return num_tokens_; }
  uint64_t memory_bytes() const;

 private:
  struct Span {
    uint32_t offset = 0;
    uint32_t num_bytes = 0;  // 0: no token has this id
  };

  size_t SlotOf(std::string_view text) const;
  void Grow(size_t num_slots);

  std::string arena_;
  std::vector<Span> spans_;     // [size]
  std::vector<TokenId> slots_;  // open addressing, a power of two, at most half full; -1: free
  int64_t num_tokens_ = 0;
};

// Pairs of neighbours that merge: (left, right) -> the merged token and its rank. The lowest rank merges first.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNone;
    TokenId merged = -1;

    static constexpr uint32_t kNone = 0xFFFFFFFF;
    bool exists() const { return rank != kNone; }
  };

  void Reserve(size_t num_merges);
  // Adds a merge. A pair that is added twice keeps the later rank, as in Hugging Face's tokenizers.
  void Add(TokenId left, TokenId right, uint32_t rank, TokenId merged);
  Merge Find(TokenId left, TokenId right) const;
  // Removes the merges that produce one of the tokens.
  void RemoveMergesInto(const absl::flat_hash_set<TokenId>& tokens);

  uint64_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    TokenId left = -1;
    TokenId right = -1;
    Merge merge;
  };

  size_t SlotOf(TokenId left, TokenId right) const;
  void Grow(size_t num_slots);

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  size_t num_merges_ = 0;
};

}  // namespace penstock
