// Proves that Unigram tokenizers find the best tokens, that they handle unknown characters, and that character maps
// replace as in SentencePiece and in Hugging Face's tokenizers.
#include "penstock/tokenizer/unigram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/escaping.h"
#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/tokenizer/charsmap.h"
#include "penstock/tokenizer/sentencepiece_normalizer.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/small_charsmap.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_tokenizers::SmallCharsmap;

std::vector<TokenId> Encode(const UnigramModel& model, std::string_view text) {
  UnigramModel::Scratch scratch;
  std::vector<TokenId> ids;
  model.Encode(text, scratch, ids);
  return ids;
}

// 0 <unk>, 1 a, 2 b, 3 ab, 4 abc (bad), 5 bc, 6 c
UnigramModel Small(UnigramOptions options, const std::vector<std::pair<std::string, double>>& more = {}) {
  std::vector<std::pair<std::string, double>> tokens = {{"<unk>", 0}, {"a", -2},    {"b", -2}, {"ab", -3},
                                                        {"abc", -9},  {"bc", -3.5}, {"c", -2}};
  tokens.insert(tokens.end(), more.begin(), more.end());
  Vocabulary vocabulary;
  std::vector<double> scores;
  for (const auto& [text, score] : tokens) {
    EXPECT_TRUE(vocabulary.Add(text, static_cast<int64_t>(scores.size()), "test").ok());
    scores.push_back(score);
  }
  options.unk_id = 0;
  options.unknown_score = -19;
  UnigramModel model(std::move(vocabulary), scores, options);
  model.Forbid({0});
  return model;
}

TEST(UnigramTest, TheBestSumWins) {
  const UnigramModel model = Small({});
  EXPECT_THAT(Encode(model, "abc"), ElementsAre(3, 6));  // -5 beats -5.5 and -9
  EXPECT_THAT(Encode(model, "bcab"), ElementsAre(5, 3));
  EXPECT_THAT(Encode(model, "<unk>"), ElementsAre(0));  // as text, these are unknown characters, not the token
  EXPECT_THAT(Encode(model, ""), ElementsAre());
}

TEST(UnigramTest, UnknownCharactersBecomeOneUnknown) {
  EXPECT_THAT(Encode(Small({}), "axyb\u4e2d"), ElementsAre(1, 0, 2, 0));
}

TEST(UnigramTest, UnknownCharactersBecomeBytesWhereAllAreThere) {
  UnigramOptions options;
  options.byte_fallback = true;
  const UnigramModel model = Small(options, {{"<0xC3>", 0}, {"<0xA9>", 0}});
  EXPECT_THAT(Encode(model, "a\u00e9"), ElementsAre(1, 7, 8));
  EXPECT_THAT(Encode(model, "\u00e8"), ElementsAre(0));
}

TEST(UnigramTest, ARunOfUnknownCharactersCanBeABadToken) {
  UnigramOptions options;
  EXPECT_THAT(Encode(Small(options, {{"xy", -100}}), "xy"), ElementsAre(0));
  options.look_up_unknown = true;
  EXPECT_THAT(Encode(Small(options, {{"xy", -100}}), "xy"), ElementsAre(7));
}

TEST(CharsmapTest, FindsLongestAndShortest) {
  const auto map = Charsmap::Parse(SmallCharsmap(), "test");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->Longest("Ax").to, "a");
  EXPECT_EQ(map->Longest("ABx").to, "<ab>");
  EXPECT_EQ(map->Longest("ABx").num_bytes, 2u);
  EXPECT_EQ(map->Shortest("ABx").to, "a");
  EXPECT_EQ(map->Longest("B").num_bytes, 0u);
  EXPECT_EQ(map->Longest("").num_bytes, 0u);
}

TEST(CharsmapTest, BrokenMapsAreRefusedByName) {
  const std::string good = SmallCharsmap();
  for (const auto& [bytes, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "is truncated"},
           {"abc", "is truncated"},
           {std::string("\xFF\xFF\x00\x00", 4), "says that its trie has 65535 bytes"},
           {std::string("\0\0\0\0", 4), "says that its trie has 0 bytes"},
           {good.substr(0, good.size() - 1), "does not end"},
           {good + std::string(70, 'x') + '\0', "has 70 bytes, the limit is 64"},
           {good + std::string("\xFF\0", 2), "not UTF-8"}}) {
    const auto map = Charsmap::Parse(bytes, "here");
    ASSERT_FALSE(map.ok()) << message;
    EXPECT_EQ(FaultOf(map.status()), Fault::kModel);
    EXPECT_THAT(Message(map.status()), HasSubstr("here: "));
    EXPECT_THAT(Message(map.status()), HasSubstr(message));
  }
}

