// Proves that calls are handed out while they are written: the name first, then arguments in pieces which join to those
// of the whole call. Proves that a call which the answer's end cuts off has the beginning of its arguments.
#include <gtest/gtest.h>

#include "tests/chat/answer_testing.h"

namespace penstock {
namespace {

using testing_answers::CallsOf;
using testing_answers::kTools;
using testing_answers::ModelOf;

constexpr std::string_view kArguments = R"({"city": "Oslo, \"}\" </tool_call>", "more": {"a": [1, {}]}})";
constexpr std::string_view kSep = "<｜tool▁sep｜>";

struct CallText {
  std::string family;
  std::string before;  // the arguments
  std::string behind;
};

// Returns a call of get_weather in each form whose arguments stand as JSON.
std::vector<CallText> JsonCalls() {
  const std::string object = R"({"name": "get_weather", "arguments": )";
  const std::string calls = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
                    end = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  return {
      {"qwen3", "<tool_call>\n" + object, "}\n</tool_call>"},
      {"qwen3", "<tool_call>\n{\"id\": 7, \"name\": \"get_weather\",\n \"parameters\" :", ", \"x\": {}}\n</tool_call>"},
      {"ernie", "<tool_call>\n" + object, "}\n</tool_call>\n"},
      {"granite", "<|tool_call|>[" + object, "}]"},
      {"hunyuan", "<tool_calls>[" + object, "}]</tool_calls>"},
      {"mistral", "[TOOL_CALLS][" + object, ", \"id\": \"abc\"}]"},
      {"mistral", "[TOOL_CALLS]get_weather[ARGS]", ""},
      {"magistral", "[TOOL_CALLS]get_weather[CALL_ID]a1[ARGS] ", ""},
      {"deepseek-v3", calls + "function" + std::string(kSep) + "get_weather\n```json\n", "\n```" + end},
      {"deepseek-v3", calls + "get_weather" + std::string(kSep), end},
      {"kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>",
       "<|tool_call_end|><|tool_calls_section_end|>"},
      {"solar", "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>get_weather<|tool_call:args|>",
       "<|tool_call:end|><|calls|>"},
      {"llama", R"({"name": "get_weather", "parameters": )", "}"},
      {"lfm2", "<|tool_call_start|>[" + object, "}]<|tool_call_end|>"},
      {"gpt-oss", "<|channel|>commentary to=functions.get_weather<|message|>", "<|call|>"},
  };
}

// Returns what a stream tells when it gets the answer token by token. Bars stand between deltas.
std::string DeltasOf(const CallText& call, std::string_view arguments) {
  const auto& model = ModelOf(call.family);
  const auto stream = model.NewStream(kTools, AnswerStart::kUnknown);
  StreamDecoder decoder(model.tokenizer());
  std::string told;
  for (const TokenId id : model.Encode(call.before + std::string(arguments))) {
    for (const AnswerDelta& delta : stream->Push({&id, 1}, decoder.Push(id))) {
      told += (delta.kind == AnswerDelta::Kind::kContent ? "content:" : "") + delta.text + "|";
    }
  }
  return told;
}

TEST(CallStreams, ArgumentsComeWithTheirTokens) {
  for (const CallText& call : JsonCalls()) {
    std::string expected = "get_weather|";
    for (const char c : kArguments) expected += std::string(1, c) + "|";
    EXPECT_EQ(DeltasOf(call, kArguments), expected) << call.family << ": " << call.before;
  }
}

TEST(CallStreams, JoinedPiecesAreTheWholeCall) {
  for (const CallText& call : JsonCalls()) {
    const std::string text = call.before + std::string(kArguments) + call.behind;
    const ChatAnswer answer = ModelOf(call.family).Read(text);
    EXPECT_EQ(CallsOf(answer), fmt::format("get_weather({})", kArguments)) << text;
    EXPECT_EQ(answer.content, "") << text;
  }
}

