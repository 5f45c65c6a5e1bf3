// Proves that answers in gpt-oss's format are read by their channels, whatever tokens a model writes.
#include "penstock/chat/harmony.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>

#include "penstock/base/text.h"
#include "tests/tokenizer/small_tokenizers.h"

namespace penstock {
namespace {

constexpr std::string_view kSpecial[] = {"<|start|>",  "<|end|>",  "<|message|>",  "<|channel|>",
                                         "<|return|>", "<|call|>", "<|constrain|>"};

constexpr TokenId kFirstSpecial = 258;  // behind the ids of ByteLevel()

// A tokenizer of bytes and the format's special tokens.
std::unique_ptr<Tokenizer> NewTokenizer(std::span<const std::string_view> special) {
  json::object file = testing_tokenizers::ByteLevel();
  json::array added;
  for (const std::string_view text : special) {
    added.push_back(json::object{{"id", kFirstSpecial + static_cast<TokenId>(added.size())},
                                 {"content", text},
                                 {"special", true},
                                 {"normalized", false}});
  }
  file["added_tokens"] = std::move(added);
  file["post_processor"] = nullptr;
  auto tokenizer = Tokenizer::FromTokenizerJson(json::serialize(file), "");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

class HarmonyTest : public testing::Test {
 protected:
  // Reads the text up to `stop`, where a stop text cut it off.
  ChatAnswer Read(std::string_view text, std::string_view stop = "") const {
    const std::vector<TokenId> ids = tokenizer_->Encode(text, Origin::kTemplate, AddSpecial::kNo);
    const std::string whole = tokenizer_->Decode(ids, SkipSpecial::kYes);
    HarmonyStream stream(*tokenizer_);
    return ReadAnswer(stream, ids, stop.empty() ? whole : whole.substr(0, whole.find(stop)));
  }
  std::unique_ptr<Tokenizer> tokenizer_ = NewTokenizer(kSpecial);
};

TEST_F(HarmonyTest, NeedsTheTokens) {
  EXPECT_TRUE(HarmonyTokens::Find(*tokenizer_).has_value());
  EXPECT_FALSE(HarmonyTokens::Find(*NewTokenizer(std::span(kSpecial).first(3))).has_value());
}

TEST_F(HarmonyTest, ThoughtsAndAnswer) {
  const ChatAnswer answer = Read(
      "<|channel|>analysis<|message|>2 + 2 is 4.<|end|><|start|>assistant<|channel|>final<|message|>It is "
      "4.<|return|>");
  EXPECT_EQ(answer.reasoning, "2 + 2 is 4.");
  EXPECT_EQ(answer.num_reasoning_tokens, 11);  // each byte is a token
  EXPECT_EQ(answer.content, "It is 4.");
  EXPECT_TRUE(answer.tool_calls.empty());
  EXPECT_EQ(Read("<|channel|>final<|message|>Yes").content, "Yes");
}

TEST_F(HarmonyTest, Calls) {
  for (const std::string_view text :
       {"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": 1}<|call|>",
        "<|channel|>analysis<|message|>I ask.<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary "
        "json<|message|>{\"city\": 1}"}) {
    const ChatAnswer answer = Read(text);
    ASSERT_EQ(answer.tool_calls.size(), 1u) << text;
    EXPECT_EQ(answer.tool_calls[0].name, "get_weather");
    EXPECT_EQ(answer.tool_calls[0].arguments, "{\"city\": 1}");
    EXPECT_EQ(answer.content, "");
  }
  const ChatAnswer python = Read("<|channel|>analysis to=python code<|message|>print(1)<|call|>");
  EXPECT_EQ(python.reasoning, "print(1)");
  EXPECT_TRUE(python.tool_calls.empty());
  EXPECT_EQ(Read("<|channel|>commentary<|message|>First I look.<|end|>").content, "First I look.");
}

TEST_F(HarmonyTest, WhatIsCutOff) {
  EXPECT_EQ(Read("<|channel|>analysis<|message|>I thi").reasoning, "I thi");
  EXPECT_EQ(Read("<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>fin").reasoning,
            "I think.");
  EXPECT_EQ(Read("<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>fin").content, "");
  EXPECT_EQ(Read("plain").content, "plain");
  EXPECT_EQ(Read("").content, "");
}

TEST_F(HarmonyTest, ContentMayGoOn) {
  const auto ids = tokenizer_->Encode(" 4.<|return|>", Origin::kTemplate, AddSpecial::kNo);
  HarmonyStream stream(*tokenizer_, AnswerStart::kInContent);
  const std::vector<AnswerDelta> deltas = stream.Push(ids, " 4.");
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].kind, AnswerDelta::Kind::kContent);
  EXPECT_EQ(deltas[0].text, " 4.");
  EXPECT_TRUE(stream.Finish().empty());
}

TEST_F(HarmonyTest, StopTextsAreCutOff) {
  const ChatAnswer answer = Read(
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>One two three", " two");
  EXPECT_EQ(answer.content, "One");
  EXPECT_EQ(answer.reasoning, "Hm.");
  EXPECT_EQ(answer.num_reasoning_tokens, 3);
  EXPECT_EQ(Read("<|channel|>analysis<|message|>One two", " two").reasoning, "One");
  EXPECT_EQ(Read("plain text", " text").content, "plain");
}

TEST_F(HarmonyTest, TheTypeMayStandBeforeTheChannel) {
  EXPECT_EQ(Read("<|constrain|>json<|channel|>analysis<|message|>Hm.<|end|>").reasoning, "Hm.");
}

RC_GTEST_FIXTURE_PROP(HarmonyTest, AnyTokensAreAnAnswer, (uint32_t seed)) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(random() % 40);
  for (TokenId& id : ids) {
    id = random() % 2 == 0 ? kFirstSpecial + static_cast<TokenId>(random() % std::size(kSpecial))
                           : static_cast<TokenId>(random() % 256);
  }
  HarmonyStream stream(*tokenizer_);
  const ChatAnswer answer = ReadAnswer(stream, ids, ReplaceInvalidUtf8(tokenizer_->Decode(ids, SkipSpecial::kYes)));
  RC_ASSERT(IsUtf8(answer.content) && IsUtf8(answer.reasoning));
}

}  // namespace
}  // namespace penstock
