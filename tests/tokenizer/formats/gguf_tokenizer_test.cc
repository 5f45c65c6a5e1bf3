// Proves how the keys tokenizer.ggml.* of GGUF files affect ids, and that bad values are refused by name.
#include "penstock/tokenizer/formats/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "penstock/base/status.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/small_charsmap.h"
#include "tests/tokenizer/small_gguf.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_tokenizers::SmallByteLevel;
using testing_tokenizers::SmallCharsmap;
using testing_tokenizers::SmallScored;
using testing_tokenizers::SmallUnigram;

std::unique_ptr<Tokenizer> Make(const GgufVocabulary& file) {
  auto tokenizer = Tokenizer::FromGguf(file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::vector<TokenId> Encode(const GgufVocabulary& file, std::string_view text, Origin origin = Origin::kMessage,
                            AddSpecial add_special = AddSpecial::kNo) {
  const auto tokenizer = Make(file);
  return tokenizer == nullptr ? std::vector<TokenId>{-1} : tokenizer->Encode(text, origin, add_special);
}

TEST(GgufByteLevelTest, MergesAndTypes) {
  EXPECT_THAT(Encode(SmallByteLevel(), "abc12\n"), ElementsAre(257, 258, '\n'));
  EXPECT_THAT(Encode(SmallByteLevel(), "<u><s>", Origin::kTemplate), ElementsAre(260, 259));
  EXPECT_THAT(Encode(SmallByteLevel(), "<u><s>"), ElementsAre(260, testing::_, testing::_, testing::_));
  EXPECT_EQ(Make(SmallByteLevel())->Decode(std::vector<TokenId>{257, 258}, SkipSpecial::kNo), "abc12");
}

TEST(GgufByteLevelTest, TheNameOfThePreTokenizerSplits) {
  GgufVocabulary file = SmallByteLevel();
  for (const auto& [pre, num_ids] : std::vector<std::pair<std::string, size_t>>{{"", 1},
                                                                                {"gpt-2", 1},
                                                                                {"llama-bpe", 1},
                                                                                {"deepseek-llm", 1},
                                                                                {"falcon", 1},
                                                                                {"qwen2", 2},
                                                                                {"starcoder", 2},
                                                                                {"deepseek-coder", 2},
                                                                                {"tekken", 2},
                                                                                {"kimi-k2", 1},
                                                                                {"deepseek-v3", 1}}) {
    file.pre = pre;
    EXPECT_EQ(Encode(file, "12").size(), num_ids) << pre;
  }
  file.pre = "nobody-knows";
  EXPECT_THAT(Message(Tokenizer::FromGguf(file).status()), HasSubstr("tokenizer.ggml.pre: 'nobody-knows'"));
}

TEST(GgufByteLevelTest, AllNamesCompileAndCoverEveryText) {
  for (const char* pre :
       {"default",     "llama-bpe",     "llama3",     "dbrx",       "smaug-bpe",    "glm4",
        "glm5",        "chatglm-bpe",   "minicpm5",   "jais-2",     "mpt",          "olmo",
        "starcoder",   "refact",        "command-r",  "falcon",     "qwen2",        "deepseek-r1-qwen",
        "hunyuan",     "qwen35",        "ufakzeka",   "laguna",     "deepseek-llm", "deepseek-coder",
        "deepseek-v3", "hunyuan-dense", "spark2_5",   "youtu",      "bloom",        "viking",
        "tekken",      "chameleon",     "gpt-4o",     "llama4",     "minimax-m2",   "granite-embed-multi-97m",
        "tiny_aya",    "superbpe",      "bailingmoe", "seed-coder", "kimi-k2",      "afmoe",
        "exaone-moe"}) {
    GgufVocabulary file = SmallByteLevel();
    file.pre = pre;
    const std::string text = "Don't  12345 caf\u00e9 \u4e2d\u6587\u3042\ud55c \r\n\n x!? \U0001F44D\u0301";
    const auto tokenizer = Make(file);
    ASSERT_NE(tokenizer, nullptr) << pre;
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, Origin::kMessage, AddSpecial::kNo), SkipSpecial::kNo), text)
        << pre;
  }
}

