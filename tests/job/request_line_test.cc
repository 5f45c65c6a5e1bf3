// Proves that every documented form of a line is read as intended. Every wrong field gives one error that names the
// field. Only requests are accepted. Arbitrary bytes never crash the parser.
#include "penstock/job/input/request_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "penstock/base/limits.h"

namespace penstock {
namespace {

using testing::HasSubstr;

RequestLine ParseGood(const std::string& text) {
  RequestLine line = ParseRequestLine(text, 7);
  EXPECT_FALSE(line.error.has_value()) << text << ": " << line.error->message;
  return line;
}

std::string Chat(const std::string& fields) {
  return R"({"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", )" + fields +
         "}}";
}
std::string Text(const std::string& fields) {
  return R"({"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {)" + fields + "}}";
}

TEST(RequestLine, Forms) {
  const RequestLine chat =
      ParseGood(Chat(R"("messages": [{"role": "system", "content": "s"}, {"role": "user", "content":
      [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": null}])"));
  EXPECT_EQ(chat.id, "c");
  EXPECT_EQ(chat.model, "m");
  EXPECT_EQ(chat.request.kind, RequestKind::kChat);
  EXPECT_EQ(json::serialize(chat.request.chat.messages.at(1).at("content")),
            R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])");
  EXPECT_FALSE(chat.request.chat.messages.at(2).as_object().contains("content"));
  EXPECT_EQ(ParseGood(Text(R"("prompt": "once")")).request.prompt, "once");
  EXPECT_EQ(ParseGood(Text(R"("prompt": [1, 2, 3])")).request.prompt_ids, (std::vector<TokenId>{1, 2, 3}));
  const RequestLine turns =
      ParseGood(R"({"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": []})");
  EXPECT_EQ(turns.id, "81");
  EXPECT_EQ(turns.request.turns, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(ParseGood(R"({"prompt": "x"})").id, "line-7");
  EXPECT_EQ(ParseGood(R"({"id": null, "prompt": "x", "temperature": null})").id, "line-7");
  EXPECT_EQ(ParseGood(Chat(R"("messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}])"))
                .request.chat.tools,
            *ParseJson(R"([{"type": "function"}])", Fault::kInput));
}

TEST(RequestLine, SamplingFields) {
  const SamplingOverrides o =
      ParseGood(R"({"prompt": "x", "temperature": 0, "top_k": -1, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.5,
                    "seed": 18446744073709551615, "max_tokens": 3, "stop": "end", "ignore_eos": true, "logprobs": 2})")
          .request.sampling;
  EXPECT_EQ(o.temperature, 0.0);
  EXPECT_EQ(o.top_k, 0);
  EXPECT_EQ(o.top_p, 0.5);
  EXPECT_EQ(o.seed, UINT64_MAX);
  EXPECT_EQ(o.max_tokens, 3);
  EXPECT_EQ(o.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(o.ignore_eos, true);
  EXPECT_EQ(o.logprobs, 2);
  const RequestLine more = ParseGood(
      R"({"prompt": "x", "presence_penalty": 0.5, "frequency_penalty": -1, "logit_bias": {"5": -1.5, "7": 2}, "n": 3,
          "min_tokens": 4.0, "stop_token_ids": [9], "include_stop_str_in_output": true, "bad_words": ["no", "never"],
          "use_beam_search": false, "suffix": null, "category": "writing"})");
  EXPECT_EQ(more.request.sampling.presence_penalty, 0.5);
  EXPECT_EQ(more.request.sampling.frequency_penalty, -1);
  EXPECT_THAT(*more.request.sampling.logit_bias, testing::ElementsAre(testing::Pair(5, -1.5f), testing::Pair(7, 2.0f)));
  EXPECT_EQ(more.request.sampling.min_tokens, 4);
  EXPECT_THAT(*more.request.sampling.stop_token_ids, testing::ElementsAre(9));
  EXPECT_EQ(more.request.sampling.includes_stop, true);
  EXPECT_THAT(more.request.bad_words, testing::ElementsAre("no", "never"));
  EXPECT_EQ(more.request.num_answers, 3);
  EXPECT_EQ(ParseGood(R"({"prompt": "x", "max_tokens": 4.0})").request.sampling.max_tokens, 4);
  EXPECT_EQ(ParseGood(R"({"prompt": "x", "max_tokens": 3, "max_completion_tokens": 4})").request.sampling.max_tokens,
            4);
  EXPECT_EQ(ParseGood(R"({"prompt": "x", "logprobs": true, "top_logprobs": 5})").request.sampling.logprobs, 5);
  EXPECT_EQ(ParseGood(R"({"prompt": "x", "logprobs": true})").request.sampling.logprobs, 0);
  EXPECT_EQ(ParseGood(R"({"prompt": "x", "logprobs": false})").request.sampling.logprobs, -1);
  EXPECT_EQ(ParseGood(R"({"prompt": "x"})").request.sampling.logprobs, std::nullopt);
  const RequestLine several = ParseGood(R"({"prompt": "x", "n": 2, "logprobs": 1})");
  EXPECT_EQ(several.request.num_answers, 2);
  EXPECT_EQ(several.request.sampling.logprobs, 1);
  SamplingParams base;
  base.top_p = 0.25;
  SamplingOverrides overrides;
  overrides.temperature = 0.5;
  overrides.max_tokens = 9;
  const SamplingParams over = Overlay(base, overrides);
  EXPECT_EQ(over.temperature, 0.5);
  EXPECT_EQ(over.top_p, 0.25);
  EXPECT_EQ(over.max_tokens, 9);
}

