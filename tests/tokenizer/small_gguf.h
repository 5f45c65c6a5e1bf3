// Tiny GGUF vocabularies.
#pragma once

#include <string>

#include <fmt/format.h>

#include "penstock/tokenizer/formats/gguf_tokenizer.h"
#include "penstock/tokenizer/normalizer.h"

namespace penstock::testing_tokenizers {

// All 256 bytes (ids 0 to 255), ab (256), abc (257), 12 (258), <s> (259, control), <u> (260, user-defined).
inline GgufVocabulary SmallByteLevel() {
  GgufVocabulary file;
  file.model = "gpt2";
  file.pre = "gpt-2";
  for (const std::string& byte : ByteAlphabet()) file.tokens.push_back(byte);
  for (const char* token : {"ab", "abc", "12", "<s>", "<u>"}) file.tokens.emplace_back(token);
  file.token_types.assign(file.tokens.size(), 1);
  file.token_types[259] = 3;
  file.token_types[260] = 4;
  file.merges = {"a b", "ab c", "1 2"};
  file.bos_id = 259;
  return file;
}

// <unk> <s> </s>, the 256 byte tokens (3 to 258), U+2581 (259), a (260), b (261), U+2581 a (262), ab (263),
// <u> (264, user-defined).
inline GgufVocabulary SmallScored() {
  GgufVocabulary file;
  file.model = "llama";
  file.tokens = {"<unk>", "<s>", "</s>"};
  file.token_types = {2, 3, 3};
  file.scores = {0, 0, 0};
  const auto add = [&file](std::string token, float score, int type) {
    file.tokens.push_back(std::move(token));
    file.scores.push_back(score);
    file.token_types.push_back(type);
  };
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 0, 6);
  add("\u2581", -10, 1);
  add("a", -11, 1);
  add("b", -12, 1);
  add("\u2581"
      "a",
      -1, 1);
  add("ab", -2, 1);
  add("<u>", 0, 4);
  return file;
}

// <pad> </s> <unk>, U+2581 (3), a (4), U+2581 a (5), <u> (6, user-defined).
inline GgufVocabulary SmallUnigram() {
  GgufVocabulary file;
  file.model = "t5";
  file.tokens = {"<pad>",
                 "</s>",
                 "<unk>",
                 "\u2581",
                 "a",
                 "\u2581"
                 "a",
                 "<u>"};
  file.token_types = {3, 3, 2, 1, 1, 1, 4};
  file.scores = {0, 0, 0, -2, -2.5F, -3, 0};
  file.add_space_prefix = true;
  file.remove_extra_whitespaces = true;
  return file;
}

}  // namespace penstock::testing_tokenizers