TEST(GgufByteLevelTest, BosFollowsTheNameUnlessAKeySays) {
  GgufVocabulary file = SmallByteLevel();
  const auto first = [&] { return Encode(file, "ab", Origin::kMessage, AddSpecial::kYes).front(); };
  EXPECT_EQ(first(), 256);
  file.add_bos = true;
  EXPECT_EQ(first(), 259);
  file.add_bos.reset();
  file.pre = "llama-bpe";
  EXPECT_EQ(first(), 259);
  file.add_bos = false;
  EXPECT_EQ(first(), 256);
  file.add_bos = true;
  file.bos_id = -1;
  EXPECT_THAT(Message(Tokenizer::FromGguf(file).status()), HasSubstr("tokenizer.ggml.bos_token_id is missing"));
}

TEST(GgufByteLevelTest, IgnoredMergesKeepWordsWhole) {
  GgufVocabulary file = SmallByteLevel();
  file.merges = {"1 2", "a b"};
  EXPECT_THAT(Encode(file, "abc"), ElementsAre(256, testing::_));
  file.pre = "llama-bpe";
  EXPECT_THAT(Encode(file, "abc"), ElementsAre(257));
}

TEST(GgufByteLevelTest, TheFirstOfEqualMergesCounts) {
  GgufVocabulary file = SmallByteLevel();
  file.tokens.emplace_back("bc");
  file.token_types.push_back(1);
  file.merges = {"a b", "b c", "a b"};  // the second "a b" would rank behind "b c"
  EXPECT_THAT(Encode(file, "abc"), ElementsAre(256, testing::_));
}

TEST(GgufByteLevelTest, ControlTextsAreControlTokensWhateverTheirType) {
  GgufVocabulary file = SmallByteLevel();
  file.tokens.emplace_back("<|im_end|>");
  file.token_types.push_back(1);
  EXPECT_THAT(Encode(file, "<|im_end|>", Origin::kTemplate), ElementsAre(261));
  EXPECT_GT(Encode(file, "<|im_end|>").size(), 5u);
}

// Gemma 4: merges of UTF-8, no prefix, bytes of what is no token; runs of line breaks merge among themselves.
TEST(GgufByteLevelTest, Gemma4HasTokensInUtf8) {
  GgufVocabulary file = SmallScored();
  file.model = "gemma4";
  for (const char* token : {"\n", "\n\n", "<|tool_call>"}) file.tokens.emplace_back(token);
  file.scores.clear();
  file.token_types.resize(file.tokens.size(), 1);
  file.token_types.back() = 4;
  file.merges = {"\u2581 a", "a b", "\n \n"};
  file.bos_id = 1;
  EXPECT_THAT(Encode(file, "ab"), ElementsAre(263));
  EXPECT_THAT(Encode(file, " ab"), ElementsAre(262, 261));  // the first merge comes first
  EXPECT_THAT(Encode(file, "a\n\n\nab"), ElementsAre(260, 266, 265, 263));
  EXPECT_THAT(Encode(file, "a\u00e9"), ElementsAre(260, 3 + 0xC3, 3 + 0xA9));
  EXPECT_THAT(Encode(file, "<|tool_call>", Origin::kTemplate), ElementsAre(267));
  EXPECT_GT(Encode(file, "<|tool_call>").size(), 5u);
  const std::vector<TokenId> ids = Encode(file, "a ab\n", Origin::kMessage, AddSpecial::kYes);
  EXPECT_THAT(ids, ElementsAre(1, 260, 262, 261, 265));
  EXPECT_EQ(Make(file)->Decode(ids, SkipSpecial::kYes), "a ab\n");
  file.add_bos = false;
  EXPECT_EQ(Encode(file, "a", Origin::kMessage, AddSpecial::kYes).front(), 1);
}

