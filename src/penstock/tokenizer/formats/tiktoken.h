// Which pattern splits the text of a tiktoken rank file, and which special tokens a format fixes by itself.
//
// A rank file holds tokens and their ranks only. The rule, first match decides:
// 1. the file's name: cl100k_base, o200k_base (or o200k_harmony), p50k_base, r50k_base, qwen, hy (each `.tiktoken`);
// 2. tokenizer_class of tokenizer_config.json: TikTokenTokenizer (Kimi), QWenTokenizer, HYTokenizer, ChatGLM4Tokenizer;
// 3. the number of ranks: those of the encodings above, of Llama-3 and of Kimi-K2;
// 4. the name tiktoken.model, which Kimi's models use whatever their number of ranks.
// What none of them tells is refused: a wrong pattern gives wrong ids without a sign.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/tokenizer/pipeline_tokenizer.h"

namespace penstock {

struct TiktokenFormat {
  std::string_view name = {};
  std::string_view pattern = {};   // see SplitPattern::FromRegex
  bool nfc = false;                // texts are normalised first
  int num_reserved = 0;            // ids behind the ranks that are tokens in any case,
  std::string_view reserved = {};  // named this, with {} for the id, unless tokenizer_config.json names them
};

// kModel when the format cannot be told.
absl::StatusOr<TiktokenFormat> FindTiktokenFormat(std::string_view file_name, std::string_view tokenizer_class,
                                                  size_t num_ranks);

// Is this a rank file (base64, a space, a number in its first line) and not a SentencePiece model?
bool LooksLikeTiktoken(std::string_view bytes);

// Reads "base64 rank" lines into the vocabulary (in the byte alphabet, ids are ranks) and adds the merges of each token
// out of all its halves: of two neighbours, those whose text has the lowest rank merge.
absl::Status ReadTiktokenRanks(std::string_view ranks, std::string_view file_name, TokenizerParts& parts);

}  // namespace penstock
