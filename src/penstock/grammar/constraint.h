// A compiled output format, and the state of an answer that follows it.
//
// The mask of allowed tokens comes from a walk over the vocabulary's trie. Most tokens are decided by the innermost
// call alone. Which ones these are, and where the others leave the call, is computed once for each state and kept
// (Part). Only the others are followed through the calls around it. Whole masks are kept, too.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "penstock/grammar/matcher.h"
#include "penstock/grammar/token_trie.h"
#include "penstock/output_format.h"

namespace penstock {

namespace grammar {

// Translates a format into an automaton. kInput when it is invalid, not supported, or too large.
absl::StatusOr<Automaton> CompileFormat(const OutputFormat& format);

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
};

// The masks and their parts that are known. It grows up to kMaxMaskCacheBytes, and is then begun again.
class MaskCache {
 public:
  using Key = std::vector<int32_t>;

  std::shared_ptr<const Part> FindPart(const Key& key) const;
  void AddPart(const Key& key, std::shared_ptr<const Part> part);
  // Adds the kept mask to `mask`. Returns whether there is one.
  bool AddMaskTo(const Key& key, std::span<uint64_t> mask) const;
  void AddMask(const Key& key, CompactMask mask);

 private:
  // Makes room. REQUIRES: mutex_ is held.
  void Count(uint64_t num_bytes);

  mutable std::mutex mutex_;
  absl::flat_hash_map<Key, std::shared_ptr<const Part>> parts_;
  absl::flat_hash_map<Key, CompactMask> masks_;
  uint64_t num_bytes_ = 0;
};

}  // namespace grammar

class Constraint {
 public:
  Constraint(OutputFormat format, grammar::Automaton automaton, std::shared_ptr<const grammar::TokenTrie> trie)
      : format_(std::move(format)), automaton_(std::move(automaton)), trie_(std::move(trie)) {}

  const OutputFormat& format() const { return format_; }
  const grammar::Automaton& automaton() const { return automaton_; }
  const grammar::TokenTrie& trie() const { return *trie_; }
  grammar::MaskCache& cache() const { return cache_; }
  // Returns how many bytes it takes now; masks may add kMaxMaskCacheBytes.
  uint64_t memory_bytes() const { return format_.text.capacity() + automaton_.memory_bytes(); }

 private:
  OutputFormat format_;
  grammar::Automaton automaton_;
  std::shared_ptr<const grammar::TokenTrie> trie_;
  mutable grammar::MaskCache cache_;
};

class ConstraintState {
 public:
  // With `begins_text`, tokenizers may strip a space from the first token; tokens with one are then not allowed first.
  ConstraintState(std::shared_ptr<const Constraint> constraint, bool begins_text);

  // Adds the tokens that may come next to `mask` [MaskWords(vocab_size)]. kInput if that takes too much work, because
  // the format has too many ways to match the text.
  absl::Status AllowedTokens(std::span<uint64_t> mask) const;
  // Takes the next token. Returns whether it was allowed; otherwise nothing changes.
  bool Accept(TokenId token);
  // Whether the answer may end here, and whether it may go on.
  bool is_complete() const { return position_.complete; }
  bool can_go_on() const { return !position_.threads.empty(); }
  // Returns the bytes that must come next: whole characters, and at most `max_bytes`.
  std::string ForcedText(size_t max_bytes) const;
  std::string_view TokenText(TokenId token) const { return constraint_->trie().Text(token); }

 private:
  void AddThread(grammar::Matcher& matcher, const grammar::Thread& thread, std::span<uint64_t> mask) const;
  std::shared_ptr<const grammar::Part> PartOf(const grammar::Matcher& matcher, const grammar::Thread& thread,
                                              grammar::StackId& outer) const;
  int32_t NearCount(const grammar::Frame& frame) const;
  grammar::MaskCache::Key KeyOf() const;
  void DropOldStacks();

  std::shared_ptr<const Constraint> constraint_;
  grammar::Matcher matcher_;
  grammar::Position position_;
  bool at_start_;
  size_t num_kept_stacks_ = 0;  // when old ones were dropped last
};

}  // namespace penstock
