// Proves that no text is lost when an answer only looks like a call, and that pieces of any size give the same parts.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>

#include "tests/chat/answer_testing.h"

namespace penstock {
namespace {

using testing_answers::CallsOf;
using testing_answers::Families;
using testing_answers::Family;
using testing_answers::kTools;
using testing_answers::ModelOf;

void ExpectText(std::string_view family, const std::string& text) {
  const ChatAnswer answer = ModelOf(family).Read(text);
  EXPECT_EQ(answer.content, text) << family;
  EXPECT_EQ(CallsOf(answer), "") << family;
}

TEST(HostileAnswers, WhatIsNoCallIsText) {
  ExpectText("qwen3", "<tool_call>\n{\"name\": \"now\", \"argu");
  ExpectText("qwen3", "<tool_call>now</tool_call>");
  ExpectText("qwen3", "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call> end");
  ExpectText("qwen3", "<tool_call>{\"arguments\": {}}</tool_call>");
  ExpectText("qwen3", "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>");
  ExpectText("qwen3", "<tool_call>{\"name\": \"now\", \"name\": \"now\"}</tool_call>");
  ExpectText("qwen3", "<tool_call>[]</tool_call>");
  ExpectText("qwen3", "<tool_call>{\"name\": \"line\nbreak\"}</tool_call>");
  ExpectText("qwen3", "a < b <tool");
  ExpectText("qwen3", "</tool_call>");
  ExpectText("mistral", "[TOOL_CALLS]two words[ARGS]{}");
  ExpectText("mistral", "[TOOL_CALLS]now[ARGS][1]");
  ExpectText("kimi", "<|tool_calls_section_begin|> nothing");
  ExpectText("kimi", "<|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}");
  ExpectText("glm", "<tool_call>two words</tool_call>");
  ExpectText("granite", "<|tool_call|>nothing");
  ExpectText("deepseek-v3.2", "<｜DSML｜function_calls><｜DSML｜invoke name=\"now\">open");
  ExpectText("gemma", "<|tool_call>now{}");
  ExpectText("gemma", "<|tool_call>call:now{city:Oslo}");
  ExpectText("gemma", "<|tool_call>call:now{a:1,a:2}");
  ExpectText("gemma", "<|tool_call>call:now{a:NaN}");
  ExpectText("gemma", "<|tool_call>call:now{a:\"line\nbreak\"}");
  ExpectText("lfm2", "<|tool_call_start|>[now(5)]");
  ExpectText("lfm2", "<|tool_call_start|>[now(a=b)]");
  ExpectText("lfm2", "<|tool_call_start|>[now(a={b: 1})]");
  ExpectText("lfm2", "<|tool_call_start|>[now(a=1]");
  ExpectText("lfm2", "<|tool_call_start|>[]");
  ExpectText("lfm2", "<|tool_call_start|>now()");
  ExpectText("solar", "<|tool_calls|><|tool_call:begin|>x<|tool_call:name|>now<|tool_call:args|>5");
}

TEST(HostileAnswers, ACallInsideWhatIsNoCall) {
  const ChatAnswer nested = ModelOf("qwen3").Read("<tool_call><tool_call>{\"name\": \"now\"}</tool_call></tool_call>");
  EXPECT_EQ(nested.content, "<tool_call>");
  EXPECT_EQ(CallsOf(nested), "now({})");
  const ChatAnswer behind = ModelOf("qwen3").Read("<tool_call>{x}</tool_call><tool_call>{\"name\": \"now\"}");
  EXPECT_EQ(behind.content, "<tool_call>{x}</tool_call>");
  EXPECT_EQ(CallsOf(behind), "now({})");
}

TEST(HostileAnswers, DeepJsonDoesNotRecurse) {
  const std::string deep(100'000, '[');
  const std::string begin = "{\"a\": " + deep;
  EXPECT_EQ(CallsOf(ModelOf("qwen3").Read("<tool_call>{\"name\": \"now\", \"arguments\": " + begin)),
            "now(" + begin + ")");
  ExpectText("qwen3", "<tool_call>" + deep + std::string(100'000, ']'));
  ExpectText("gemma", "<|tool_call>call:now{a:" + deep);
  ExpectText("lfm2", "<|tool_call_start|>[now(a=" + deep);
}

TEST(HostileAnswers, MarksInThoughtsAreThoughts) {
  const ChatAnswer answer =
      ModelOf("qwen3").Read("<think><tool_call>{\"name\": \"now\"}</tool_call><think></think>Yes.");
  EXPECT_EQ(answer.reasoning, "<tool_call>{\"name\": \"now\"}</tool_call><think>");
  EXPECT_EQ(answer.content, "Yes.");
}

TEST(HostileAnswers, StopTextsCutMarksOff) {
  const auto& model = ModelOf("kimi");
  const std::vector<TokenId> ids =
      model.Encode("One.<|tool_call_begin|>now:0<|tool_call_argument_begin|>{}<|tool_call_end|>");
  const auto read = [&](std::string_view kept) {
    const auto stream = model.NewStream(kTools, AnswerStart::kUnknown);
    return ReadAnswer(*stream, ids, kept);
  };
  EXPECT_EQ(CallsOf(read("One.now:0{}")), "now({})");
  EXPECT_EQ(read("One.now").content, "One.<|tool_call_begin|>now");
  EXPECT_EQ(read("On").content, "On");
}

// Returns an answer of marks, JSON and text in random order.
std::vector<TokenId> RandomAnswer(const Family& family, std::mt19937& random) {
  static const auto* const parts = new std::vector<std::string>{"<think>",
                                                                "</think>",
                                                                "<tool_call>",
                                                                "</tool_call>",
                                                                "{\"name\": \"now\"}",
                                                                "{\"name\": \"now\", \"arguments\": {}}",
                                                                "now",
                                                                "{}",
                                                                "{",
                                                                "}",
                                                                "[",
                                                                "]",
                                                                "\"",
                                                                " ",
                                                                "\n",
                                                                "a",
                                                                "\xC3\xA9",
                                                                "<",
                                                                "<tool",
                                                                "functions.now:0",
                                                                "```json",
                                                                "```",
                                                                "<arg_key>",
                                                                "days</arg_key>",
                                                                "<arg_value>",
                                                                "3</arg_value>",
                                                                "<function=",
                                                                "now>",
                                                                "<parameter=days>",
                                                                "</parameter>",
                                                                "</function>",
                                                                "<minimax:tool_call>",
                                                                "<invoke name=\"now\">",
                                                                "</invoke>",
                                                                "<tool_calls>",
                                                                "<answer>",
                                                                "</answer>",
                                                                "assistant",
                                                                "<parameter name=\"a\">",
                                                                "to=functions.now",
                                                                "<｜DSML｜invoke name=\"now\">",
                                                                "</｜DSML｜invoke>",
                                                                "call:now{",
                                                                "a:1",
                                                                "[now(",
                                                                "a='",
                                                                ")]"};
  const auto& model = ModelOf(family.name);
  std::vector<TokenId> ids;
  for (size_t i = random() % 30; i > 0; --i) {
    const size_t kind = random() % 10;
    if (kind < 4 && !family.special.empty()) {
      ids.push_back(testing_answers::kFirstMark + static_cast<TokenId>(random() % family.special.size()));
    } else if (kind == 9) {
      ids.push_back(static_cast<TokenId>(random() % 256));  // any byte
    } else {
      const std::vector<TokenId> more = model.Encode((*parts)[random() % parts->size()]);
      ids.insert(ids.end(), more.begin(), more.end());
    }
  }
  return ids;
}

RC_GTEST_PROP(HostileAnswers, PiecesOfAnySizeGiveTheSameParts, (uint32_t seed)) {
  std::mt19937 random(seed);
  for (const Family& family : Families()) {
    const auto& model = ModelOf(family.name);
    for (const AnswerStart start : {AnswerStart::kUnknown, AnswerStart::kInReasoning, AnswerStart::kBehindReasoning}) {
      const std::vector<TokenId> ids = RandomAnswer(family, random);
      const std::string_view tools = random() % 4 == 0 ? "" : kTools;
      const ChatAnswer whole = model.ReadIds(ids, tools, start);
      const ChatAnswer joined = model.ReadInPieces(ids, tools, start, random);
      RC_ASSERT(joined.content == whole.content);
      RC_ASSERT(joined.reasoning == whole.reasoning);
      RC_ASSERT(joined.num_reasoning_tokens == whole.num_reasoning_tokens);
      RC_ASSERT(whole.num_reasoning_tokens >= 0 && whole.num_reasoning_tokens <= std::ssize(ids));
      RC_ASSERT(CallsOf(joined) == CallsOf(whole));
      RC_ASSERT(IsUtf8(whole.content) && IsUtf8(whole.reasoning));
      RC_ASSERT(testing_answers::HasGoodArguments(model.format(), whole));
    }
  }
}

}  // namespace
}  // namespace penstock
