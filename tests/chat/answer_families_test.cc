// Proves that the answers of each family are split into reasoning, content and tool calls.
#include <gtest/gtest.h>

#include "tests/chat/answer_testing.h"

namespace penstock {
namespace {

using testing_answers::CallsOf;
using testing_answers::kTools;
using testing_answers::ModelOf;

struct Transcript {
  std::string family, text;
  std::string reasoning, content, calls;
  AnswerStart start = AnswerStart::kUnknown;
};

void Expect(const Transcript& t) {
  const ChatAnswer answer = ModelOf(t.family).Read(t.text, kTools, t.start);
  EXPECT_EQ(answer.reasoning, t.reasoning) << t.family << ": " << t.text;
  EXPECT_EQ(answer.content, t.content) << t.family << ": " << t.text;
  EXPECT_EQ(CallsOf(answer), t.calls) << t.family << ": " << t.text;
}

TEST(AnswerFamilies, ThoughtsAndContent) {
  const std::vector<Transcript> transcripts = {
      {"plain", "<think>Text.</think> \n", "", "<think>Text.</think> \n", ""},
      {"qwen3", "<think>\nTwo and two.\n</think>\n\nFour.", "Two and two.", "Four.", ""},
      {"qwen3", "  Four, plainly.\n", "", "  Four, plainly.\n", ""},
      {"qwen3", "Hm.\n</think>\n\nFour.", "Hm.", "Four.", "", AnswerStart::kInReasoning},
      {"qwen3", "Four.", "", "Four.", "", AnswerStart::kBehindReasoning},
      {"qwen3", "Cut off in a thou", "Cut off in a thou", "", "", AnswerStart::kInReasoning},
      {"qwen3", "<think></think>Four.", "", "Four.", ""},
      {"qwen3", "A mark <think> behind text </think> is text.", "", "A mark <think> behind text </think> is text.", ""},
      {"r1", "No mark opens this.</think>Four.", "No mark opens this.", "Four.", ""},
      {"r1", "<think>\nA mark opens it.\n</think>\nFour.", "A mark opens it.", "Four.", ""},
      {"r1", "Without any mark.", "", "Without any mark.", ""},
      {"r1", "Four.", "", "Four.", "", AnswerStart::kBehindReasoning},
      {"magistral", "[THINK]Hm.[/THINK]Four.", "Hm.", "Four.", ""},
      {"hunyuan", "<think>\nHm.\n</think>\n<answer>\nFour.\n</answer>", "Hm.", "Four.", ""},
      {"ernie", "Hm.\n</think>\n\n<response>\nFour.\n</response>\n", "Hm.", "Four.", "", AnswerStart::kInReasoning},
      {"minimax", "Hm.\n</think>\n\nThe <response> tag.", "Hm.", "The <response> tag.", "", AnswerStart::kInReasoning},
      {"solar", "<|think|>Hm.<|end|><|begin|>assistant<|content|>Four.<|end|>", "Hm.", "Four.", ""},
      {"gemma", "<|channel>thought\nHm.\n<channel|>Four.", "Hm.", "Four.", ""},
      {"gemma", "<|channel>thought\n<channel|>Four.", "", "Four.", ""},
      {"gemma", "Four.", "", "Four.", "", AnswerStart::kBehindReasoning},
  };
  for (const Transcript& transcript : transcripts) Expect(transcript);
}

// Each byte is a token, and so is each special mark.
TEST(AnswerFamilies, TokensOfReasoning) {
  struct Counted {
    std::string family, text;
    int64_t expected = 0;
    AnswerStart start = AnswerStart::kUnknown;
  };
  const std::vector<Counted> cases = {
      {"plain", "<think>Text.</think>", 0},
      {"qwen3", "<think>\nTwo and two.\n</think>\n\nFour.", 14},
      {"qwen3", "Four.", 0},
      {"qwen3", "<think></think>Four.", 0},
      {"qwen3", "Hm.\n</think>\n\nFour.", 4, AnswerStart::kInReasoning},
      {"qwen3", "Cut off", 7, AnswerStart::kInReasoning},
      {"qwen3", "\u00c4h</think>", 3, AnswerStart::kInReasoning},
      {"r1", "No mark.</think>Four.", 8},
      {"r1", "Without any mark.", 0},
      {"magistral", "[THINK]Hm.[/THINK]Four.", 3},
      {"gemma", "<|channel>thought\nHm.\n<channel|>Four.", 5},
      {"solar", "<|think|>Hm.<|end|><|begin|>assistant<|content|>Four.<|end|>", 3},
  };
  for (const auto& [family, text, expected, start] : cases) {
    EXPECT_EQ(ModelOf(family).Read(text, kTools, start).num_reasoning_tokens, expected) << family << ": " << text;
  }
}

TEST(AnswerFamilies, CallsInJson) {
  const std::string call = R"({"name": "get_weather", "arguments": {"city": "Oslo",  "days": 3}})";
  const std::string expected = R"(get_weather({"city": "Oslo",  "days": 3}))";
  const std::vector<Transcript> transcripts = {
      {"qwen3", "<think>\nI look.\n</think>\n\n<tool_call>\n" + call + "\n</tool_call>", "I look.", "", expected},
      {"qwen3", "I look.\n<tool_call>\n" + call + "\n</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>", "",
       "I look.", expected + " now({})"},
      {"qwen3", R"(<tool_call>{"name": "now", "arguments": "{\"a\": 1}"}</tool_call> So.)", "", "So.",
       R"(now({"a": 1}))"},
      {"qwen3", R"(<tool_call>{"arguments": {"s": "</tool_call> \" }"}, "name": "now"}</tool_call>)", "", "",
       R"(now({"s": "</tool_call> \" }"}))"},
      {"ernie", "Hm.</think>\n\n<tool_call>\n" + call + "\n</tool_call>\n", "Hm.", "", expected,
       AnswerStart::kInReasoning},
      {"mistral", "[TOOL_CALLS][" + call + ", {\"name\": \"now\", \"arguments\": {}, \"id\": \"abc\"}]", "", "",
       expected + " now({})"},
      {"mistral", R"(One.[TOOL_CALLS]now[ARGS]{"x": [1]}[TOOL_CALLS]now[CALL_ID]a1[ARGS]{})", "", "One.",
       R"(now({"x": [1]}) now({}))"},
      {"magistral", R"([THINK]Hm.[/THINK][TOOL_CALLS]now[ARGS]{"x": 1})", "Hm.", "", R"(now({"x": 1}))"},
      {"granite", "<|tool_call|>[" + call + "]", "", "", expected},
      {"granite", "<tool_call>[" + call + "]", "", "", expected},
      {"hunyuan", "<think>\nHm.\n</think>\n<answer>\n<tool_calls>[" + call + "]</tool_calls>\n</answer>", "Hm.", "",
       expected},
  };
  for (const Transcript& transcript : transcripts) Expect(transcript);
}

