// Unigram: of all ways to write a text with tokens, the one whose scores sum up highest. Every character that is no
// token counts as unknown, with a score below all others. Linear in the text, times the length of the longest token.
// Thread-safe once built.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "penstock/tokenizer/added_tokens.h"
#include "penstock/tokenizer/vocabulary.h"

namespace penstock {

// An unknown character scores this much less than the worst token.
inline constexpr double kUnigramUnknownPenalty = 10;

struct UnigramOptions {
  TokenId unk_id = -1;         // -1: unknown characters vanish
  double unknown_score = 0;    // of one unknown character
  bool byte_fallback = false;  // unknown characters become the tokens <0xNN> of their bytes
  // Hugging Face's tokenizers look a run of unknown characters up once more: it can be a token with a bad score.
  bool look_up_unknown = false;
  // Sums are rounded to float, as SentencePiece keeps them, so that ties fall as there.
  bool float_sums = false;
};

class UnigramModel {
 public:
  // Working memory of Encode, to be used again from word to word.
  struct Scratch {
    struct Best {
      double score;
      TokenId id;
      uint32_t num_bytes;  // of the last token of the best way to here; 0: no way leads here
    };
    std::vector<Best> best;
    std::vector<uint32_t> ends;  // of the tokens of the best way, from behind
    int64_t num_steps = 0;       // tokens tried, for the tests of complexity
  };

  // scores[id] of each token that a text may become; NaN: it may not.
  UnigramModel(Vocabulary vocabulary, std::vector<double> scores, const UnigramOptions& options);

  // Tokens that no text may become: those that only an added token makes.
  void Forbid(const absl::flat_hash_set<TokenId>& tokens);

  // Appends the ids of `word` (UTF-8, shorter than 2 GiB).
  void Encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  uint64_t memory_bytes() const;

 private:
  void FindBest(std::string_view word, Scratch& scratch) const;
  void AppendUnknown(std::string_view text, std::vector<TokenId>& out) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  UnigramOptions options_;
  PatternMatcher tokens_;
};

}  // namespace penstock
