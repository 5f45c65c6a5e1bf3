// Reads vocabularies of GGUF files (the keys tokenizer.ggml.*). They give the same ids as llama.cpp.
//
// Two differences are deliberate. If a byte-level vocabulary has no bos or eos, llama.cpp uses id 11; here there is
// none. And text of a message never becomes a control token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/gguf.h"

namespace penstock {

struct GgufVocabulary {
  // "llama" (SentencePiece BPE by scores), "gpt2" (byte-level BPE), "t5" (Unigram) or "gemma4" (BPE of raw UTF-8)
  std::string model;
  std::string pre;  // names the split patterns; "" if absent
  std::vector<std::string> tokens;
  std::vector<float> scores;         // empty or one per token
  std::vector<int32_t> token_types;  // empty or one per token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5
                                     // unused, 6 byte
  std::vector<std::string> merges;   // "left right"
  std::string precompiled_charsmap;  // bytes; may be empty
  int64_t bos_id = -1, eos_id = -1, unk_id = -1, pad_id = -1;  // -1: absent
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

// Reads the keys tokenizer.ggml.*; returns nothing if the file has no tokenizer. A wrong type gives kModel, naming the
// key.
absl::StatusOr<std::optional<GgufVocabulary>> ReadGgufVocabulary(const GgufMetadata& metadata);

// The meaning of one name in tokenizer.ggml.pre.
struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // applied one after the other: see SplitPattern::FromRegex
  bool ignore_merges = false;              // a word that is itself a token stays whole
  bool add_bos = false;                    // the default if tokenizer.ggml.add_bos_token is absent
  bool raw = false;  // tokens are spelled in UTF-8, with U+2581 for spaces, not in the byte alphabet
};

// Returns kModel for an unknown name.
absl::StatusOr<const GgufPreTokenizer*> FindGgufPreTokenizer(std::string_view name);

}  // namespace penstock