TEST(AnswerFamilies, CallsWithoutMarks) {
  const std::vector<Transcript> transcripts = {
      {"llama", R"({"name": "now", "parameters": {"x": 1}})", "", "", R"(now({"x": 1}))"},
      {"llama",
       R"(<|python_tag|>{"name": "now", "parameters": {}}; {"name": "get_weather", "parameters": {"days": 3}})", "", "",
       R"(now({}) get_weather({"days": 3}))"},
      {"llama", R"({"name": "Ann", "parameters": {}})", "", R"({"name": "Ann", "parameters": {}})", ""},
      {"llama", R"({"name": "now"})", "", R"({"name": "now"})", ""},
      {"llama", R"(I say {"name": "now", "parameters": {}})", "", R"(I say {"name": "now", "parameters": {}})", ""},
  };
  for (const Transcript& transcript : transcripts) Expect(transcript);
}

TEST(AnswerFamilies, CallsBetweenSpecialTokens) {
  const std::vector<Transcript> transcripts = {
      {"deepseek-v3",
       "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"x\": "
       "1}\n```<｜tool▁call▁end｜>\n"
       "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "", "I look.", R"(now({"x": 1}) now({}))"},
      {"deepseek-v3",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "", "", R"(now({"x": 1}))"},
      {"kimi",
       "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
       "{\"city\": \"Oslo\"}<|tool_call_end|><|tool_call_begin|>now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       "", "Well.", R"(get_weather({"city": "Oslo"}) now({}))"},
      {"solar",
       "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>now"
       "<|tool_call:args|>{\"x\": 1}<|tool_call:end|><|calls|>",
       "Hm.", "", R"(now({"x": 1}))"},
      {"gpt-oss",
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
       "<|constrain|>json<|message|>{}<|call|>",
       "Hm.", "", "now({})"},
  };
  for (const Transcript& transcript : transcripts) Expect(transcript);
}

TEST(AnswerFamilies, CallsInTags) {
  const std::string typed = R"(get_weather({"city": "Oslo", "days": 3, "exact": true, "more": {"a": [1]}}))";
  const std::vector<Transcript> transcripts = {
      {"glm",
       "\n<think>Hm.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
       "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n"
       "<arg_key>more</arg_key>\n<arg_value>{\"a\": [1]}</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
       "Hm.", "", typed + " now({})"},
      {"hunyuan3",
       "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n"
       "</tool_call>\n<tool_call>now<tool_sep></tool_call>\n</tool_calls>",
       "", "", R"(get_weather({"city": "7"}) now({}))"},
      {"qwen3-coder",
       "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
       "</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=more>\n{\"a\": [1]}\n</parameter>\n"
       "</function>\n</tool_call>",
       "", "I look.", typed},
      {"qwen3-coder", "<function=now>\n</function>\n</tool_call>", "", "", "now({})"},
      {"qwen3-coder",
       "<tool_call><function=get_weather><parameter=city>\n two\nlines \n</parameter><parameter=zip>0123</parameter>"
       "</function></tool_call>",
       "", "", R"(get_weather({"city": " two\nlines ", "zip": "0123"}))"},
      {"minimax",
       "Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
       "name=\"city\">Oslo</parameter>\n"
       "<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
       "Hm.", "", R"(get_weather({"city": "Oslo", "days": 3}) now({}))", AnswerStart::kInReasoning},
  };
  for (const Transcript& transcript : transcripts) Expect(transcript);
}

TEST(AnswerFamilies, CallsInTagsOfPublishedVariants) {
  const std::string typed = R"(get_weather({"city": "Oslo", "days": 3, "more": {"a": [1]}}))";
  const std::vector<Transcript> transcripts = {
      {"glm5",
       "Hm.</think>I "
       "look.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
       "<arg_value>3</arg_value><arg_key>more</arg_key><arg_value>{\"a\": [1]}</arg_value></tool_call><tool_call>now"
       "</tool_call>",
       "Hm.", "I look.", typed + " now({})", AnswerStart::kInReasoning},
      {"hunyuan3-opensource",
       "<think:opensource>Hm.</think:opensource><tool_calls:opensource>\n<tool_call:opensource>get_weather"
       "<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Oslo"
       "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
       "Hm.", "", R"(get_weather({"city": "Oslo"}))"},
      {"deepseek-v3.2",
       "Hm.</think>I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
       "<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n"
       "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n"
       "<｜DSML｜parameter name=\"more\" string=\"false\">{\"a\": [1]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
       "<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       "Hm.", "I look.", typed + " now({})", AnswerStart::kInReasoning},
      // The tag tells the type, whatever the schema says. Texts keep their line ends.
      {"deepseek-v3.2",
       "<｜DSML｜function_calls><｜DSML｜invoke name=\"now\"><｜DSML｜parameter name=\"a\" string=\"true\">\n5\n"
       "</｜DSML｜parameter><｜DSML｜parameter name=\"b\" string=\"false\">\"t\"</｜DSML｜parameter>"
       "<｜DSML｜parameter name=\"c\" string=\"false\">no JSON</｜DSML｜parameter>"
       "<｜DSML｜parameter name=\"d\">5</｜DSML｜parameter></｜DSML｜invoke>",
       "", "", R"(now({"a": "\n5\n", "b": "t", "c": "no JSON", "d": 5}))"},
  };
  for (const Transcript& transcript : transcripts) Expect(transcript);
}

TEST(AnswerFamilies, CallsInNotationsOfTheirOwn) {
  const std::string typed = R"(get_weather({"city": "Oslo", "days": 3, "more": {"a": [1, true, null]}}))";
  const std::vector<Transcript> transcripts = {
      {"gemma",
       "<|channel>thought\nHm.\n<channel|><|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>,days:3,"
       "more:{a:[1,true,None]}}<tool_call|><|tool_call>call:now{}<tool_call|>",
       "Hm.", "", typed + " now({})"},
      {"gemma", R"(One.<|tool_call>call:now{ "s" : "\u00e9\"}" , <|"|>a b<|"|>:-1.5e3,}<tool_call|>)", "", "One.",
       R"(now({"s": "\u00e9\"}", "a b": -1.5e3}))"},
      {"gemma", "<|tool_call>call:now{s:<|\"|>a \"b\", {c}\n<|\"|>}<tool_call|>", "", "",
       R"(now({"s": "a \"b\", {c}\n"}))"},
      {"lfm2",
       "I look.<|tool_call_start|>[get_weather(city=\"Oslo\", days=3, more={'a': [1, True, None]}), now()]"
       "<|tool_call_end|>Wait.",
       "", "I look.Wait.", typed + " now({})"},
      {"lfm2", R"(<|tool_call_start|>[now(a='it\'s "\x41\u00e9\ud83d\ude00\101\q"', b="""two
lines""", c=(1, "2",), d={"k": {}}, e="")]<|tool_call_end|>)",
       "", "",
       "now({\"a\": \"it's \\\"A\xC3\xA9\xF0\x9F\x98\x80"
       "A\\\\q\\\"\", \"b\": \"two\\nlines\", \"c\": [1, \"2\"], "
       "\"d\": {\"k\": {}}, \"e\": \"\"})"},
      {"lfm2", R"(<|tool_call_start|>[{"name": "now", "arguments": {"a": 1}}, {"name": "now"}]<|tool_call_end|>)", "",
       "", R"(now({"a": 1}) now({}))"},
  };
  for (const Transcript& transcript : transcripts) Expect(transcript);
}

TEST(AnswerFamilies, ValuesThatDoNotFitTheirTypesAreStrings) {
  const auto read = [](std::string_view key, std::string_view value, std::string_view tools = kTools) {
    const std::string text =
        fmt::format("<tool_call>get_weather\n<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call>", key, value);
    return CallsOf(ModelOf("glm").Read(text, tools));
  };
  EXPECT_EQ(read("days", "three"), R"(get_weather({"days": "three"}))");
  EXPECT_EQ(read("days", "3.5"), R"(get_weather({"days": "3.5"}))");
  EXPECT_EQ(read("city", "{}"), R"(get_weather({"city": "{}"}))");
  EXPECT_EQ(read("zip", "null"), R"(get_weather({"zip": null}))");
  EXPECT_EQ(read("zip", "5"), R"(get_weather({"zip": "5"}))");
  EXPECT_EQ(read("new", "5"), R"(get_weather({"new": 5}))");
  EXPECT_EQ(read("new", "say \"x\""), R"(get_weather({"new": "say \"x\""}))");
  EXPECT_EQ(read("days", "3", "[{}]"), R"(get_weather({"days": 3}))");
  EXPECT_EQ(read("a</arg_key><arg_value>1</arg_value><arg_key>a", "2"), R"(get_weather({"a": 2}))");
}

TEST(AnswerFamilies, WithoutToolsACallIsText) {
  const std::string text = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const ChatAnswer answer = ModelOf("qwen3").Read(text, "");
  EXPECT_EQ(answer.content, text);
  EXPECT_TRUE(answer.tool_calls.empty());
}

TEST(AnswerFamilies, ThePromptSaysWhereTheAnswerBegins) {
  const auto& model = ModelOf("qwen3");
  const auto start = [&](std::string_view prompt) {
    return StartBehind(model.format(), model.Encode(prompt), model.tokenizer());
  };
  EXPECT_EQ(start("<|im_start|>assistant\n<think>\n"), AnswerStart::kInReasoning);
  EXPECT_EQ(start("<|im_start|>assistant\n<think>\n\n</think>\n\n"), AnswerStart::kBehindReasoning);
  EXPECT_EQ(start("What does <think> mean?<|im_start|>assistant\n"), AnswerStart::kUnknown);
  EXPECT_EQ(start(""), AnswerStart::kUnknown);
  const auto& plain = ModelOf("plain");
  EXPECT_EQ(StartBehind(plain.format(), plain.Encode("<think>"), plain.tokenizer()), AnswerStart::kUnknown);
}

}  // namespace
}  // namespace penstock