TEST(RequestLine, FieldsThatMeanNothingAreNamed) {
  const RequestLine plain = ParseGood(
      R"({"id": "a", "prompt": "x", "user": "me", "tool_choice": "auto", "label": 3, "top_k": 2, "suffix": "",
          "use_beam_search": false, "category": null})");
  EXPECT_THAT(plain.ignored, testing::UnorderedElementsAre("user", "tool_choice", "label"));
  const RequestLine chat = ParseGood(Chat(
      R"("messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}], "tool_choice": "auto",
         "metadata": {}, "max_tokens": 3)"));
  EXPECT_THAT(chat.ignored, testing::ElementsAre("metadata"));
  EXPECT_THAT(ParseGood(R"({"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "x"}, "note": 1})").ignored,
              testing::ElementsAre("note"));
}

TEST(RequestLine, MessagesAreAsTransformersPassesThem) {
  const auto message = [](const std::string& fields) {
    const std::string text = R"({"messages": [{"role": "assistant", )" + fields + "}]}";
    return json::serialize(ParseGood(text).request.chat.messages.at(0));
  };
  EXPECT_EQ(message(R"("content": null, "tool_calls": null, "name": "n")"), R"({"role":"assistant","name":"n"})");
  for (const std::string name : {"reasoning_content", "thinking", "reasoning"}) {
    const json::value value = *ParseJson(message("\"content\": \"c\", \"" + name + "\": \"r\""), Fault::kInput);
    EXPECT_EQ(value.at("reasoning_content").as_string(), "r") << name;
    EXPECT_EQ(value.at("thinking").as_string(), "r") << name;
  }
  const json::value both = *ParseJson(message(R"("thinking": "t", "reasoning_content": "r")"), Fault::kInput);
  EXPECT_EQ(both.at("thinking").as_string(), "t");
  EXPECT_EQ(both.at("reasoning_content").as_string(), "r");
}

