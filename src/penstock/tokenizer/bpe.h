// Byte-pair encoding of one word. Its characters become tokens; then the neighbours with the lowest merge rank merge
// (the leftmost first among equals) until no pair can. O(n log n) in the word's length. Thread-safe once built.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "penstock/tokenizer/added_tokens.h"
#include "penstock/tokenizer/vocabulary.h"

namespace penstock {

struct BpeOptions {
  bool byte_fallback = false;  // unknown characters become the tokens <0xNN> of their bytes
  bool fuse_unk = false;       // neighbouring unknown characters become a single unk
  bool ignore_merges = false;  // a word that is itself a token stays whole
  TokenId unk_id = -1;         // -1: unknown characters are dropped
};

class BpeModel {
 public:
  // Working memory of Encode, reused from word to word.
  struct Scratch {
    struct Symbol {
      TokenId id;
      int32_t prev;
      int32_t next;
    };
    struct Candidate {
      uint64_t key;  // rank << 32 | position; the lowest merges first
      TokenId left;
      TokenId right;
      TokenId merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::vector<TokenId> ids;
    int64_t num_steps = 0;  // candidates examined; complexity tests read it
  };

  BpeModel(Vocabulary vocabulary, MergeTable merges, const BpeOptions& options);

  // Sets SentencePiece's user-defined pieces. They are matched in the text before anything merges, and never merge
  // further.
  void SetFrozenPieces(PatternMatcher pieces) { frozen_ = std::move(pieces); }
  // Sets the characters that occur in pieces without being pieces themselves. Their ids lie above the vocabulary; a
  // character that merges with nothing counts as unknown.
  void SetHiddenCharacters(absl::flat_hash_map<char32_t, TokenId> characters) { hidden_ = std::move(characters); }

  // Keeps ordinary text from becoming these tokens; only an added token produces them.
  void Forbid(absl::flat_hash_set<TokenId> tokens);

  // Appends the ids of `word` (UTF-8, shorter than 2 GiB).
  void Encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // Returns -1 if the vocabulary has no token for this byte.
  TokenId byte_id(uint8_t byte) const { return byte_ids_[byte]; }
  uint64_t memory_bytes() const;

 private:
  TokenId FindCharacter(std::string_view character, char32_t code_point) const;
  void SplitToSymbols(std::string_view word, std::vector<TokenId>& ids) const;
  bool AppendByteIds(std::string_view bytes, std::vector<TokenId>& ids) const;
  void MergeShort(Scratch& scratch) const;
  void MergeLong(Scratch& scratch) const;
  void Emit(const std::vector<TokenId>& ids, std::vector<TokenId>& out) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::array<TokenId, 256> byte_ids_;
  std::array<TokenId, 0x180> small_ids_;  // tokens of the characters below U+0180, which include the whole byte
                                          // alphabet
  PatternMatcher frozen_;
  absl::flat_hash_map<char32_t, TokenId> hidden_;
  absl::flat_hash_set<TokenId> forbidden_;
  bool forbids_characters_ = false;
};

}  // namespace penstock
