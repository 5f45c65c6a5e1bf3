// Proves that result lines are valid UTF-8 JSON in OpenAI's batch format for any answer of the engine, and that their
// ids identify the job and the line.
#include "penstock/job/result_line.h"

#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "penstock/base/text.h"

namespace penstock {
namespace {

std::string ByteToken(TokenId id, bool) { return std::string(1, static_cast<char>(id)); }

json::value Parse(const std::string& line) {
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const absl::StatusOr<json::value> value = ParseJson(line, Fault::kInternal);
  EXPECT_TRUE(value.ok()) << line;
  return value.ok() ? *value : json::value();
}

TEST(ResultId, LeadsBack) {
  EXPECT_TRUE(rc::check("line of id", [](uint64_t digest, uint32_t number) {
    const int64_t line = static_cast<int64_t>(number) + 1;
    const std::string id = ResultId(digest, line);
    RC_ASSERT(id.size() == 26u);
    RC_ASSERT(LineOfResultId(id, digest) == line);
    RC_ASSERT(LineOfResultId(id, digest + 1) == (line > 1 ? std::optional<int64_t>(line - 1) : std::nullopt));
  }));
  for (const char* bad :
       {"", "batch_req_", "batch_req_123", "batch_req_000000000000000G", "batch_req_00000000000000000", "x"}) {
    EXPECT_FALSE(LineOfResultId(bad, 0).has_value()) << bad;
  }
}

RequestResult Example(RequestKind kind) {
  RequestResult result;
  result.kind = kind;
  result.model = "demo";
  result.choices.resize(1);
  result.choices[0].completion.text = result.choices[0].answer.content = "hello";
  result.choices[0].completion.finish_reason = FinishReason::kLength;
  result.prompt_tokens = 3;
  result.completion_tokens = 2;
  return result;
}

TEST(FormatResult, Completion) {
  EXPECT_EQ(
      FormatResult({0, 1, "a"}, Example(RequestKind::kCompletion), ByteToken),
      R"({"id":"batch_req_9e3779b97f4a7c15","custom_id":"a","response":{"status_code":200,)"
      R"("request_id":"req_9e3779b97f4a7c15","body":{"id":"cmpl-9e3779b97f4a7c15","object":"text_completion","created":0,)"
      R"("model":"demo","choices":[{"index":0,"text":"hello","logprobs":null,"finish_reason":"length"}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}},"error":null})");
}

TEST(FormatResult, ChatAndTurns) {
  RequestResult result = Example(RequestKind::kTurns);
  result.answers = {"first \xFF", "hello"};
  const json::value line = Parse(FormatResult({5, 1, "a"}, result, ByteToken));
  const json::value& body = line.at("response").at("body");
  EXPECT_EQ(body.at("object").as_string(), "chat.completion");
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role").as_string(), "assistant");
  EXPECT_EQ(choice.at("message").at("content").as_string(), "hello");
  EXPECT_EQ(choice.at("turns").at(0).as_string(), "first \xEF\xBF\xBD");
  const json::value chat = Parse(FormatResult({5, 1, "a"}, Example(RequestKind::kChat), ByteToken));
  EXPECT_EQ(chat.at("response").at("body").at("choices").at(0).as_object().if_contains("turns"), nullptr);
}

TEST(FormatResult, UsageOfChatsCountsReasoning) {
  RequestResult result = Example(RequestKind::kChat);
  result.reasoning_tokens = 1;
  const json::object usage = UsageOf(std::vector{result, result});
  EXPECT_EQ(json::serialize(usage), R"({"prompt_tokens":6,"completion_tokens":4,"total_tokens":10,)"
                                    R"("completion_tokens_details":{"reasoning_tokens":2}})");
}

TEST(FormatResult, IdsOfCallsOccurOnceInAJob) {
  RequestResult result = Example(RequestKind::kChat);
  result.choices[0].answer.tool_calls.resize(3);
  std::set<std::string> ids;
  for (const int64_t line_number : {int64_t{1}, int64_t{2}, int64_t{62}, int64_t{1} << 32}) {
    const json::value line = Parse(FormatResult({5, line_number, "a"}, result, ByteToken));
    for (const json::value& call :
         line.at("response").at("body").at("choices").at(0).at("message").at("tool_calls").as_array()) {
      const std::string id(call.at("id").as_string());
      EXPECT_EQ(id.size(), 9u);
      EXPECT_EQ(id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), id.npos) << id;
      EXPECT_TRUE(ids.insert(id).second) << id;
    }
  }
}

TEST(FormatResult, Logprobs) {
  RequestResult result = Example(RequestKind::kChat);
  result.logprobs = 2;
  result.choices[0].completion.logprobs = {
      {{0xC3, -0.25}, {{0xC3, -0.25}, {'x', -std::numeric_limits<double>::infinity()}}},
      {{0xA9, std::nan("")}, {{'y', -1}, {'y', -2}}}};
  const json::value chat = Parse(FormatResult({5, 1, "a"}, result, ByteToken));
  const json::value& content = chat.at("response").at("body").at("choices").at(0).at("logprobs").at("content");
  EXPECT_EQ(content.at(0).at("token").as_string(), "\xEF\xBF\xBD");
  EXPECT_EQ(content.at(0).at("bytes").at(0).as_int64(), 0xC3);
  EXPECT_EQ(content.at(0).at("logprob").as_double(), -0.25);
  EXPECT_EQ(content.at(0).at("top_logprobs").at(1).at("logprob").as_double(), -9999);
  EXPECT_EQ(content.at(1).at("logprob").as_double(), -9999);

  result.kind = RequestKind::kCompletion;
  const json::value text = Parse(FormatResult({5, 1, "a"}, result, ByteToken));
  const json::value& logprobs = text.at("response").at("body").at("choices").at(0).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens").as_array().size(), 2u);
  // Both tokens are parts of one character.
  EXPECT_EQ(logprobs.at("tokens").at(0).as_string(), "bytes:\\xc3");
  EXPECT_EQ(logprobs.at("tokens").at(1).as_string(), "bytes:\\xa9");
  EXPECT_EQ(logprobs.at("text_offset").at(1).as_int64(), 0);
  // The chosen token is among the most likely ones, or beside them.
  EXPECT_EQ(logprobs.at("top_logprobs").at(0).at("bytes:\\xc3").as_double(), -0.25);
  EXPECT_EQ(logprobs.at("top_logprobs").at(1).at("bytes:\\xa9").as_double(), -9999);
  EXPECT_EQ(logprobs.at("top_logprobs").at(1).at("y").as_double(), -1);
}

TEST(FormatResult, EchoAndPromptLogprobs) {
  RequestResult result = Example(RequestKind::kCompletion);
  result.logprobs = 1;
  result.echoes_prompt = true;
  result.prompt = "ab";
  result.shown_prompt_logprobs = 2;
  result.choices[0].completion.prompt_logprobs = {{{'a', 0}, {}}, {{'b', -1}, {{'c', -0.5}, {'b', -1}}}};
  result.choices[0].completion.logprobs = {{{'d', -2}, {{'e', -1}}}};
  const json::value line = Parse(FormatResult({5, 1, "a"}, result, ByteToken));
  const json::value& choice = line.at("response").at("body").at("choices").at(0);
  EXPECT_EQ(choice.at("text").as_string(), "abhello");
  EXPECT_EQ(json::serialize(choice.at("logprobs")),
            R"({"tokens":["a","b","d"],"token_logprobs":[null,-1E0,-2E0],)"
            R"("top_logprobs":[null,{"c":-5E-1,"b":-1E0},{"e":-1E0,"d":-2E0}],"text_offset":[0,1,2]})");
  EXPECT_EQ(json::serialize(choice.at("prompt_logprobs")),
            R"([null,{"98":{"logprob":-1E0,"decoded_token":"b"},"99":{"logprob":-5E-1,"decoded_token":"c"}}])");
  result.prompt = "";  // the prompt's tokens show nothing
  const json::value empty = Parse(FormatResult({5, 1, "a"}, result, ByteToken));
  EXPECT_EQ(empty.at("response").at("body").at("choices").at(0).at("logprobs").at("tokens").as_array().size(), 3u);
  result.kind = RequestKind::kChat;
  const json::value chat = Parse(FormatResult({5, 1, "a"}, result, ByteToken));
  EXPECT_EQ(chat.at("response").at("body").at("prompt_logprobs").as_array().size(), 2u);
}

// Like Llama's tokenizer: token 0 shows nothing, and a token that begins the text loses a leading space.
TEST(FormatResult, AGivenChoiceContinuesAText) {
  RequestResult result = Example(RequestKind::kCompletion);
  result.is_scored = true;
  result.logprobs = 0;
  result.choices[0].completion.text = " a b";
  for (const TokenId id : {'a', 'b'}) {
    const TokenLogprobs token{.chosen = {id, -1}, .top = {{id, -1}}};
    result.choices[0].completion.logprobs.push_back(token);
    result.choices[0].score.Add(token);
  }
  // A text's first token loses its space; the choice's does not.
  const TokenText with_space = [](TokenId id, bool begins_text) {
    return (begins_text ? "" : " ") + std::string(1, static_cast<char>(id));
  };
  const json::value line = Parse(FormatResult({0, 1, "a"}, result, with_space));
  const json::value& choice = line.at("response").at("body").at("choices").at(0);
  EXPECT_EQ(json::serialize(choice.at("logprobs").at("tokens")), R"([" a"," b"])");
  EXPECT_EQ(choice.at("logprob").to_number<double>(), -2);
  EXPECT_EQ(choice.at("num_tokens").as_int64(), 2);
  EXPECT_TRUE(choice.at("is_greedy").as_bool());
}

TEST(FormatResult, AnEchoIsOneText) {
  const TokenText token_text = [](TokenId id, bool begins_text) -> std::string {
    const std::string text = id == 0 ? "" : std::string(" ") + static_cast<char>(id);
    return begins_text && !text.empty() ? text.substr(1) : text;
  };
  RequestResult result = Example(RequestKind::kCompletion);
  result.logprobs = 0;
  result.echoes_prompt = true;
  result.prompt = "a b";
  result.choices[0].completion.text = " c";
  result.choices[0].completion.prompt_logprobs = {{{0, 0}, {}}, {{'a', -1}, {}}, {{'b', -1}, {}}};
  result.choices[0].completion.logprobs = {{{'c', -2}, {}}};
  const json::value line = Parse(FormatResult({5, 1, "a"}, result, token_text));
  const json::value& choice = line.at("response").at("body").at("choices").at(0);
  EXPECT_EQ(choice.at("text").as_string(), "a b c");
  EXPECT_EQ(json::serialize(choice.at("logprobs").at("tokens")), R"(["","a"," b"," c"])");
  EXPECT_EQ(json::serialize(choice.at("logprobs").at("text_offset")), "[0,0,1,3]");
}

TEST(FormatResult, AnyBytesGiveValidUtf8) {
  EXPECT_TRUE(rc::check("any text", [](const std::string& text, const std::string& id) {
    RequestResult result = Example(RequestKind::kChat);
    result.choices[0].answer.content = text;
    result.model = id;
    const std::string line = FormatResult({5, 1, ReplaceInvalidUtf8(id)}, result, ByteToken);
    RC_ASSERT(IsUtf8(line));
    RC_ASSERT(line.find('\n') == std::string::npos);
    const absl::StatusOr<json::value> value = ParseJson(line, Fault::kInternal);
    RC_ASSERT(value.ok());
    const json::value& message = value->at("response").at("body").at("choices").at(0).at("message");
    RC_ASSERT(std::string(message.at("content").as_string().c_str(), message.at("content").as_string().size()) ==
              ReplaceInvalidUtf8(text));
  }));
}

TEST(FormatError, Record) {
  const json::value line =
      Parse(FormatError({5, 12, std::nullopt, {"a.jsonl", 3, true}}, {"invalid_json", "a \xFF\nb", ""}));
  EXPECT_TRUE(line.at("custom_id").is_null());
  EXPECT_TRUE(line.at("response").is_null());
  EXPECT_EQ(line.at("error").at("line").as_int64(), 3);
  EXPECT_FALSE(line.at("error").as_object().contains("file"));
  EXPECT_EQ(line.at("error").at("message").as_string(), "a \\xff\\nb");
  EXPECT_EQ(
      Parse(FormatError({5, 12, "x", {"a.jsonl", 3, true}}, {"c", "m", "body.n"})).at("error").at("param").as_string(),
      "body.n");
}

}  // namespace
}  // namespace penstock