TEST(RequestLine, VariablesOfTheTemplate) {
  const std::string fields = R"("reasoning_effort": "low", "documents": [{"text": "d"}],
                                "chat_template_kwargs": {"enable_thinking": false})";
  const json::value variables = *ParseJson(
      R"({"reasoning_effort": "low", "enable_thinking": false, "documents": [{"text": "d"}]})", Fault::kInput);
  const std::string user = R"("messages": [{"role": "user", "content": "x"}], )";
  EXPECT_EQ(ParseGood(Chat(user + fields)).request.chat.variables, variables);
  EXPECT_EQ(ParseGood("{" + user + fields + "}").request.chat.variables, variables);
  const JobRequest turns = ParseGood(R"({"turns": ["x"], "tools": [{}], )" + fields + "}").request;
  EXPECT_EQ(turns.chat.variables, variables);
  EXPECT_EQ(json::serialize(turns.chat.tools), "[{}]");
  EXPECT_EQ(ParseGood("{" + user + R"("add_generation_prompt": true, "continue_final_message": false,
      "response_format": {"type": "text"}, "presence_penalty": 0, "logit_bias": {}, "functions": null})")
                .request.chat.variables,
            json::object());
}

TEST(RequestLine, AnAnswerMayContinueTheLastMessage) {
  const std::string messages =
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It"}])";
  EXPECT_FALSE(ParseGood(messages + "}").request.chat.continues_last);
  for (const std::string more : {"", R"(, "add_generation_prompt": false)"}) {
    EXPECT_TRUE(ParseGood(messages + more + R"(, "continue_final_message": true})").request.chat.continues_last);
  }
}

struct BadCase {
  std::string text;
  std::string code;
  std::string param;
  std::string message;
};