TEST(CharsmapTest, ATrieThatLeadsOutsideEndsTheSearch) {
  std::string bytes = SmallCharsmap();
  for (size_t i = 4; i + 4 <= 4 + 4 * 512; i += 4) {
    std::string spoiled = bytes;
    spoiled.replace(i, 4, "\xFF\xFF\xFF\x7F");
    const auto map = Charsmap::Parse(spoiled, "test");
    ASSERT_TRUE(map.ok());
    for (const std::string_view text : {"A", "AB", "B", "\xC3\xA9"}) (void)map->Longest(text);
  }
}

std::string Normalized(const SentencePieceNormalizer& normalizer, std::string_view text) {
  TrackedText tracked(std::string(text), Origin::kMessage);
  normalizer.Apply(tracked, /*at_start=*/true);
  return std::string(tracked.text());
}

TEST(SentencePieceNormalizerTest, ReplacesCollapsesAndMarksSpaces) {
  SentencePieceNormalizer normalizer;
  normalizer.charsmap = *Charsmap::Parse(SmallCharsmap(), "test");
  EXPECT_EQ(Normalized(normalizer, "  AB  x "), "\u2581<ab>\u2581x");
  EXPECT_EQ(Normalized(normalizer, "   "), "");
  EXPECT_EQ(Normalized(normalizer, ""), "");
  normalizer.remove_extra_spaces = false;
  EXPECT_EQ(Normalized(normalizer, " A  "), "\u2581\u2581a\u2581\u2581");
  normalizer.prefix = SentencePieceNormalizer::Prefix::kNone;
  EXPECT_EQ(Normalized(normalizer, "A"), "a");
  normalizer.verbatim.Add("AB", 0);
  EXPECT_EQ(Normalized(normalizer, "ABA"), "ABa");
}

TEST(SentencePieceNormalizerTest, HuggingFaceReplacesShortGraphemesWhole) {
  const auto map = Charsmap::Parse(SmallCharsmap(), "test");
  TrackedText text("A\u0301B AAB", Origin::kMessage);
  ApplyCharsmapToGraphemes(*map, text);
  EXPECT_EQ(text.text(), "aB aaB");  // the accent vanishes with its grapheme; AB is two graphemes
}

json::object UnigramFile() {
  std::string charsmap;
  absl::Base64Escape(SmallCharsmap(), &charsmap);
  return {{"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", charsmap}}},
          {"pre_tokenizer",
           {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}, {"split", true}}},
          {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}},
          {"model",
           {{"type", "Unigram"},
            {"unk_id", 0},
            {"vocab", json::array{json::array{"<unk>", 0}, json::array{"\u2581", -2}, json::array{"a", -2.5},
                                  json::array{"\u2581"
                                              "a",
                                              -3}}}}}};
}

TEST(UnigramTest, IsReadFromTokenizerJson) {
  const auto tokenizer = Tokenizer::FromTokenizerJson(json::serialize(UnigramFile()), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->Encode("A Aa x", Origin::kMessage, AddSpecial::kNo), ElementsAre(3, 3, 2, 1, 0));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{3, 3, 2}, SkipSpecial::kNo), "a aa");
}

TEST(UnigramTest, BadFilesAreRefusedByName) {
  const auto error = [](const std::function<void(json::object&)>& spoil) {
    json::object file = UnigramFile();
    spoil(file);
    const auto tokenizer = Tokenizer::FromTokenizerJson(json::serialize(file), "");
    if (tokenizer.ok()) return std::string("OK");
    EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
    return Message(tokenizer.status());
  };
  const auto vocab = [](json::object& f) -> json::array& { return f["model"].as_object()["vocab"].as_array(); };
  EXPECT_EQ(error([](json::object&) {}), "OK");
  EXPECT_THAT(error([&](json::object& f) { vocab(f)[1] = "a"; }), HasSubstr("vocab 1: expected [token, score]"));
  EXPECT_THAT(error([&](json::object& f) { vocab(f)[1] = json::array{"a"}; }), HasSubstr("vocab 1: expected"));
  EXPECT_THAT(error([&](json::object& f) { vocab(f)[1] = json::array{"a", -1}; }), HasSubstr("has two ids"));
  EXPECT_THAT(error([&](json::object& f) { vocab(f)[1] = json::array{"", -1}; }), HasSubstr("is empty"));
  EXPECT_THAT(error([&](json::object& f) { vocab(f).clear(); }), HasSubstr("there are no tokens"));
  EXPECT_THAT(error([](json::object& f) { f["model"].as_object()["unk_id"] = 4; }), HasSubstr("unk_id: expected"));
  EXPECT_THAT(error([](json::object& f) { f["model"].as_object()["unk_id"] = -1; }), HasSubstr("found -1"));
  EXPECT_THAT(error([](json::object& f) { f["normalizer"].as_object()["precompiled_charsmap"] = "!"; }),
              HasSubstr("is not base64"));
}

}  // namespace
}  // namespace penstock