TEST(CallStreams, CallsThatAreCutOffHaveTheBeginningOfTheirArguments) {
  for (const CallText& call : JsonCalls()) {
    for (size_t size = 1; size <= kArguments.size(); ++size) {
      const std::string begin(kArguments.substr(0, size));
      const ChatAnswer answer = ModelOf(call.family).Read(call.before + begin);
      EXPECT_EQ(CallsOf(answer), fmt::format("get_weather({})", begin)) << call.family;
      EXPECT_EQ(answer.content, "") << call.family;
    }
  }
}

TEST(CallStreams, OtherNotationsAreCutOffBehindTheirLastArgument) {
  const auto calls = [](std::string_view family, std::string_view text) {
    const ChatAnswer answer = ModelOf(family).Read(text);
    EXPECT_EQ(answer.content, "") << text;
    return CallsOf(answer);
  };
  EXPECT_EQ(calls("glm", "<tool_call>now\n<arg_key>a</arg_key><arg_value>1</arg_value>\n<arg_key>b</arg_key><arg_v"),
            R"(now({"a": 1))");
  EXPECT_EQ(calls("qwen3-coder", "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n<parameter=b>open"),
            R"(now({"a": 1))");
  EXPECT_EQ(calls("minimax", "<minimax:tool_call><invoke name=\"now\"><parameter name=\"a\">open"), "now({)");
  EXPECT_EQ(calls("deepseek-v3.2",
                  "<｜DSML｜invoke name=\"now\"><｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>"),
            R"(now({"a": "x"))");
  EXPECT_EQ(calls("gemma", "<|tool_call>call:now{a:[1,<|\"|>x<|\"|>],b:<|\"|>open"), R"(now({"a": [1, "x"], "b": ))");
  EXPECT_EQ(calls("lfm2", "<|tool_call_start|>[now(a=1), get_weather(city=\"Os"),
            R"(now({"a": 1}) get_weather({"city": ))");
}

TEST(CallStreams, WhatBreaksArgumentsEndsTheCall) {
  const auto expect = [](std::string_view family, std::string_view text, std::string_view calls,
                         std::string_view content) {
    const ChatAnswer answer = ModelOf(family).Read(text);
    EXPECT_EQ(CallsOf(answer), calls) << text;
    EXPECT_EQ(answer.content, content) << text;
  };
  const std::string now = R"(<tool_call>{"name": "now", "arguments": )";
  expect("qwen3", now + R"({"a": 1</tool_call> So.)", R"(now({"a": 1))", "So.");
  expect("qwen3", now + R"({"a": 1}</tool_call> So.)", R"(now({"a": 1}))", "So.");
  expect("qwen3", now + R"({"a": True}}</tool_call>)", R"(now({"a": True}))", "");
  expect("qwen3", now + "{\"a\": \"two\nlines\"}}</tool_call>", "now({\"a\": \"two\nlines\"})", "");
  expect("qwen3", now + R"({}, "id": <x>}</tool_call>)", "now({})", R"(, "id": <x>}</tool_call>)");
  expect("mistral", R"([TOOL_CALLS][{"name": "now", "arguments": {}}, 5])", "now({})", ", 5]");
  expect("llama", R"({"name": "now", "parameters": {}} So.)", "now({})", "So.");
  expect("deepseek-v3", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\": 1\n```", "now({\"a\": 1\n)", "");
}

TEST(CallStreams, OneCallMeansItsArgumentsAlone) {
  const auto& model = ModelOf("mistral");
  const std::vector<TokenId> ids =
      model.Encode(R"([TOOL_CALLS][{"name": "now", "arguments": {"a": 1}}, {"name": "now", "arguments": {"b": 2}}])");
  EXPECT_EQ(CallsOf(model.ReadIds(ids, kTools, AnswerStart::kUnknown)), R"(now({"a": 1}) now({"b": 2}))");
  EXPECT_EQ(CallsOf(model.ReadIds(ids, kTools, AnswerStart::kUnknown, {.has_one_call = true})), R"(now({"a": 1}))");
}

}  // namespace
}  // namespace penstock