TEST(RequestLine, EveryWrongFieldIsNamed) {
  const std::string user = R"("messages": [{"role": "user", "content": "x"}], )";
  const BadCase cases[] = {
      {"", "invalid_json", "", "found nothing"},
      {"{", "invalid_json", "", "column"},
      {"{\"id\": \"\xFF\"}", "invalid_json", "", "column"},
      {R"({"id": 1, "id": 2})", "invalid_json", "", "twice"},
      {R"({"prompt": "x"} {})", "invalid_json", "", "column"},
      {"[1]", "invalid_request", "", "found array"},
      {std::string(100, '[') + std::string(100, ']'), "invalid_json", "", "column"},
      {R"({"custom_id": 1.5, "prompt": "x"})", "invalid_id", "custom_id", "found number"},
      {R"({"id": {}, "prompt": "x"})", "invalid_id", "id", "found object"},
      {R"({"id": "", "prompt": "x"})", "invalid_id", "id", "found 0"},
      {R"({"id": ")" + std::string(1 << 20, 'i') + R"(", "prompt": "x"})", "invalid_id", "id", "found 1048576"},
      {"{}", "invalid_request", "", "found none"},
      {R"({"prompt": "x", "turns": ["y"]})", "invalid_request", "", "found several"},
      {R"({"prompt": []})", "invalid_request", "prompt", "empty"},
      {R"({"prompt": 5})", "invalid_request", "prompt", "found integer"},
      {R"({"prompt": ["a", "b"]})", "unsupported", "prompt", "its own line"},
      {R"({"prompt": [-1]})", "invalid_request", "prompt", "found -1"},
      {R"({"prompt": [4000000000]})", "invalid_request", "prompt", "found 4000000000"},
      {R"({"prompt": [true]})", "invalid_request", "prompt", "found boolean"},
      {R"({"turns": []})", "invalid_request", "turns", "at least one"},
      {R"({"turns": [1]})", "invalid_request", "turns", "strings"},
      {R"({"messages": []})", "invalid_request", "messages", "at least one"},
      {R"({"messages": [3]})", "invalid_request", "messages[0]", "found integer"},
      {R"({"messages": [{"content": "x"}]})", "invalid_request", "messages[0]", "role"},
      {R"({"messages": [{"role": "user"}]})", "invalid_request", "messages[0]", "missing"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "invalid_request", "messages[0]", "found integer"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "invalid_request", "messages[0]",
       "image_url"},
      {R"({"url": "/v1/embeddings", "body": {}})", "invalid_request", "url", "/v1/embeddings"},
      {R"({"url": "/v1/completions"})", "invalid_request", "body", "object"},
      {R"({"method": "GET", "url": "/v1/completions", "body": {}})", "invalid_request", "method", "GET"},
      {Chat(R"("model": 1)"), "invalid_json", "", "twice"},
      {Chat(user + R"("n": 129)"), "invalid_request", "body.n", "1 to 128"},
      {Chat(user + R"("n": 2, "best_of": 4)"), "unsupported", "body.best_of", "value of n"},
      {R"({"turns": ["x"], "n": 2})", "unsupported", "n", "its own line"},
      {Chat(user + R"("stream": true)"), "unsupported", "body.stream", "streams"},
      {Chat(user + R"("response_format": {"type": "xml"})"), "unsupported", "body.response_format", "json_schema"},
      {Chat(user + R"("response_format": {"type": "json_schema"})"), "invalid_request", "body.response_format",
       "json_schema.schema"},
      {Chat(user + R"("presence_penalty": 2.5)"), "invalid_request", "body.presence_penalty", "at most 2"},
      {Chat(user + R"("logit_bias": {"5": 101})"), "invalid_request", "body.logit_bias", "-100 to 100"},
      {Chat(user + R"("logit_bias": {"five": 1})"), "invalid_request", "body.logit_bias", "\"five\""},
      {Chat(user + R"("logit_bias": [5])"), "invalid_request", "body.logit_bias", "found array"},
      {Chat(user + R"("bad_words": [""])"), "invalid_request", "body.bad_words", "1 to"},
      {Chat(user + R"("stop_token_ids": [1.5])"), "invalid_request", "body.stop_token_ids", "found 1.5"},
      {Chat(user + R"("min_tokens": -1)"), "invalid_request", "body.min_tokens", "found -1"},
      {Chat(user + R"("guided_json": 3)"), "invalid_request", "body.guided_json", "JSON schema"},
      {Chat(user + R"("guided_choice": [])"), "invalid_request", "body.guided_choice", "at least one"},
      {Chat(user + R"("guided_regex": "a", "grammar": "root ::= [a]")"), "invalid_request", "body.grammar",
       "guided_regex"},
      {Chat(user + R"("structured_outputs": {"structural_tag": 1})"), "unsupported", "body.structured_outputs",
       "regex"},
      {R"({"prompt": "x", "choices": ["a"], "guided_regex": "a"})", "unsupported", "guided_regex", "only scored"},
      {R"({"prompt": "x", "use_beam_search": true})", "unsupported", "use_beam_search", "leave it out"},
      {R"({"prompt": "x", "max_new_tokens": 5})", "unsupported", "max_new_tokens", "use max_tokens"},
      {R"({"prompt": "x", "n_predict": 5})", "unsupported", "n_predict", "use max_tokens"},
      {R"({"prompt": "x", "max_token": 5})", "unsupported", "max_token", "did you mean max_tokens?"},
      {R"({"prompt": "x", "temprature": 5})", "unsupported", "temprature", "did you mean temperature?"},
      {R"({"prompt": "x", "max_tokesn": 5})", "unsupported", "max_tokesn", "did you mean max_tokens?"},
      {R"({"prompt": "x", "sede": 5})", "unsupported", "sede", "did you mean seed?"},
      {R"({"prompt": "x", "choices": ["a"], "lable": 0})", "unsupported", "lable", "did you mean label?"},
      {R"({"promtp": "x"})", "invalid_request", "", "did you mean prompt for promtp?"},
      {R"({"prompt": "x", "response_format": "json_object"})", "invalid_request", "response_format",
       "expected an object such as {\"type\": \"json_object\"}, found string"},
      {R"({"prompt": "x", "response_format": {"type": "json"}})", "unsupported", "response_format", "found \"json\""},
      {R"({"prompt": "x", "max_tokens": 1.5})", "invalid_request", "max_tokens", "found 1.5"},
      {R"({"messages": [{"role": "usr", "content": "x"}]})", "invalid_request", "messages[0]",
       "unknown role \"usr\"; did you mean user?"},
      {R"({"messages": [{"role": "System", "content": "x"}]})", "invalid_request", "messages[0]",
       "did you mean system?"},
      {R"({"custom_id": "a", "body": {"prompt": "x"}})", "invalid_request", "url", "or /v1/completions, found none"},
      {R"({"url": "/v1/completions", "temperature": 1, "body": {"prompt": "x"}})", "unsupported", "temperature",
       "beside \"body\""},
      {R"({"prompt": "x", "temprature": 5, "max_token": 5, "top_p": "x", "n_predict": 5})", "unsupported", "n_predict",
       "use max_tokens. Also temprature: unknown field; did you mean temperature? Also max_token: unknown field; "
       "did you mean max_tokens? Also top_p: expected a number, found string"},
      {Chat(user + R"("top_logprobs": 3)"), "invalid_request", "body.top_logprobs", "needs"},
      {Chat(user + R"("tools": [{"type": "custom", "custom": {"name": "f"}}])"), "unsupported", "body.tools", "custom"},
      {Chat(user + R"("tools": [{}], "tool_choice": "any")"), "invalid_request", "body.tool_choice", "auto"},
      {Chat(user + R"("tool_choice": "required")"), "invalid_request", "body.tool_choice", "no tools"},
      {Chat(user + R"("tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}})"), "invalid_request",
       "body.tool_choice", "no tools"},
      {Chat(user + R"("tools": [{"name": "f"}], "tool_choice": {"type": "function", "function": {"name": "g"}})"),
       "invalid_request", "body.tool_choice", "there is no tool g"},
      {Chat(user + R"("echo": true)"), "unsupported", "body.echo", "only completions"},
      {R"({"turns": ["x"], "prompt_logprobs": 1})", "unsupported", "prompt_logprobs", "several prompts"},
      {R"({"prompt": "x", "prompt_logprobs": 1, "n": 2})", "unsupported", "n", "no prompt_logprobs"},
      {R"({"prompt": "x", "prompt_logprobs": 21})", "invalid_request", "prompt_logprobs", "0 to 20"},
      {R"({"prompt": "x", "echo": true, "max_tokens": 0, "n": 2})", "unsupported", "n", "no answers"},
      {R"({"prompt": "x", "max_tokens": 0})", "invalid_request", "max_tokens", "1 to"},
      {R"({"prompt": "x", "system": "s"})", "unsupported", "system", "messages"},
      {R"({"messages": [{"role": "system", "content": "a"}], "system": "b"})", "invalid_request", "system",
       "one of the two"},
      {Text(R"("prompt": "x", "suffix": "s")"), "unsupported", "body.suffix", "leave it out"},
      {R"({"turns": ["x"], "echo": true})", "unsupported", "echo", "only completions"},
      {R"({"prompt": "x", "suffix": "s"})", "unsupported", "suffix", "leave it out"},
      {R"({"prompt": "x", "frequency_penalty": -3})", "invalid_request", "frequency_penalty", "-2 or more"},
      {R"({"prompt": "x", "tools": [{}]})", "unsupported", "tools", "messages"},
      {R"({"prompt": "x", "reasoning_effort": "low"})", "unsupported", "reasoning_effort", "messages"},
      {R"({"turns": ["x"], "response_format": {"type": "xml"}})", "unsupported", "response_format", "text"},
      {Chat(user + R"("tools": ["f"])"), "invalid_request", "body.tools", "found string"},
      {Chat(user + R"("tools": {})"), "invalid_request", "body.tools", "found object"},
      {Chat(user + R"("functions": [{"name": "f"}])"), "unsupported", "body.functions", "tools"},
      {Chat(user + R"("documents": ["d"])"), "invalid_request", "body.documents", "list of objects"},
      {Chat(user + R"("reasoning_effort": 1)"), "invalid_request", "body.reasoning_effort", "found integer"},
      {Chat(user + R"("chat_template_kwargs": [])"), "invalid_request", "body.chat_template_kwargs", "found array"},
      {Chat(user + R"("chat_template_kwargs": {"bos_token": ""})"), "unsupported", "body.chat_template_kwargs",
       "bos_token"},
      {Chat(user + R"("add_generation_prompt": false)"), "unsupported", "body.add_generation_prompt", "leave it out"},
      {Chat(user + R"("continue_final_message": true)"), "invalid_request", "body.continue_final_message", "assistant"},
      {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}], "continue_final_message": true})",
       "invalid_request", "continue_final_message", "calls no tools"},
      {R"({"messages": [{"role": "assistant", "content": "x"}], "continue_final_message": true,
           "add_generation_prompt": true})",
       "invalid_request", "continue_final_message", "new message"},
      {R"({"messages": [{"role": "assistant", "content": "x"}], "continue_final_message": true,
           "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"})",
       "unsupported", "continue_final_message", "tool_choice"},
      {R"({"turns": ["x"], "continue_final_message": true})", "unsupported", "continue_final_message", "messages"},
      {R"({"prompt": "x", "continue_final_message": true})", "unsupported", "continue_final_message", "messages"},
      {Text(R"("max_tokens": 4)"), "invalid_request", "body.prompt", "missing"},
      {R"({"prompt": "x", "max_tokens": 0})", "invalid_request", "max_tokens", "found 0"},
      {R"({"prompt": "x", "max_tokens": -1})", "invalid_request", "max_tokens", "found -1"},
      {R"({"prompt": "x", "max_tokens": 1e18})", "invalid_request", "max_tokens", "found 1e+18"},
      {R"({"prompt": "x", "max_tokens": 1000000000000000000})", "invalid_request", "max_tokens",
       "found 1000000000000000000"},
      {R"({"prompt": "x", "max_tokens": "5"})", "invalid_request", "max_tokens", "found string"},
      {R"({"prompt": "x", "temperature": -0.1})", "invalid_request", "temperature", "0 or more"},
      {R"({"prompt": "x", "temperature": "hot"})", "invalid_request", "temperature", "found string"},
      {R"({"prompt": "x", "top_p": 0})", "invalid_request", "top_p", "more than 0"},
      {R"({"prompt": "x", "top_p": 1.1})", "invalid_request", "top_p", "at most 1"},
      {R"({"prompt": "x", "top_k": -2})", "invalid_request", "top_k", "found -2"},
      {R"({"prompt": "x", "min_p": 2})", "invalid_request", "min_p", "found 2"},
      {R"({"prompt": "x", "repetition_penalty": 0})", "invalid_request", "repetition_penalty", "0.001 or more"},
      {R"({"prompt": "x", "seed": 1.5})", "invalid_request", "seed", "found 1.5"},
      {R"({"prompt": "x", "stop": 5})", "invalid_request", "stop", "found integer"},
      {R"({"prompt": "x", "stop": [""]})", "invalid_request", "stop", "found 0"},
      {R"({"prompt": "x", "stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]})",
       "invalid_request", "stop", "found 17"},
      {R"({"prompt": "x", "ignore_eos": 1})", "invalid_request", "ignore_eos", "found integer"},
      {R"({"prompt": "x", "logprobs": 21})", "invalid_request", "logprobs", "found 21"},
      {R"({"prompt": "x", "choices": []})", "invalid_request", "choices", "a list of 1 to 1024"},
      {R"({"prompt": "x", "choices": "a"})", "invalid_request", "choices", "a list of 1 to 1024"},
      {R"({"prompt": "x", "choices": ["a", ""]})", "invalid_request", "choices", "none of them empty"},
      {R"({"prompt": "x", "choices": [[]]})", "invalid_request", "choices", "none of them empty"},
      {R"({"prompt": "x", "choices": [1]})", "invalid_request", "choices", "found integer"},
      {R"({"prompt": "x", "choices": [[-1]]})", "invalid_request", "choices", "found -1"},
      {R"({"turns": ["x"], "choices": ["a"]})", "unsupported", "choices", "turns have none"},
      {R"({"prompt": "x", "choices": ["a"], "n": 2})", "unsupported", "n", "is only scored"},
      {R"({"prompt": "x", "choices": ["a"], "n": 0})", "invalid_request", "n", "found 0"},
      {R"({"prompt": "x", "choices": ["a"], "echo": true})", "unsupported", "echo", "is only scored"},
      {R"({"prompt": "x", "choices": ["a"], "prompt_logprobs": 1})", "unsupported", "prompt_logprobs", "only"},
      {R"({"prompt": "x", "choices": [[1], [2]], "label": " "})", "invalid_request", "label", "one of the choices"},
      {R"({"prompt": "x", "choices": ["a"], "label": 1})", "invalid_request", "label", "found 1"},
      {R"({"prompt": "x", "choices": ["a"], "label": "b"})", "invalid_request", "label", "one of the choices"},
      {R"({"prompt": "x", "choice": ["a"]})", "unsupported", "choice", "did you mean choices"},
  };
  for (const BadCase& c : cases) {
    const RequestLine line = ParseRequestLine(c.text, 7);
    ASSERT_TRUE(line.error.has_value()) << c.text;
    EXPECT_EQ(line.error->code, c.code) << c.text.substr(0, 200);
    EXPECT_EQ(line.error->param, c.param) << c.text.substr(0, 200);
    EXPECT_THAT(line.error->message, HasSubstr(c.message)) << c.text.substr(0, 200);
    EXPECT_EQ(line.id.has_value(), c.code != "invalid_id" && c.code != "invalid_json" && c.text != "[1]")
        << c.text.substr(0, 200);
  }
}

