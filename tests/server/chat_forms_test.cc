// Proves that requests of Anthropic's and of OpenAI's newer API become the same chats, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/server/api/messages_api.h"
#include "penstock/server/api/responses_api.h"

namespace penstock::server {
namespace {

using testing::HasSubstr;

// Returns the converted body, or "PARAM: message".
template <typename Convert>
std::string Converted(const Convert& convert, std::string_view body) {
  std::optional<LineError> error;
  std::string ignored;
  const json::object chat =
      convert(json::parse(json::string_view(body.data(), body.size())).as_object(), error, ignored);
  if (error.has_value()) return error->param + ": " + error->message;
  return std::string(json::serialize(chat)) + (ignored.empty() ? "" : " without " + ignored);
}

std::string Messages(std::string_view body) { return Converted(ChatOfMessages, body); }
std::string Responses(std::string_view body) { return Converted(ChatOfResponses, body); }

TEST(ChatForms, MessagesWithToolsBecomeAChat) {
  EXPECT_EQ(
      Messages(R"({"model":"m","max_tokens":5,"stop_sequences":["x"],
      "system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],
      "messages":[{"role":"user","content":"q"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"c"},
                                       {"type":"tool_use","id":"i","name":"f","input":{"k":1}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[{"type":"text","text":"r"}]},
                                  {"type":"text","text":"go on"}]}],
      "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
      "tool_choice":{"type":"auto","disable_parallel_tool_use":true},"thinking":{"type":"enabled","budget_tokens":9}})"),
      R"({"model":"m","max_tokens":5,"stop":["x"],"messages":[{"role":"system","content":"a\nb"},)"
      R"({"role":"user","content":"q"},{"role":"assistant","content":"c","reasoning_content":"t",)"
      R"("tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{\"k\":1}"}}]},)"
      R"({"role":"tool","tool_call_id":"i","content":"r"},)"
      R"({"role":"user","content":[{"type":"text","text":"go on"}]}],)"
      R"("tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],)"
      R"("tool_choice":"auto","parallel_tool_calls":false,"chat_template_kwargs":{"enable_thinking":true}} without thinking.budget_tokens)");
}

TEST(ChatForms, AnAnswerContinuesTheAssistantsLastMessage) {
  EXPECT_EQ(Messages(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"It is"}]})"),
            R"({"continue_final_message":true,"messages":[{"role":"user","content":"q"},)"
            R"({"role":"assistant","content":"It is"}]})");
}

TEST(ChatForms, MessagesMayHaveAFormatAndStrictTools) {
  constexpr std::string_view kFormat = R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})";
  EXPECT_EQ(Messages(R"({"messages":[],"tools":[{"name":"f","input_schema":{},"strict":true}],
      "output_config":{"effort":"low","format":{"type":"json_schema","schema":{}},"more":1}})"),
            fmt::format(R"({{"messages":[],"tools":[{{"type":"function","function":{{"name":"f","strict":true,)"
                        R"("parameters":{{}}}}}}],{},"reasoning_effort":"low"}} without output_config.more)",
                        kFormat));
  EXPECT_THAT(Messages(R"({"messages":[],"output_format":{"type":"json_schema","schema":{}}})"), HasSubstr(kFormat));
}

TEST(ChatForms, WhatMessagesCannotHonourIsNamed) {
  EXPECT_THAT(Messages(R"({"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]})"),
              HasSubstr("messages: content of type \"image\""));
  EXPECT_THAT(Messages(R"({"messages":[{"role":"user"}]})"), HasSubstr("messages: a message has no content"));
  EXPECT_THAT(Messages(R"({"messages":[{"role":"critic","content":"x"}]})"), HasSubstr("critic"));
  EXPECT_THAT(Messages(R"({"messages":[],"tools":[{"type":"web_search_20250305","name":"w"}]})"),
              HasSubstr("\"tools\":[]} without tools.web_search_20250305"));
  EXPECT_THAT(Messages(R"({"messages":[],"tools":[{"type":"bash_20250124","name":"b"}]})"),
              HasSubstr("tools of type \"bash_20250124\""));
  EXPECT_THAT(Messages(R"({"messages":[],"mcp_servers":[{}]})"), HasSubstr("mcp_servers: is not supported"));
  EXPECT_THAT(Messages(R"({"messages":[],"output_config":{"format":{"type":"regex"}}})"),
              HasSubstr("output_config: expected an object with type json_schema"));
  EXPECT_THAT(Messages(R"({"messages":[],"output_config":1})"), HasSubstr("output_config: expected an object"));
  EXPECT_THAT(Messages(R"({"messages":[],"tool_choice":"auto"})"), HasSubstr("tool_choice: expected an object"));
  EXPECT_THAT(Messages("{}"), HasSubstr("messages: is missing"));
}

