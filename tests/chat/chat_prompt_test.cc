// Proves that templates see a chat as transformers would pass it, that a template that fails on this gets a simpler
// form, and that each request gets the right one of two templates.
#include "penstock/chat/chat_prompt.h"

#include <fstream>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::string Published(const std::string& name) {
  std::ifstream file(std::string(PENSTOCK_SOURCE_DIR) + "/tests/data/chat_templates/" + name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

json::array Messages(const std::string& text) { return ParseJson(text, Fault::kInput)->as_array(); }

std::string Rendered(const ChatPrompts& prompts, const ChatParts& chat) {
  const auto segments = prompts.Render(chat);
  if (!segments.ok()) return Message(segments.status());
  std::string text;
  for (const TextSegment& segment : *segments) text += segment.text;
  return text;
}

std::string Rendered(const std::string& source, const ChatParts& chat) {
  const auto prompts = ChatPrompts::Create({.general = source, .tool_use = {}}, {{"bos_token", "<s>"}});
  EXPECT_TRUE(prompts.ok()) << prompts.status();
  return Rendered(*prompts, chat);
}

TEST(ChatPrompt, TheDateIsSetFromOutside) {
  auto prompts = ChatPrompts::Create({.general = "{{ strftime_now('%d %B %Y') }}", .tool_use = {}}, {});
  ASSERT_TRUE(prompts.ok());
  EXPECT_EQ(Rendered(*prompts, {}), "26 July 2024");
  EXPECT_EQ(Rendered(*prompts, {.messages = {}, .tools = {}, .variables = {}, .date = "2026-11-05"}),
            "05 November 2026");
}

TEST(ChatPrompt, RequestsWithToolsGetTheTemplateForTools) {
  const auto both = ChatPrompts::Create({.general = "d", .tool_use = "t{{ tools|length }}"}, {});
  ASSERT_TRUE(both.ok());
  const json::value tools = json::array{json::object{{"type", "function"}}};
  EXPECT_EQ(Rendered(*both, {.messages = {}, .tools = tools, .variables = {}}), "t1");
  EXPECT_EQ(Rendered(*both, {}), "d");
  EXPECT_EQ(both->Literals(), std::string("d\0t\0", 4));
  const auto one = ChatPrompts::Create({.general = {}, .tool_use = "t"}, {});
  EXPECT_THAT(Rendered(*one, {}), HasSubstr("for requests with tools only"));
  EXPECT_EQ(FaultOf(ChatPrompts::Create({.general = "{{", .tool_use = {}}, {}).status()), Fault::kModel);
}

TEST(ChatPrompt, VariablesAreTheTemplates) {
  ChatParts chat;
  chat.variables = {{"enable_thinking", false}, {"documents", json::array{json::object{{"text", "d"}}}}};
  const std::string source =
      "{{ bos_token }}{{ enable_thinking }} {{ tools is none }} {% if documents %}{{ documents[0].text }}{% endif %}";
  EXPECT_EQ(Rendered(source, chat), "<s>False True d");
  EXPECT_EQ(Rendered(source, {}), "<s> True ");
  chat.variables = {{"bos_token", "mine"}, {"add_generation_prompt", false}};
  EXPECT_EQ(Rendered("{{ bos_token }}{{ add_generation_prompt }}", chat), "<s>True");
}

TEST(ChatPrompt, AnAnswerContinuesTheLastMessage) {
  const std::string source =
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}";
  const auto prompt = [&](const std::string& template_text, const json::value& content) {
    ChatParts chat;
    chat.messages = Messages(R"([{"role": "user", "content": "end"}])");
    chat.messages.push_back(json::object{{"role", "assistant"}, {"content", content}});
    chat.continues_last = true;
    return Rendered(template_text, chat);
  };
  const std::string begin = "<|user|>end<|end|><|assistant|>";
  EXPECT_EQ(prompt(source, "It is "), begin + "It is");
  // The text of a mark is not the message's.
  EXPECT_EQ(prompt(source, "end"), begin + "end");
  EXPECT_EQ(
      prompt(source, *ParseJson(R"([{"type": "text", "text": "It"}, {"type": "text", "text": " is"}])", Fault::kInput)),
      begin + "It is");
  const std::string spaced = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";
  EXPECT_EQ(prompt(spaced, " It is\n"), begin + " It is\n");
  EXPECT_THAT(prompt(source, "  "), HasSubstr("continue_final_message: the chat template does not write"));
  EXPECT_THAT(prompt("{{ messages[0].content }}", "It"), HasSubstr("continue_final_message"));
}

