// The families of models whose answers tests and the fuzzer read.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/json.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat/answer/answer_stream.h"
#include "penstock/chat_answer.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/small_tokenizers.h"

namespace penstock::testing_answers {

inline constexpr TokenId kFirstMark = 258;  // behind the ids of ByteLevel()

// Returns a tokenizer of bytes and these special tokens.
inline std::unique_ptr<Tokenizer> NewTokenizer(const std::vector<std::string>& special) {
  json::object file = testing_tokenizers::ByteLevel();
  json::array added;
  for (const std::string& text : special) {
    added.push_back(json::object{{"id", kFirstMark + static_cast<TokenId>(added.size())},
                                 {"content", text},
                                 {"special", true},
                                 {"normalized", false}});
  }
  file["added_tokens"] = std::move(added);
  file["post_processor"] = nullptr;
  auto tokenizer = Tokenizer::FromTokenizerJson(json::serialize(file), "");
  PENSTOCK_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

// Two tools: get_weather(city: string, days: integer, exact: boolean, more: object) and now().
inline constexpr std::string_view kTools = R"([
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
    "more": {"type": "object"}, "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}},
  {"type": "function", "function": {"name": "now"}}])";

// Returns an answer that comes token by token.
inline ChatAnswer ReadTokenByToken(AnswerStream& stream, std::span<const TokenId> ids, const Tokenizer& tokenizer) {
  ChatAnswer answer;
  const auto add = [&](std::vector<AnswerDelta> deltas) {
    for (AnswerDelta& delta : deltas) AddDelta(std::move(delta), answer);
  };
  StreamDecoder decoder(tokenizer);
  for (const TokenId& id : ids) add(stream.Push(std::span(&id, 1), decoder.Push(id)));
  add(stream.Push({}, decoder.Finish()));
  add(stream.Finish());
  return answer;
}

// Returns whether the arguments of all calls are what readers promise: valid JSON in notations that are not JSON, but
// for the last call, which the answer's end may cut off. JSON stands as the model wrote it.
inline bool HasGoodArguments(const AnswerFormat& format, const ChatAnswer& answer) {
  for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
    const std::string& arguments = answer.tool_calls[i].arguments;
    const bool is_checked = i + 1 < answer.tool_calls.size() && (format.has_tags() || format.form == CallForm::kGemma);
    const bool is_good = is_checked                          ? ParseJson(arguments, Fault::kInput).ok()
                         : format.form == CallForm::kHarmony ? true
                                                             : !arguments.empty();
    if (!is_good || !IsUtf8(arguments)) return false;
  }
  return true;
}

// The families: what their templates contain, and which marks are special tokens.
struct Family {
  std::string name;
  std::string literals;
  std::vector<std::string> special;
};

inline const std::vector<Family>& Families() {
  static const auto* const families = new std::vector<Family>{
      {"plain", "<|user|>", {}},
      {"qwen3", "<think> </think> <tool_call>\n{\"name\"", {}},
      {"r1", "</think> nothing opens it", {}},
      {"qwen3-coder", "<tool_call> <function=f> <parameter=p>", {}},
      {"mistral", "[TOOL_CALLS][", {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}},
      {"magistral", "[TOOL_CALLS] [ARGS] [THINK] [/THINK]", {"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"}},
      {"deepseek-v3",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> ```json <think> </think>",
       {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>"}},
      {"kimi",
       "<|tool_call_argument_begin|>",
       {"<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
        "<|tool_calls_section_end|>"}},
      {"glm", "<tool_call> <arg_key></arg_key>\n<arg_value> <think> </think>", {}},
      {"hunyuan3", "<tool_calls> <tool_call> <tool_sep> <arg_key> <think> </think>", {"<tool_call>", "<arg_key>"}},
      {"minimax", "<minimax:tool_call> <think> </think> <response>", {}},
      {"granite", "<|tool_call|>", {"<|tool_call|>"}},
      {"hunyuan", "<tool_calls> <think> </think> <answer>", {}},
      {"ernie", "<tool_call> <think> </think> <response>\n", {}},
      {"solar",
       "<|tool_call:args|> <|think|> <|end|>",
       {"<|think|>", "<|end|>", "<|begin|>", "<|content|>", "<|tool_calls|>", "<|tool_call:begin|>",
        "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", "<|calls|>"}},
      {"gemma",
       "<|channel>thought\n<channel|> <|tool_call>call:",
       {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"}},
      {"gpt-oss",
       "",
       {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>", "<|constrain|>"}},
      {"deepseek-v3.2", "<｜DSML｜function_calls> <think> </think>", {"｜DSML｜"}},
      {"lfm2", "<|im_start|>", {"<|tool_call_start|>", "<|tool_call_end|>"}},
      {"llama", "Respond in the format {\"name\": function name, \"parameters\": dictionary}", {"<|python_tag|>"}},
      {"glm5", "<tool_call> <arg_key></arg_key><arg_value> <think> </think>", {"<tool_call>", "</tool_call>"}},
      {"hunyuan3-opensource",
       std::string("<arg_key{}>") + '\0' + ":opensource" + '\0' + "<tool_sep{}>",
       {"<think:opensource>", "</think:opensource>", "<tool_calls:opensource>", "<tool_call:opensource>",
        "<tool_sep:opensource>", "<arg_key:opensource>", "<arg_value:opensource>", "</arg_value:opensource>"}},
  };
  return *families;
}

}  // namespace penstock::testing_answers
