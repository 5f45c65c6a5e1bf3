// Proves what a tokenizer promises besides the ids of published ones. Messages cannot spell special tokens, and added
// tokens obey their flags. Every text comes back from its ids, and streams give out whole characters.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "penstock/base/text.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/small_tokenizers.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing_tokenizers::ByteLevel;
using testing_tokenizers::SpaceMark;

std::unique_ptr<Tokenizer> Make(const json::object& file, const json::object& config = {}) {
  auto tokenizer = Tokenizer::FromTokenizerJson(json::serialize(file), config.empty() ? "" : json::serialize(config));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::vector<TokenId> Bytes(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  return ids;
}

TEST(TokenizerTest, MergesAndAddsSpecialTokens) {
  const auto tokenizer = Make(ByteLevel());
  EXPECT_THAT(tokenizer->Encode("abc", Origin::kMessage, AddSpecial::kYes), ElementsAre(258, 257));
  EXPECT_THAT(tokenizer->Encode("abab", Origin::kMessage, AddSpecial::kNo), ElementsAre(256, 256));
  EXPECT_THAT(tokenizer->Encode("", Origin::kMessage, AddSpecial::kYes), ElementsAre(258));
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->TokenText(257), "abc");
  EXPECT_EQ(tokenizer->TokenText(-1), "");
  EXPECT_EQ(tokenizer->TokenText(100000), "");
  EXPECT_EQ(tokenizer->FindToken("<s>"), 258);
  EXPECT_EQ(tokenizer->FindToken("none"), -1);
  EXPECT_TRUE(tokenizer->IsSpecial(258));
  EXPECT_FALSE(tokenizer->IsSpecial(259));
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{258, 257, -1, 999999}, SkipSpecial::kYes), "abc");
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{258, 257}, SkipSpecial::kNo), "<s>abc");
  EXPECT_GT(tokenizer->memory_bytes(), 262u * 8);
}

TEST(OriginTest, MessagesCannotSpellSpecialTokens) {
  const auto tokenizer = Make(ByteLevel());
  EXPECT_THAT(tokenizer->Encode("<s>", Origin::kTemplate, AddSpecial::kNo), ElementsAre(258));
  EXPECT_EQ(tokenizer->Encode("<s>", Origin::kMessage, AddSpecial::kNo), Bytes("<s>"));
  // An added word that is not special is one token anywhere.
  EXPECT_THAT(tokenizer->Encode("<w>", Origin::kMessage, AddSpecial::kNo), ElementsAre(259));
}

TEST(OriginTest, MessagesCannotSpellWhatTheTemplateWrites) {
  json::object file = ByteLevel();
  json::array& added = file["added_tokens"].as_array();
  const auto add = [&](int id, std::string_view content) {
    added.push_back(json::object{{"id", id},
                                 {"content", json::string_view(content.data(), content.size())},
                                 {"special", false},
                                 {"normalized", false}});
  };
  add(262, "<think>");
  add(263, "<|tool|>");
  add(264, "    ");
  add(265, "<th");
  const auto tokenizer = Make(file);
  const std::string text = "<think><|tool|><w>    ";
  EXPECT_THAT(tokenizer->Encode(text, Origin::kMessage, AddSpecial::kNo), ElementsAre(262, 263, 259, 264));
  tokenizer->GuardTemplate(std::string_view("<|im_start|>\0    <think>\n\0", 24));
  EXPECT_THAT(tokenizer->Encode(text, Origin::kTemplate, AddSpecial::kNo), ElementsAre(262, 263, 259, 264));
  // The template writes "<th", too, as a part of "<think>".
  std::vector<TokenId> ids = Bytes("<think><|tool|>");
  ids.insert(ids.end(), {259, 264});
  EXPECT_EQ(tokenizer->Encode(text, Origin::kMessage, AddSpecial::kNo), ids);
  EXPECT_FALSE(tokenizer->IsSpecial(262));  // so an answer shows it
}

TEST(OriginTest, NamedTokensAreSpecialWhateverTheirFilesSay) {
  json::object file = ByteLevel();
  file["added_tokens"].as_array().push_back(
      json::object{{"id", 262}, {"content", "</e>"}, {"special", false}, {"normalized", false}});
  const auto tokenizer = Tokenizer::FromTokenizerJson(json::serialize(file), R"({"eos_token": "</e>"})").value();
  EXPECT_TRUE(tokenizer->IsSpecial(262));
  EXPECT_THAT(tokenizer->Encode("</e>", Origin::kTemplate, AddSpecial::kNo), ElementsAre(262));
  EXPECT_EQ(tokenizer->Encode("</e>", Origin::kMessage, AddSpecial::kNo), Bytes("</e>"));
}

