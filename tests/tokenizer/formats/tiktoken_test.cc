// Proves that rank files are read and merged by rank, that a file gets the right pattern and special tokens, and that
// bad files are refused by name.
#include "penstock/tokenizer/formats/tiktoken.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "penstock/base/status.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/small_ranks.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_tokenizers::RankLine;
using testing_tokenizers::SmallRanks;

std::vector<TokenId> Encode(const absl::StatusOr<std::unique_ptr<Tokenizer>>& tokenizer, std::string_view text,
                            Origin origin = Origin::kMessage) {
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? (*tokenizer)->Encode(text, origin, AddSpecial::kNo) : std::vector<TokenId>{-1};
}

TEST(TiktokenTest, TheLowestRankMergesFirst) {
  // "bc" has a lower rank than "ab", so only "a" and "bc" make "abc".
  const std::string ranks = SmallRanks({"bc", "ab", "abc", "cd", "abcd"});
  const auto tokenizer = Tokenizer::FromTiktoken(ranks, "cl100k_base.tiktoken", "");
  EXPECT_THAT(Encode(tokenizer, "abc"), ElementsAre(258));
  EXPECT_THAT(Encode(tokenizer, "abd"), ElementsAre(257, 'd'));
  EXPECT_THAT(Encode(tokenizer, "abcd"), ElementsAre(260));        // a token in full
  EXPECT_THAT(Encode(tokenizer, "xabcd"), ElementsAre('x', 260));  // a + bc, then abc + d
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{260, 'x', 0xC3, 0xA9}, SkipSpecial::kNo), "abcdx\u00e9");
  EXPECT_EQ((*tokenizer)->vocab_size(), 261);
}

TEST(TiktokenTest, AWholeWordIsNotTakenApart) {
  // Merging would turn "xyz" into "xy" and "z", because no two tokens make it.
  const auto tokenizer = Tokenizer::FromTiktoken(SmallRanks({"xy", "xyz0", "wxyz"}), "o200k_base.tiktoken", "");
  EXPECT_THAT(Encode(tokenizer, "wxyz"), ElementsAre(258));
  EXPECT_THAT(Encode(tokenizer, "wwxyz"), ElementsAre('w', 'w', 256, 'z'));
}

TEST(TiktokenTest, ThePatternDependsOnTheFormat) {
  // A token of digits shows how many digits a word may have; a token of Han and kana shows where words end.
  const std::string ranks =
      SmallRanks({"12", "1\xE4", "\xE4\xB8", "\xE4\xB8\xAD", "\xE3\x81", "\xE3\x81\x82", "\xE4\xB8\xAD\xE3\x81\x82"});
  const std::string text = "12\u4e2d\u3042";
  EXPECT_THAT(Encode(Tokenizer::FromTiktoken(ranks, "cl100k_base.tiktoken", ""), text), ElementsAre(256, 262));
  EXPECT_THAT(Encode(Tokenizer::FromTiktoken(ranks, "hy.tiktoken", ""), text), ElementsAre('1', '2', 262));
  EXPECT_THAT(Encode(Tokenizer::FromTiktoken(ranks, "tiktoken.model", ""), text), ElementsAre(256, 259, 261));
  EXPECT_THAT(Encode(Tokenizer::FromTiktoken(ranks, "x.tiktoken", R"({"tokenizer_class": "TikTokenTokenizer"})"), text),
              ElementsAre(256, 259, 261));
}

TEST(TiktokenTest, TheNumberOfRanksDecidesWhereNamesDoNot) {
  for (const auto& [num_ranks, name] : std::vector<std::pair<size_t, std::string>>{{100256, "cl100k_base"},
                                                                                   {199998, "o200k_base"},
                                                                                   {50256, "r50k_base"},
                                                                                   {128000, "Llama-3"},
                                                                                   {163584, "Kimi"}}) {
    const auto format = FindTiktokenFormat("x.tiktoken", "PreTrainedTokenizerFast", num_ranks);
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_EQ(format->name, name);
  }
  EXPECT_EQ(FindTiktokenFormat("cl100k_base.tiktoken", "TikTokenTokenizer", 163584)->name, "cl100k_base");
  EXPECT_EQ(FindTiktokenFormat("tiktoken.model", "", 100256)->name, "cl100k_base");
  const auto unknown = FindTiktokenFormat("x.tiktoken", "OtherTokenizer", 77);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(FaultOf(unknown.status()), Fault::kModel);
  EXPECT_THAT(Message(unknown.status()), HasSubstr("tokenizer_class 'OtherTokenizer' nor the number of ranks (77)"));
}

