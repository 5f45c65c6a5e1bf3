// Tiny tokenizers for tests.
#pragma once

#include <string>

#include <fmt/format.h>

#include "penstock/base/json.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/normalizer.h"

namespace penstock::testing_tokenizers {

// Byte-level: all 256 bytes (ids 0 to 255), "ab" (256), "abc" (257), and added tokens <s> (258, special),
// <w> (259, an ordinary word), [R] (260, special, rstrip) and [W] (261, ordinary, single_word).
inline json::object ByteLevel() {
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[ByteAlphabet()[byte]] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  const auto added = [](int id, std::string_view content, bool special, std::string_view flag) {
    json::object token{{"id", id},
                       {"content", json::string_view(content.data(), content.size())},
                       {"special", special},
                       {"normalized", false}};
    if (!flag.empty()) token[json::string_view(flag.data(), flag.size())] = true;
    return token;
  };
  return {{"version", "1.0"},
          {"added_tokens", json::array{added(258, "<s>", true, ""), added(259, "<w>", false, ""),
                                       added(260, "[R]", true, "rstrip"), added(261, "[W]", false, "single_word")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", json::array{json::object{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                   json::object{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", json::array{258}}, {"tokens", json::array{"<s>"}}}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{"a b", "ab c"}}}}};
}

// SentencePiece-like: <unk> <s> </s>, the 256 byte tokens (3 to 258), then U+2581, a, b, and U+2581 + a.
inline json::object SpaceMark() {
  json::object vocab{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  vocab["\u2581"] = 259;
  vocab["a"] = 260;
  vocab["b"] = 261;
  vocab
      ["\u2581"
       "a"] = 262;
  const auto special = [](int id, const char* content) {
    return json::object{{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  };
  return {{"added_tokens", json::array{special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             json::array{json::object{{"type", "Prepend"}, {"prepend", "\u2581"}},
                         json::object{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             json::array{json::object{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                         json::object{{"type", "ByteFallback"}}, json::object{{"type", "Fuse"}},
                         json::object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", json::array(1, json::array{"\u2581", "a"})}}}};
}

}  // namespace penstock::testing_tokenizers
