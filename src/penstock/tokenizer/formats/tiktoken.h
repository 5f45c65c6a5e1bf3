// Finds the split pattern of a tiktoken rank file, and the special tokens that its format fixes.
//
// A rank file holds only tokens and their ranks. The first of these that is known decides:
// 1. the file's name: cl100k_base, o200k_base (or o200k_harmony), p50k_base, r50k_base, qwen, hy (each `.tiktoken`);
// 2. tokenizer_class of tokenizer_config.json: TikTokenTokenizer (Kimi), QWenTokenizer, HYTokenizer, ChatGLM4Tokenizer;
// 3. the number of ranks: the encodings above, Llama-3 and Kimi-K2 are known by it;
// 4. the name tiktoken.model, which Kimi's models use whatever their number of ranks.
// Any other file is refused, because a wrong pattern gives wrong ids without any warning.
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
  bool nfc = false;                // texts are normalised (NFC) before they are split
  int num_reserved = 0;            // this many ids behind the ranks are tokens in any case;
  std::string_view reserved = {};  // this is their name, with {} for the id, unless tokenizer_config.json names them
};

// Returns kModel if the format is not known.
absl::StatusOr<TiktokenFormat> FindTiktokenFormat(std::string_view file_name, std::string_view tokenizer_class,
                                                  size_t num_ranks);

// Returns whether the file holds ranks (its first line is base64, a space and a number) and not a SentencePiece model.
bool LooksLikeTiktoken(std::string_view bytes);

// Reads "base64 rank" lines into the vocabulary, in the byte alphabet; ids are ranks. Adds one merge for each way to
// cut a token into two tokens, because tiktoken merges the two neighbours whose joined text has the lowest rank.
absl::Status ReadTiktokenRanks(std::string_view ranks, std::string_view file_name, TokenizerParts& parts);

}  // namespace penstock
