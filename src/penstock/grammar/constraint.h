// A compiled output format, and the state of an answer that follows it.
//
// The mask of allowed tokens comes from a walk over the vocabulary's trie. Most tokens are decided by the innermost
// call alone. Which ones these are, and where the others leave the call, is computed once for each state and kept
// (Part). Only the others are followed through the calls around it. Whole masks are kept, too.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/grammar/mask_cache.h"
#include "penstock/grammar/matcher.h"
#include "penstock/grammar/token_trie.h"
#include "penstock/output_format.h"

namespace penstock {

namespace grammar {

// Translates a format into an automaton. kInput when it is invalid, not supported, or too large.
absl::StatusOr<Automaton> CompileFormat(const OutputFormat& format);

}  // namespace grammar

class Constraint {
 public:
  // kInput when the format is invalid, not supported, or too large.
  static absl::StatusOr<std::shared_ptr<const Constraint>> Compile(
      const OutputFormat& format, std::shared_ptr<const grammar::FormatVocabulary> vocabulary);

  const OutputFormat& format() const { return format_; }
  const grammar::Automaton& automaton() const { return automaton_; }
  const grammar::TokenTrie& trie() const { return vocabulary_->trie(); }
  grammar::MaskCache& cache() const { return vocabulary_->cache(); }
  int32_t id() const { return id_; }
  // Returns how many bytes it takes without its vocabulary.
  uint64_t memory_bytes() const { return sizeof(*this) + format_.text.capacity() + automaton_.memory_bytes(); }

 private:
  Constraint(OutputFormat format, grammar::Automaton automaton,
             std::shared_ptr<const grammar::FormatVocabulary> vocabulary)
      : format_(std::move(format)),
        automaton_(std::move(automaton)),
        vocabulary_(std::move(vocabulary)),
        id_(vocabulary_->cache().NewId()) {}

  OutputFormat format_;
  grammar::Automaton automaton_;
  std::shared_ptr<const grammar::FormatVocabulary> vocabulary_;
  int32_t id_;
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
  // Whether no token reaches a limit of a count.
  bool IsFarFromLimits(const grammar::Frame& frame) const;
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