// These tokens almost occur everywhere in a template; searching for one at a time took minutes.
TEST(OriginTest, ManyTokensInALongTemplateAreFoundAtOnce) {
  json::object file = ByteLevel();
  json::array& added = file["added_tokens"].as_array();
  constexpr int kNumTokens = 4000;
  for (int i = 0; i < kNumTokens; ++i) {
    added.push_back(
        json::object{{"id", 300 + i},
                     {"content", std::string(490 - static_cast<size_t>(i % 10), 'a') + std::to_string(i) + "|"},
                     {"special", false},
                     {"normalized", false}});
  }
  const auto tokenizer = Make(file);
  const std::string last(added.back().at("content").get_string());
  EXPECT_EQ(tokenizer->Encode(last, Origin::kMessage, AddSpecial::kNo).size(), 1u);
  tokenizer->GuardTemplate(std::string(1 << 20, 'a') + last);
  EXPECT_GT(tokenizer->Encode(last, Origin::kMessage, AddSpecial::kNo).size(), 1u);
  const std::string other(added[added.size() - 2].at("content").get_string());
  EXPECT_EQ(tokenizer->Encode(other, Origin::kMessage, AddSpecial::kNo).size(), 1u);
}

TEST(OriginTest, MergesCannotMakeWhatTheTemplateWrites) {
  json::object file = ByteLevel();
  file["pre_tokenizer"].as_object()["use_regex"] = false;
  file["model"].as_object()["vocab"].as_object()["<w>"] = 259;
  file["model"].as_object()["vocab"].as_object()["<w"] = 262;
  file["model"].as_object()["merges"].as_array().emplace_back("< w");
  file["model"].as_object()["merges"].as_array().emplace_back("<w >");
  const auto tokenizer = Make(file);
  tokenizer->GuardTemplate("<w>");
  EXPECT_THAT(tokenizer->Encode("<w>", Origin::kTemplate, AddSpecial::kNo), ElementsAre(259));
  EXPECT_THAT(tokenizer->Encode("<w>", Origin::kMessage, AddSpecial::kNo), ElementsAre(262, '>'));
}

TEST(OriginTest, MatchesMustNotStraddle) {
  const auto tokenizer = Make(ByteLevel());
  const std::vector<TextSegment> straddling = {{"<", Origin::kTemplate}, {"s>", Origin::kMessage}};
  EXPECT_EQ(tokenizer->Encode(straddling, AddSpecial::kNo), Bytes("<s>"));
  const std::vector<TextSegment> whole = {
      {"x<", Origin::kTemplate}, {"s>", Origin::kTemplate}, {"<s>", Origin::kMessage}};
  EXPECT_THAT(tokenizer->Encode(whole, AddSpecial::kNo), ElementsAre('x', 258, '<', 's', '>'));
  const std::vector<TextSegment> word = {{"a", Origin::kTemplate}, {"bc", Origin::kMessage}};
  EXPECT_THAT(tokenizer->Encode(word, AddSpecial::kNo), ElementsAre(257));
}

TEST(OriginTest, HoldsBehindNormalizers) {
  json::object file = SpaceMark();
  for (json::value& token : file["added_tokens"].as_array()) token.as_object()["normalized"] = true;
  const auto tokenizer = Make(file);
  // Normalised special tokens match with the prefix that the normalizer puts in front, even if a message wrote the
  // space there.
  EXPECT_THAT(tokenizer->Encode("<s>", Origin::kTemplate, AddSpecial::kNo), ElementsAre(1));
  EXPECT_THAT(tokenizer->Encode("<s>", Origin::kMessage, AddSpecial::kNo), testing::Not(testing::Contains(1)));
  const std::vector<TextSegment> turn = {{"a ", Origin::kMessage}, {"</s>", Origin::kTemplate}};
  EXPECT_THAT(tokenizer->Encode(turn, AddSpecial::kNo), ElementsAre(262, 2));
}

TEST(OriginTest, MergesCannotMakeSpecialTokens) {
  json::object file = ByteLevel();
  file["added_tokens"].as_array().push_back(json::object{{"id", 257}, {"content", "abc"}, {"special", true}});
  const auto tokenizer = Make(file);
  EXPECT_THAT(tokenizer->Encode("abc", Origin::kMessage, AddSpecial::kNo), ElementsAre(256, 'c'));
  EXPECT_THAT(tokenizer->Encode("abc", Origin::kTemplate, AddSpecial::kNo), ElementsAre(257));
  file["model"].as_object()["ignore_merges"] = true;
  EXPECT_THAT(Make(file)->Encode("abc", Origin::kMessage, AddSpecial::kNo), ElementsAre(256, 'c'));
}

RC_GTEST_PROP(OriginTest, NoMessageEncodesToSpecialIds, ()) {
  static const auto tokenizer = Make(ByteLevel());
  const auto parts = *rc::gen::container<std::vector<std::string>>(
      rc::gen::element<std::string>("<s>", "<", "s", ">", "[R]", "[", "R]", " ", "\xC3", "abc", "<w>"));
  std::string text;
  for (const std::string& part : parts) text += part;
  for (const TokenId id : tokenizer->Encode(text, Origin::kMessage, AddSpecial::kNo))
    RC_ASSERT(!tokenizer->IsSpecial(id));
}