TEST(TiktokenTest, SpecialTokensComeFromTheConfig) {
  const std::string config = R"({"bos_token": "<s>", "add_bos_token": true,
      "added_tokens_decoder": {"300": {"content": "<s>", "special": true}, "301": {"content": "<w>"}}})";
  const auto tokenizer = Tokenizer::FromTiktoken(SmallRanks({}), "cl100k_base.tiktoken", config);
  EXPECT_THAT(Encode(tokenizer, "<s><w>", Origin::kTemplate), ElementsAre(300, 301));
  EXPECT_THAT(Encode(tokenizer, "<s>"), ElementsAre('<', 's', '>'));
  EXPECT_THAT((*tokenizer)->Encode("a", Origin::kMessage, AddSpecial::kYes), ElementsAre(300, 'a'));
  EXPECT_EQ((*tokenizer)->bos_id(), 300);
}

TEST(TiktokenTest, KimiReservesTokens) {
  const std::string config = R"({"added_tokens_decoder": {"256": {"content": "[BOS]", "special": true}}})";
  const auto tokenizer = Tokenizer::FromTiktoken(SmallRanks({}), "tiktoken.model", config);
  EXPECT_THAT(Encode(tokenizer, "[BOS]<|reserved_token_257|>", Origin::kTemplate), ElementsAre(256, 257));
  EXPECT_EQ((*tokenizer)->vocab_size(), 256 + 258);
}

TEST(TiktokenTest, BadFilesAreRefusedByName) {
  const std::string good = SmallRanks({"ab"});
  for (const auto& [ranks, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "there are no tokens"},
           {good + "YQ==\n", "line 258: expected a token in base64, a space and its rank"},
           {good + "YWJj x\n", "line 258: expected"},
           {good + "!!! 300\n", "line 258: expected"},
           {good + " 300\n", "line 258: expected"},
           {good + "YWJj 300 7\n", "line 258: expected"},
           {good + "YWJj -1\n", "found -1"},
           {good + "YWJj 99999999\n", "found 99999999"},
           {good + "YWJj 99999999999999999999\n", "line 258: expected"},
           {good + "YWJj 256\n", "have the same id 256"},
           {good + RankLine("ab", 300), "has two ids"},
           {good + RankLine(std::string(2000, 'x'), 300), "a token of 2000 bytes"},
           {RankLine("a", 0), "there is no token for byte 0x00"}}) {
    const auto tokenizer = Tokenizer::FromTiktoken(ranks, "cl100k_base.tiktoken", "");
    ASSERT_FALSE(tokenizer.ok()) << message;
    EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
    EXPECT_THAT(Message(tokenizer.status()), HasSubstr("cl100k_base.tiktoken"));
    EXPECT_THAT(Message(tokenizer.status()), HasSubstr(message));
  }
}

TEST(TiktokenTest, LinesMayEndWithCarriageReturns) {
  std::string ranks;
  for (const char c : SmallRanks({"ab"})) ranks += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_THAT(Encode(Tokenizer::FromTiktoken(ranks, "cl100k_base.tiktoken", ""), "ab"), ElementsAre(256));
}

TEST(TiktokenTest, FoldersAreSearchedForRanks) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("penstock_tiktoken_test_{}", getpid());
  std::filesystem::create_directories(path);
  const auto write = [&](const char* name, const std::string& bytes) {
    std::ofstream(path / name, std::ios::binary) << bytes;
  };
  const auto load = [&] { return Tokenizer::Load(*ModelFolder::Open(path.string())); };
  write("cl100k_base.tiktoken", SmallRanks({"ab"}));
  EXPECT_THAT(Encode(load(), "ab"), ElementsAre(256));
  write("o200k_base.tiktoken", SmallRanks({"ab"}));
  EXPECT_THAT(Message(load().status()), HasSubstr("two rank files, cl100k_base.tiktoken and o200k_base.tiktoken"));
  write("tiktoken.model", SmallRanks({"cd"}));
  EXPECT_THAT(Encode(load(), "cd"), ElementsAre(256));
  write("tokenizer.model", SmallRanks({"ef"}));  // the name that Llama-3 and GLM-4 give it
  EXPECT_THAT(Message(load().status()), HasSubstr("tokenizer.model: cannot tell which pattern"));
  write("tokenizer_config.json", R"({"tokenizer_class": "ChatGLM4Tokenizer"})");
  EXPECT_THAT(Encode(load(), "ef"), ElementsAre(256));
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace penstock