TEST(ChatForms, ResponsesWithToolsBecomeAChat) {
  EXPECT_EQ(
      Responses(R"({"model":"m","instructions":"s","max_output_tokens":5,"store":false,"include":["x"],
      "input":[{"role":"user","content":[{"type":"input_text","text":"q"}]},
               {"type":"reasoning","id":"rs","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},
               {"type":"message","role":"assistant","content":[{"type":"output_text","text":"c"}]},
               {"type":"function_call","call_id":"i","name":"f","arguments":"{}"},
               {"type":"function_call","call_id":"j","name":"g","arguments":"{}"},
               {"type":"function_call_output","call_id":"i","output":"r"}],
      "tools":[{"type":"function","name":"f","parameters":{},"strict":null}],
      "tool_choice":{"type":"function","name":"f"},"reasoning":{"effort":"low"},
      "text":{"format":{"type":"json_schema","name":"n","schema":{}}}})"),
      R"({"model":"m","max_tokens":5,"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},)"
      R"({"role":"assistant","content":"c","reasoning_content":"t","tool_calls":[)"
      R"({"id":"i","type":"function","function":{"name":"f","arguments":"{}"}},)"
      R"({"id":"j","type":"function","function":{"name":"g","arguments":"{}"}}]},)"
      R"({"role":"tool","tool_call_id":"i","content":"r"}],)"
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}],)"
      R"("tool_choice":{"type":"function","function":{"name":"f"}},)"
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}},"reasoning_effort":"low"})");
}

TEST(ChatForms, ErrorsHaveTheClientsNamesOfFields) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"max_tokens", "max_output_tokens"},
                                                                      {"messages", "input"}};
  const auto named = [&](const std::string& field) {
    const ApiError error = WithNames({.message = field + ": is wrong", .param = field}, kNames);
    EXPECT_EQ(error.message, error.param + ": is wrong");
    return error.param;
  };
  EXPECT_EQ(named("max_tokens"), "max_output_tokens");
  EXPECT_EQ(named("messages[2].role"), "input[2].role");
  EXPECT_EQ(named("messages_of"), "messages_of");
  EXPECT_EQ(named("seed"), "seed");
}

TEST(ChatForms, ResponsesAskForLogProbabilitiesInTwoWays) {
  EXPECT_EQ(Responses(R"({"input":"x","include":["message.output_text.logprobs"]})"),
            R"({"logprobs":true,"messages":[{"role":"user","content":"x"}]})");
  EXPECT_THAT(Responses(R"({"input":"x","top_logprobs":2})"), HasSubstr(R"("logprobs":true,"top_logprobs":2)"));
  EXPECT_THAT(Responses(R"({"input":"x","include":["reasoning.encrypted_content"],"top_logprobs":0})"),
              testing::Not(HasSubstr("logprobs")));
}

TEST(ChatForms, FieldsOfChatsAreTakenOver) {
  EXPECT_EQ(Responses(R"({"input":"x","top_k":4,"logit_bias":{"1":2},"n":1,"user":"u","store":false,"suffix":null})"),
            R"({"messages":[{"role":"user","content":"x"}],"top_k":4,"logit_bias":{"1":2},"n":1,"user":"u"})");
  EXPECT_THAT(Responses(R"({"input":"x","n":2})"), HasSubstr("n: is not supported here"));
  EXPECT_EQ(Messages(R"({"messages":[],"min_p":0.5,"metadata":{}})"), R"({"messages":[],"min_p":5E-1})");
  EXPECT_THAT(Messages(R"({"messages":[],"logprobs":true})"), HasSubstr("logprobs: is not supported here"));
}

TEST(ChatForms, WhatResponsesCannotHonourIsNamed) {
  EXPECT_THAT(Responses(R"({"input":"x","previous_response_id":"r"})"), HasSubstr("previous_response_id: is not"));
  EXPECT_THAT(Responses(R"({"input":"x","store":true})"), HasSubstr("store: responses are not stored"));
  EXPECT_THAT(Responses(R"({"input":"x","truncation":"auto"})"), HasSubstr("truncation"));
  EXPECT_THAT(Responses(R"({"input":"x","metadata":[1]})"), HasSubstr("metadata: expected an object"));
  EXPECT_THAT(Responses(R"({"input":"x","text":"y"})"), HasSubstr("text: expected an object"));
  EXPECT_THAT(Responses(R"({"input":"x","text":{"verbosity":"low"}})"), HasSubstr("without text.verbosity"));
  EXPECT_THAT(Responses(R"({"input":[{"type":"item_reference","id":"a"}]})"), HasSubstr("item_reference"));
  EXPECT_THAT(Responses(R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})"), HasSubstr("input_image"));
  EXPECT_THAT(Responses(R"({"input":"x","tools":[{"type":"web_search"}]})"), HasSubstr("without tools.web_search"));
  EXPECT_THAT(Responses(R"({"input":"x","tools":[{"type":"custom"}]})"), HasSubstr("tools of type \"custom\""));
  EXPECT_THAT(Responses("{}"), HasSubstr("input: is missing"));
}

}  // namespace
}  // namespace penstock::server