TEST(GgufScoredTest, BestScoresMergeFirstAndBytesFillIn) {
  EXPECT_THAT(Encode(SmallScored(), "ab"), ElementsAre(262, 261));  // the piece "U+2581 a" beats ab
  EXPECT_THAT(Encode(SmallScored(), "b\n"), ElementsAre(259, 261, 3 + '\n'));
  EXPECT_THAT(Encode(SmallScored(), "a<u>a"), ElementsAre(262, 264, 262));  // each stretch of text gets a prefix
  EXPECT_THAT(Encode(SmallScored(), " a"), ElementsAre(259, 262));
  EXPECT_THAT(Encode(SmallScored(), ""), ElementsAre());
  EXPECT_THAT(Encode(SmallScored(), "a", Origin::kMessage, AddSpecial::kYes), ElementsAre(1, 262));
  GgufVocabulary file = SmallScored();
  file.add_space_prefix = false;
  EXPECT_THAT(Encode(file, "ab"), ElementsAre(263));
  file.add_bos = false;
  file.add_eos = true;
  EXPECT_THAT(Encode(file, "ab", Origin::kMessage, AddSpecial::kYes), ElementsAre(263, 2));
  EXPECT_EQ(Make(SmallScored())->Decode(std::vector<TokenId>{262, 3 + '\n', 262}, SkipSpecial::kNo), "a\n a");
}

TEST(GgufScoredTest, TokensWithoutTextGetAName) {
  GgufVocabulary file = SmallScored();
  file.tokens.emplace_back("");
  file.scores.push_back(0);
  file.token_types.push_back(1);
  EXPECT_EQ(Make(file)->TokenText(265), "[EMPTY_265]");
}

TEST(GgufUnigramTest, NormalizesAndEnds) {
  EXPECT_THAT(Encode(SmallUnigram(), " a  ax", Origin::kMessage, AddSpecial::kYes), ElementsAre(5, 5, 2, 1));
  EXPECT_THAT(Encode(SmallUnigram(), "a<u>"), ElementsAre(5, 6));
  GgufVocabulary file = SmallUnigram();
  file.precompiled_charsmap = SmallCharsmap();
  EXPECT_THAT(Encode(file, "A"), ElementsAre(5));
  file.add_space_prefix = false;
  file.remove_extra_whitespaces = false;
  EXPECT_THAT(Encode(file, "A A"), ElementsAre(4, 5));
}

struct GgufCase {
  std::string name;
  std::function<void(GgufVocabulary&)> spoil;
  std::string message;
};

void PrintTo(const GgufCase& bad, std::ostream* out) { *out << bad.name; }

class BadGgufTest : public testing::TestWithParam<GgufCase> {};