TEST(ChatPrompt, ContentThatIsNotThereIsEmptyForTemplatesThatNeedIt) {
  ChatParts chat;
  chat.messages = Messages(R"([{"role": "user", "content": "q"}, {"role": "assistant"}])");
  EXPECT_EQ(Rendered("{% for m in messages %}{{ m.content is defined }} {% endfor %}", chat), "True False ");
  EXPECT_EQ(Rendered("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}", chat), "<q><>");
  EXPECT_THAT(Rendered("{{ raise_exception('no') }}", chat), HasSubstr("no"));
  chat.messages.push_back(json::object{{"role", "user"}, {"content", "more"}});
  for (const char* name : {"Phi-3.jinja", "Qwen2.jinja", "openai-gpt-oss-120b.jinja", "Qwen-Qwen2.5-7B-Instruct.jinja",
                           "Qwen3-30B-A3B.jinja"}) {
    EXPECT_THAT(Rendered(Published(name), chat), HasSubstr("more")) << name;
  }
}

TEST(ChatPrompt, ArgumentsAreObjectsWhereTheyCanBe) {
  ChatParts chat;
  chat.messages = Messages(R"([{"role": "assistant", "tool_calls": [
      {"type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}},
      {"type": "function", "function": {"name": "g", "arguments": "no object"}}]}])");
  const std::string each = "{% for c in messages[0].tool_calls %}";
  EXPECT_EQ(Rendered(each + "{{ c.function.arguments | tojson }};{% endfor %}", chat), R"({"a": [1]};"no object";)");
  EXPECT_EQ(Rendered(each + "{{ '<' + c.function.arguments + '>' }}{% endfor %}", chat), R"(<{"a": [1]}><no object>)");
  // A template that refuses both forms reports why it refuses the one that the client wrote.
  EXPECT_THAT(Rendered(each + "{{ '<' + c.function.arguments + '>' }}{% endfor %}{{ raise_exception('no') }}", chat),
              HasSubstr("no"));
  chat.messages[0].at("tool_calls").as_array()[0].at("function").as_object()["arguments"] =
      R"({"id": 123456789012345678901234567890})";
  EXPECT_THAT(Rendered(each + "{{ c.function.arguments }}{% endfor %}", chat),
              HasSubstr(R"({"id": 123456789012345678901234567890})"));
}

TEST(ChatPrompt, PartsAreAListForTemplatesThatTakeOne) {
  ChatParts chat;
  chat.messages = Messages(R"([{"role": "user", "content": [{"type": "text", "text": "a"},
                                                            {"type": "text", "text": "b"}]}])");
  const std::string each = "{% for m in messages %}";
  EXPECT_EQ(Rendered(each + "{{ m.content }}{% endfor %}", chat), "ab");
  EXPECT_EQ(Rendered(each + "{{ m.content | tojson }}{% endfor %}", chat), "\"ab\"");
  EXPECT_EQ(Rendered(each + "{{ '<' + m.content + '>' }}{% endfor %}", chat), "<ab>");
  EXPECT_EQ(Rendered(each + "{{ m.content if m.content is string else m.content | map(attribute='text') | join('|') }}"
                            "{% endfor %}",
                     chat),
            "a|b");
  // Templates also look for the call that a tool's message answers.
  ChatParts with_tool = chat;
  with_tool.messages = Messages(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls":
      [{"type": "function", "function": {"name": "f", "arguments": {}}}]}, {"role": "tool", "content":
      [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])");
  EXPECT_EQ(
      Rendered("{% set tool = messages[2] if messages|length > 2 else messages[0] %}{% if tool.content is string %}"
               "{{ tool.content }}{% else %}{{ tool.content[0].text }},{{ tool.content[1].text }}{% endif %}",
               with_tool),
      "a,b");
  // The template takes parts of users only, so a system message's parts are joined.
  chat.messages[0].as_object()["role"] = "system";
  EXPECT_EQ(
      Rendered(each + "{% if m.role == 'user' and m.content is not string %}{{ m.content[0].text + m.content[1].text }}"
                      "{% else %}{{ m.content }}{% endif %}{% endfor %}",
               chat),
      "ab");
}

}  // namespace
}  // namespace penstock