TEST(AddedTokensTest, FlagsTakeWhiteSpaceAndCheckWords) {
  const auto tokenizer = Make(ByteLevel());
  EXPECT_THAT(tokenizer->Encode("[R] \n\u3000x", Origin::kTemplate, AddSpecial::kNo), ElementsAre(260, 'x'));
  EXPECT_THAT(tokenizer->Encode("[W].", Origin::kTemplate, AddSpecial::kNo), ElementsAre(261, '.'));
  EXPECT_EQ(tokenizer->Encode("x[W]", Origin::kTemplate, AddSpecial::kNo), Bytes("x[W]"));
  EXPECT_EQ(tokenizer->Encode("[W]_", Origin::kTemplate, AddSpecial::kNo), Bytes("[W]_"));
}

TEST(SpaceMarkTest, FallsBackToBytesAndStripsThePrefix) {
  const auto tokenizer = Make(SpaceMark());
  EXPECT_THAT(tokenizer->Encode("a b", Origin::kMessage, AddSpecial::kNo), ElementsAre(262, 259, 261));
  EXPECT_THAT(tokenizer->Encode("\u00e9", Origin::kMessage, AddSpecial::kNo), ElementsAre(259, 3 + 0xC3, 3 + 0xA9));
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{262, 259, 261}, SkipSpecial::kYes), "a b");
  // Only the first space of the whole text is removed, even behind a special token.
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{1, 262, 262}, SkipSpecial::kYes), "a a");
}

TEST(TokenizerTest, InvalidUtf8IsEncodedAsReplacementCharacters) {
  const auto tokenizer = Make(ByteLevel());
  EXPECT_EQ(tokenizer->Encode("x\xFF\xED\xA0\x80", Origin::kMessage, AddSpecial::kNo),
            tokenizer->Encode(ReplaceInvalidUtf8("x\xFF\xED\xA0\x80"), Origin::kMessage, AddSpecial::kNo));
}

TEST(ConfigTest, NamesSpecialTokens) {
  const auto tokenizer =
      Make(ByteLevel(), {{"bos_token", "<s>"}, {"eos_token", {{"content", "ab"}}}, {"unk_token", nullptr}});
  EXPECT_EQ(tokenizer->bos_id(), 258);
  EXPECT_EQ(tokenizer->eos_id(), 256);
  EXPECT_TRUE(tokenizer->IsSpecial(256));
  const auto llama = Make(SpaceMark(), {{"tokenizer_class", "LlamaTokenizerFast"},
                                        {"bos_token", "<s>"},
                                        {"eos_token", "</s>"},
                                        {"add_bos_token", true},
                                        {"add_eos_token", true}});
  EXPECT_THAT(llama->Encode("a", Origin::kMessage, AddSpecial::kYes), ElementsAre(1, 262, 2));
}

RC_GTEST_PROP(RoundTripTest, ByteLevelTextsComeBack, (const std::string& bytes)) {
  static const auto tokenizer = Make(ByteLevel());
  const std::string text = ReplaceInvalidUtf8(bytes);
  RC_ASSERT(tokenizer->Decode(tokenizer->Encode(text, Origin::kMessage, AddSpecial::kYes), SkipSpecial::kYes) == text);
}

RC_GTEST_PROP(RoundTripTest, SpaceMarkTextsComeBack, ()) {
  static const auto tokenizer = Make(SpaceMark());
  const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "a", "b", " ", "  ", "\n", "\u00e9", "\u4f60", "\U0001F44D", "<s>", std::string(1, '\0')));
  std::string text;
  for (const std::string& part : parts) text += part;
  RC_ASSERT(tokenizer->Decode(tokenizer->Encode(text, Origin::kMessage, AddSpecial::kNo), SkipSpecial::kNo) == text);
}

RC_GTEST_PROP(StreamDecoderTest, GivesOutWholeCharactersOfAnyIds, ()) {
  static const auto tokenizer = Make(SpaceMark());
  // Bytes that begin and continue sequences, so that many sequences are left open.
  const auto ids = *rc::gen::container<std::vector<TokenId>>(
      rc::gen::element<TokenId>(1, 259, 260, 262, 3 + 0xC3, 3 + 0xA9, 3 + 0xE2, 3 + 0x82, 3 + 0xAC, 3 + 0xF0, 3 + 0x9F,
                                3 + 0x91, 3 + 0x8D, 3 + 0xED, -5, 9999));
  StreamDecoder stream(*tokenizer);
  std::string streamed;
  for (const TokenId id : ids) {
    const std::string part = stream.Push(id);
    RC_ASSERT(IsUtf8(part));
    streamed += part;
  }
  RC_ASSERT(streamed + stream.Finish() == ReplaceInvalidUtf8(tokenizer->Decode(ids, SkipSpecial::kYes)));
}

}  // namespace
}  // namespace penstock