TEST_P(BadGgufTest, IsRefusedByName) {
  for (GgufVocabulary file : {SmallByteLevel(), SmallScored(), SmallUnigram()}) {
    const std::string model = file.model;
    GetParam().spoil(file);
    const auto tokenizer = Tokenizer::FromGguf(file);
    ASSERT_FALSE(tokenizer.ok()) << model;
    EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
    EXPECT_THAT(Message(tokenizer.status()), HasSubstr(GetParam().message)) << model;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadGgufTest,
    testing::Values(
        GgufCase{"model", [](auto& f) { f.model = "bert"; }, "tokenizer.ggml.model: 'bert' is not implemented"},
        GgufCase{"no_tokens", [](auto& f) { f.tokens.clear(); }, "tokenizer.ggml.tokens: there are no tokens"},
        GgufCase{"duplicate", [](auto& f) { f.tokens[0] = f.tokens[1]; }, "has two ids, 0 and 1"},
        GgufCase{"no_utf8", [](auto& f) { f.tokens[3] = "\xFF"; }, "tokenizer.ggml.tokens: entry 3"},
        GgufCase{"few_types", [](auto& f) { f.token_types.pop_back(); }, "tokenizer.ggml.token_type: "},
        GgufCase{"type_high", [](auto& f) { f.token_types[2] = 7; },
                 "tokenizer.ggml.token_type: entry 2: expected 0 to 6"},
        GgufCase{"type_low", [](auto& f) { f.token_types[2] = -1; }, "found -1"},
        GgufCase{"few_scores",
                 [](auto& f) {
                   f.scores = {1, 2};
                 },
                 "tokenizer.ggml.scores: 2 entries for"},
        GgufCase{"score_nan",
                 [](auto& f) {
                   f.scores.assign(f.tokens.size(), 0);
                   f.scores[1] = std::numeric_limits<float>::quiet_NaN();
                 },
                 "tokenizer.ggml.scores: entry 1 is nan"},
        GgufCase{"bos_high", [](auto& f) { f.bos_id = 5000; }, "tokenizer.ggml.bos_token_id: expected an id"},
        GgufCase{"eos_low", [](auto& f) { f.eos_id = -2; }, "tokenizer.ggml.eos_token_id: expected an id"},
        GgufCase{"unk_high", [](auto& f) { f.unk_id = 5000; }, "tokenizer.ggml.unknown_token_id: expected an id"},
        GgufCase{"pad_high", [](auto& f) { f.pad_id = int64_t{1} << 40; }, "tokenizer.ggml.padding_token_id: expected"},
        GgufCase{"control_long",
                 [](auto& f) {
                   f.tokens[1] = std::string(600, 'x');
                   f.token_types[1] = 3;
                 },
                 "entry 1: a control or user-defined token of 600 bytes"}),
    [](const auto& one) { return one.param.name; });

TEST(GgufGemmaTest, MergesRawTextWithoutASpaceInFront) {
  GgufVocabulary file = SmallScored();
  file.model = "gemma4";
  file.merges = {"\xE2\x96\x81 a", "a b"};
  file.bos_id = 1;
  const TokenId newline = 3 + '\n';
  EXPECT_THAT(Encode(file, "ab a\n", Origin::kMessage, AddSpecial::kYes), ElementsAre(1, 263, 262, newline));
  EXPECT_EQ(Make(file)->Decode(std::vector<TokenId>{263, 262, newline}, SkipSpecial::kNo), "ab a\n");
}

TEST(BadGgufMergesTest, AreRefusedByName) {
  for (const auto& [merge, message] :
       std::vector<std::pair<std::string, std::string>>{{"", "tokenizer.ggml.merges: entry 0: expected two tokens"},
                                                        {"ab", "entry 0: expected two tokens"},
                                                        {"a ", "entry 0: expected two tokens"},
                                                        {"a zz", "entry 0: 'zz' is not in the vocabulary"},
                                                        {"b c", "entry 0: 'bc' is not in the vocabulary"}}) {
    GgufVocabulary file = SmallByteLevel();
    file.merges[0] = merge;
    const auto tokenizer = Tokenizer::FromGguf(file);
    ASSERT_FALSE(tokenizer.ok()) << merge;
    EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
    EXPECT_THAT(Message(tokenizer.status()), HasSubstr(message));
  }
  GgufVocabulary file = SmallByteLevel();
  file.merges.clear();
  EXPECT_THAT(Message(Tokenizer::FromGguf(file).status()), HasSubstr("tokenizer.ggml.merges: there are no merges"));
}

TEST(BadGgufBytesTest, AreRefusedByName) {
  GgufVocabulary file = SmallScored();
  file.tokens[3] = "<0x0>";
  EXPECT_THAT(Message(Tokenizer::FromGguf(file).status()), HasSubstr("'<0x0>': expected <0x00> to <0xFF>"));
  file.tokens[3] = "<0xZZ>";
  EXPECT_THAT(Message(Tokenizer::FromGguf(file).status()), HasSubstr("'<0xZZ>'"));
}

TEST(BadGgufCharsmapTest, IsRefusedByName) {
  GgufVocabulary file = SmallUnigram();
  file.precompiled_charsmap = "abc";
  EXPECT_THAT(Message(Tokenizer::FromGguf(file).status()), HasSubstr("tokenizer.ggml.precompiled_charsmap"));
  file.precompiled_charsmap.clear();
  file.scores.clear();
  EXPECT_THAT(Message(Tokenizer::FromGguf(file).status()), HasSubstr("tokenizer.ggml.scores is missing"));
}

}  // namespace
}  // namespace penstock
