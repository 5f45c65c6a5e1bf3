// Unigram: among all ways to write a text as tokens, it finds the one with the highest sum of scores. A character that
// is no token counts as unknown, with a score below all tokens. Time is linear in the text, times the length of the
// longest token. Thread-safe once built.
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
  TokenId unk_id = -1;         // -1: unknown characters are dropped
  double unknown_score = 0;    // the score of one unknown character
  bool byte_fallback = false;  // unknown characters become the tokens <0xNN> of their bytes
  // Looks a run of unknown characters up once more, as Hugging Face's tokenizers do: it can be a token with a bad
  // score.
  bool look_up_unknown = false;
  // Rounds sums to float, as SentencePiece does, so that ties are decided in the same way.
  bool float_sums = false;
};

class UnigramModel {
 public:
  // Working memory of Encode, reused from word to word.
  struct Scratch {
    struct Best {
      double score;
      TokenId id;
      uint32_t num_bytes;  // length of the last token on the best way to here; 0: no way leads here
    };
    std::vector<Best> best;
    std::vector<uint32_t> ends;  // where the tokens of the best way end, last token first
    int64_t num_steps = 0;       // tokens tried; complexity tests read it
  };

  // scores[id] is the score of a token; NaN marks a token that no text may become.
  UnigramModel(Vocabulary vocabulary, std::vector<double> scores, const UnigramOptions& options);

  // Keeps ordinary text from becoming these tokens; only an added token produces them.
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
