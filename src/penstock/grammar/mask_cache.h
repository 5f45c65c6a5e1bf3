// Masks of allowed tokens, and the parts of which they are made, kept for all constraints of a model.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "penstock/grammar/token_trie.h"

namespace penstock::grammar {

// A set of tokens: a list if there are few, and bits if there are many.
class CompactMask {
 public:
  CompactMask() = default;
  explicit CompactMask(std::span<const uint64_t> mask);
  void AddTo(std::span<uint64_t> mask) const;
  uint64_t memory_bytes() const { return few_.capacity() * sizeof(TokenId) + bits_.capacity() * sizeof(uint64_t); }

 private:
  std::vector<TokenId> few_;
  TokenMask bits_;
};

// The tokens that are allowed at a state, as far as its own call decides.
struct Part {
  CompactMask allowed;
  // The nodes of the trie behind which the call has ended. What is below them depends on the calls around it.
  std::vector<uint32_t> exits;
  // The call has ended behind these nodes, too, and behind all that are below them.
  std::vector<uint32_t> open_exits;
};

// The masks of all constraints of a model, and their parts, as far as they are known. When they reach the limit, all
// are forgotten. Threads may share it.
class MaskCache {
 public:
  using Key = std::vector<int32_t>;

  explicit MaskCache(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns a number with which the keys of a constraint begin.
  int32_t NewId() { return num_ids_.fetch_add(1); }

  std::shared_ptr<const Part> FindPart(const Key& key) const;
  void AddPart(const Key& key, std::shared_ptr<const Part> part);
  // Adds the kept mask to `mask`. Returns whether there is one.
  bool AddMaskTo(const Key& key, std::span<uint64_t> mask) const;
  void AddMask(const Key& key, CompactMask mask);

 private:
  // Makes room. REQUIRES: mutex_ is held.
  void Count(uint64_t num_bytes);

  uint64_t max_bytes_;
  std::atomic<int32_t> num_ids_ = 0;
  mutable std::mutex mutex_;
  absl::flat_hash_map<Key, std::shared_ptr<const Part>> parts_;
  absl::flat_hash_map<Key, CompactMask> masks_;
  uint64_t num_bytes_ = 0;
};

// The parts that all constraints of a model share.
class FormatVocabulary {
 public:
  // As TokenTrie::Create().
  static absl::StatusOr<std::shared_ptr<const FormatVocabulary>> Create(const Tokenizer& tokenizer, int64_t vocab_size);
  explicit FormatVocabulary(TokenTrie trie) : trie_(std::move(trie)), cache_(MaxCacheBytes(trie_.vocab_size())) {}
  // Returns the maximum that a vocabulary takes in memory.
  static uint64_t MaxBytes(const Tokenizer& tokenizer, int64_t vocab_size);

  const TokenTrie& trie() const { return trie_; }
  MaskCache& cache() const { return cache_; }

 private:
  static uint64_t MaxCacheBytes(int64_t vocab_size);

  TokenTrie trie_;
  mutable MaskCache cache_;
};

}  // namespace penstock::grammar
