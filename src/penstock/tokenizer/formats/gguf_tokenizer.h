// Vocabularies of GGUF files: the keys tokenizer.ggml.*, as llama.cpp reads them. Ids are those that llama.cpp gives.
//
// Two things are left out on purpose. llama.cpp takes id 11 for a missing bos or eos of a byte-level vocabulary: here
// there is none then. And no text of a message becomes a control token, by whatever way.
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
  std::string model;  // "llama" (SentencePiece BPE by scores), "gpt2" (byte-level BPE), "t5" (Unigram)
  std::string pre;    // how text is split, "" when absent
  std::vector<std::string> tokens;
  std::vector<float> scores;         // empty or one per token
  std::vector<int32_t> token_types;  // empty or one per token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5
                                     // unused, 6 byte
  std::vector<std::string> merges;   // "left right"
  std::string precompiled_charsmap;  // bytes; may be empty
  int64_t bos_id = -1, eos_id = -1, unk_id = -1, pad_id = -1;  // -1: absent
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

// From the keys tokenizer.ggml.*; nothing when the file has no tokenizer. kModel, naming the key, for wrong types.
absl::StatusOr<std::optional<GgufVocabulary>> ReadGgufVocabulary(const GgufMetadata& metadata);

// What a name in tokenizer.ggml.pre stands for.
struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // applied one after the other: see SplitPattern::FromRegex
  bool ignore_merges = false;              // a word that is a token stays whole
  bool add_bos = false;                    // where tokenizer.ggml.add_bos_token is absent
  bool raw = false;  // tokens are spelled in UTF-8, with U+2581 for spaces, not in the byte alphabet
};

// kModel for a name that is not known.
absl::StatusOr<const GgufPreTokenizer*> FindGgufPreTokenizer(std::string_view name);

}  // namespace penstock