TEST(RequestLine, ThePromptIsShownWhenAskedFor) {
  const JobRequest echo =
      ParseRequestLine(R"({"prompt": "x", "echo": true, "logprobs": 2, "max_tokens": 0})", 1).request;
  EXPECT_TRUE(echo.echoes_prompt);
  EXPECT_EQ(echo.sampling.prompt_logprobs, 2);
  EXPECT_EQ(echo.sampling.max_tokens, 0);
  EXPECT_EQ(echo.shown_prompt_logprobs, -1);
  const JobRequest both =
      ParseRequestLine(R"({"prompt": "x", "echo": true, "logprobs": 2, "prompt_logprobs": 1})", 1).request;
  EXPECT_EQ(both.sampling.prompt_logprobs, 2);
  EXPECT_EQ(both.shown_prompt_logprobs, 1);
  const JobRequest text = ParseRequestLine(R"({"prompt": "x", "echo": true})", 1).request;
  EXPECT_FALSE(text.sampling.prompt_logprobs.has_value());
  EXPECT_EQ(ParseRequestLine(R"({"turns": ["x"], "system": "s"})", 1).request.system, "s");
}

TEST(RequestLine, ChoicesAndTheRightOne) {
  const auto label = [](const std::string& text) {
    const RequestLine line =
        ParseRequestLine(R"({"prompt": "x", "choices": [" a", "a", [7, 8]], "label": )" + text + "}", 1);
    EXPECT_FALSE(line.error.has_value()) << text;
    EXPECT_EQ(line.request.choices.size(), 3u);
    return line.request.label;
  };
  EXPECT_EQ(label("2"), 2);
  EXPECT_EQ(label(R"("a")"), 1);
  EXPECT_EQ(label(R"(" a")"), 0);
  EXPECT_EQ(label(R"("a ")"), 0);  // without the spaces, the first one
  EXPECT_EQ(label("null"), std::nullopt);
  const JobRequest chat =
      ParseRequestLine(R"({"messages": [{"role": "user", "content": "x"}], "choices": [[7, 8]], "max_tokens": 0})", 1)
          .request;
  EXPECT_EQ(chat.choices[0].ids, std::vector<TokenId>({7, 8}));
  // Without choices the field means nothing.
  EXPECT_FALSE(ParseRequestLine(R"({"prompt": "x", "label": "b"})", 1).error.has_value());
  EXPECT_FALSE(ParseRequestLine(R"({"prompt": "x", "labels": ["b"]})", 1).error.has_value());
}

