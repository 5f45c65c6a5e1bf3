#include "penstock/job/result_line.h"

#include <cmath>
#include <limits>
#include <utility>

#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr std::string_view kIdPrefix = "batch_req_";
constexpr uint64_t kScramble = 0x9E3779B97F4A7C15;    // odd, so multiplying by it can be undone
constexpr uint64_t kUnscramble = 0xF1DE83E19937733D;  // its inverse modulo 2^64
static_assert(kScramble * kUnscramble == 1);

uint64_t ResultNumber(uint64_t job_digest, int64_t line_number) {
  return (static_cast<uint64_t>(line_number) + job_digest) * kScramble;
}

// JSON has no infinities; -9999 is what OpenAI writes for "impossible".
double FiniteLogprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

json::array BytesOf(std::string_view text) {
  json::array bytes;
  for (const char c : text) bytes.emplace_back(static_cast<int64_t>(static_cast<uint8_t>(c)));
  return bytes;
}

json::object ChatToken(const TokenLogprob& token, const TokenText& token_text) {
  const std::string bytes = token_text(token.token_id);
  return {{"token", ReplaceInvalidUtf8(bytes)}, {"logprob", FiniteLogprob(token.logprob)}, {"bytes", BytesOf(bytes)}};
}

json::value ChatLogprobs(const RequestResult& result, const TokenText& token_text) {
  if (result.logprobs < 0) return nullptr;
  json::array content;
  for (const TokenLogprobs& token : result.completion.logprobs) {
    json::object item = ChatToken(token.chosen, token_text);
    json::array top;
    for (const TokenLogprob& other : token.top) top.push_back(ChatToken(other, token_text));
    item["top_logprobs"] = std::move(top);
    content.push_back(std::move(item));
  }
  return json::object{{"content", std::move(content)}, {"refusal", nullptr}};
}

// The older format. `text_offset` counts characters from the start of the answer.
json::value CompletionLogprobs(const RequestResult& result, const TokenText& token_text) {
  if (result.logprobs < 0) return nullptr;
  json::array tokens, token_logprobs, top_logprobs, text_offset;
  int64_t offset = 0;
  for (const TokenLogprobs& token : result.completion.logprobs) {
    const std::string text = ReplaceInvalidUtf8(token_text(token.chosen.token_id));
    tokens.emplace_back(text);
    token_logprobs.emplace_back(FiniteLogprob(token.chosen.logprob));
    text_offset.emplace_back(offset);
    for (size_t pos = 0; pos < text.size(); ++offset) pos += static_cast<size_t>(DecodeUtf8(text, pos).num_bytes);
    json::object top;
    for (const TokenLogprob& other : token.top) {
      // Two tokens may have one text; the more likely one comes first and stays.
      const std::string other_text = ReplaceInvalidUtf8(token_text(other.token_id));
      if (!top.contains(other_text)) top[other_text] = FiniteLogprob(other.logprob);
    }
    top_logprobs.push_back(std::move(top));
  }
  return json::object{
      {"tokens", std::move(tokens)},
      {"token_logprobs", std::move(token_logprobs)},
      {"top_logprobs", result.logprobs > 0 ? json::value(std::move(top_logprobs)) : json::value(nullptr)},
      {"text_offset", std::move(text_offset)}};
}

json::object Choice(const RequestResult& result, const TokenText& token_text) {
  const std::string text = ReplaceInvalidUtf8(result.completion.text);
  const char* finish_reason = result.completion.finish_reason == FinishReason::kStop ? "stop" : "length";
  if (result.kind == RequestKind::kCompletion) {
    return {{"index", 0},
            {"text", text},
            {"logprobs", CompletionLogprobs(result, token_text)},
            {"finish_reason", finish_reason}};
  }
  json::object choice = {{"index", 0},
                         {"message", json::object{{"role", "assistant"}, {"content", text}, {"refusal", nullptr}}},
                         {"logprobs", ChatLogprobs(result, token_text)},
                         {"finish_reason", finish_reason}};
  if (result.kind == RequestKind::kTurns) {
    json::array turns;
    for (const std::string& answer : result.answers) turns.emplace_back(ReplaceInvalidUtf8(answer));
    choice["turns"] = std::move(turns);
  }
  return choice;
}

json::object Head(const ResultHead& head) {
  return {{"id", ResultId(head.job_digest, head.line_number)},
          {"custom_id", head.custom_id.has_value() ? json::value(*head.custom_id) : json::value(nullptr)}};
}

}  // namespace

std::string ResultId(uint64_t job_digest, int64_t line_number) {
  return fmt::format("{}{:016x}", kIdPrefix, ResultNumber(job_digest, line_number));
}

std::optional<int64_t> LineOfResultId(std::string_view id, uint64_t job_digest) {
  if (!id.starts_with(kIdPrefix)) return std::nullopt;
  id.remove_prefix(kIdPrefix.size());
  if (id.size() != 16) return std::nullopt;
  uint64_t number = 0;
  for (const char c : id) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return std::nullopt;
    number = number << 4 | static_cast<uint64_t>(digit);
  }
  const uint64_t line_number = number * kUnscramble - job_digest;
  if (line_number == 0 || line_number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(line_number);
}

std::string FormatResult(const ResultHead& head, const RequestResult& result, const TokenText& token_text) {
  const bool chat = result.kind != RequestKind::kCompletion;
  const uint64_t number = ResultNumber(head.job_digest, head.line_number);
  json::array choices;
  choices.push_back(Choice(result, token_text));
  json::object body = {{"id", fmt::format("{}-{:016x}", chat ? "chatcmpl" : "cmpl", number)},
                       {"object", chat ? "chat.completion" : "text_completion"},
                       {"created", 0},
                       {"model", ReplaceInvalidUtf8(result.model)},
                       {"choices", std::move(choices)},
                       {"usage", json::object{{"prompt_tokens", result.prompt_tokens},
                                              {"completion_tokens", result.completion_tokens},
                                              {"total_tokens", result.prompt_tokens + result.completion_tokens}}}};
  json::object line = Head(head);
  line["response"] =
      json::object{{"status_code", 200}, {"request_id", fmt::format("req_{:016x}", number)}, {"body", std::move(body)}};
  line["error"] = nullptr;
  return std::string(json::serialize(line));
}

std::string FormatError(const ResultHead& head, const LineError& error) {
  json::object line = Head(head);
  line["response"] = nullptr;
  json::object record = {{"code", error.code}, {"message", Printable(error.message)}, {"line", head.line_number}};
  if (!error.param.empty()) record["param"] = error.param;
  line["error"] = std::move(record);
  return std::string(json::serialize(line));
}

}  // namespace penstock