TEST(RequestLine, TooLongAndBlank) {
  EXPECT_EQ(TooLongLine(99 << 20).error->code, "line_too_long");
  EXPECT_TRUE(IsBlank(" \t\r"));
  EXPECT_FALSE(IsBlank(" x"));
}

TEST(RequestLine, BytesNeverCrash) {
  const std::string good = Chat(R"("messages": [{"role": "user", "content": "x"}], "stop": ["a"], "logprobs": true)");
  EXPECT_TRUE(
      rc::check("any change of a byte gives a request or an error", [&](uint16_t place, uint8_t byte, uint16_t cut) {
        std::string text = good;
        text[place % text.size()] = static_cast<char>(byte);
        if (cut % 3 == 0) text.resize(cut % text.size());
        const RequestLine line = ParseRequestLine(text, 1);
        if (line.error.has_value()) {
          RC_ASSERT(!line.error->code.empty() && !line.error->message.empty());
        } else {
          RC_ASSERT(line.id.has_value() && !line.request.chat.messages.empty());
        }
      }));
}

TEST(RequestLine, IntegersRoundTrip) {
  EXPECT_TRUE(rc::check("every max_tokens in range is read, every other one refused", [](int64_t n) {
    const RequestLine line = ParseRequestLine(fmt::format(R"({{"prompt": "x", "max_tokens": {}}})", n), 1);
    RC_ASSERT(line.error.has_value() == (n < 1 || n > kMaxContext));
    if (!line.error.has_value()) RC_ASSERT(line.request.sampling.max_tokens == n);
  }));
}

TEST(RequestLineTest, ReadsOutputFormats) {
  using Kind = OutputFormat::Kind;
  const auto format = [](const std::string& fields) {
    const RequestLine line = ParseRequestLine(R"({"prompt": "x", )" + fields + "}", 1);
    EXPECT_FALSE(line.error.has_value()) << line.error->message;
    return line.request.format.has_value() ? line.request.format->format : OutputFormat{Kind::kJson, "none"};
  };
  EXPECT_EQ(format(R"("response_format": {"type": "text"})"), (OutputFormat{Kind::kJson, "none"}));
  EXPECT_EQ(format(R"("response_format": {"type": "json_object"})"), (OutputFormat{Kind::kJson, ""}));
  EXPECT_EQ(format(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
                     "schema": {"type": "null"}}})"),
            (OutputFormat{Kind::kJsonSchema, R"({"type":"null"})"}));
  EXPECT_EQ(format(R"("guided_json": "{\"type\": 1}")"), (OutputFormat{Kind::kJsonSchema, R"({"type": 1})"}));
  EXPECT_EQ(format(R"("json_schema": {"a": 1})"), (OutputFormat{Kind::kJsonSchema, R"({"a":1})"}));
  EXPECT_EQ(format(R"("structured_outputs": {"regex": "a+", "json": null})"), (OutputFormat{Kind::kRegex, "a+"}));
  EXPECT_EQ(format(R"("structured_outputs": {"json_object": true})"), (OutputFormat{Kind::kJson, ""}));
  EXPECT_EQ(format(R"("grammar": "root ::= [a]")"), (OutputFormat{Kind::kGrammar, "root ::= [a]"}));
  EXPECT_EQ(format(R"("guided_choice": ["a\"b", "c\n\\"])"),
            (OutputFormat{Kind::kGrammar, R"(root ::= "a\"b" | "c\x0a\\")"}));
}

}  // namespace
}  // namespace penstock
