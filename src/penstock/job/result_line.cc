#include "penstock/job/result_line.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/text.h"
#include "penstock/job/result_logprobs.h"
#include "penstock/job/scoring.h"

namespace penstock {
namespace {

constexpr std::string_view kIdPrefix = "batch_req_";
constexpr uint64_t kScramble = 0x9E3779B97F4A7C15;    // odd, so multiplication by it can be undone
constexpr uint64_t kUnscramble = 0xF1DE83E19937733D;  // the inverse of kScramble modulo 2^64
static_assert(kScramble * kUnscramble == 1);

uint64_t ResultNumber(uint64_t job_digest, int64_t line_number) {
  return (static_cast<uint64_t>(line_number) + job_digest) * kScramble;
}

json::object Message(const ChatAnswer& answer, int64_t request_number, size_t choice_idx) {
  json::object message = {{"role", "assistant"}, {"content", ReplaceInvalidUtf8(answer.content)}, {"refusal", nullptr}};
  if (!answer.reasoning.empty()) message["reasoning_content"] = ReplaceInvalidUtf8(answer.reasoning);
  json::array calls;
  for (const ToolCall& call : answer.tool_calls) {
    calls.push_back(json::object{{"id", CallId(request_number, choice_idx, calls.size())},
                                 {"type", "function"},
                                 {"function", json::object{{"name", ReplaceInvalidUtf8(call.name)},
                                                           {"arguments", ReplaceInvalidUtf8(call.arguments)}}}});
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

// Returns the number of characters of a choice, without white space at its beginning.
int64_t NumChars(const std::string& text) {
  return std::ranges::count_if(WithoutLeadingSpace(text), [](char byte) { return !ContinuesCharacter(byte); });
}

std::vector<ChoiceScore> ScoresOf(const RequestResult& result) {
  std::vector<ChoiceScore> scores;
  for (const ResultChoice& choice : result.choices) scores.push_back(choice.score);
  return scores;
}

// Returns the fields of a scored request that concern all choices.
json::object BestFields(const RequestResult& result) {
  const BestChoices best = BestOf(result);
  json::object fields = {{"best", best.by_logprob}, {"best_per_char", best.by_logprob_per_char}};
  if (!result.label.has_value()) return fields;
  fields["label"] = *result.label;
  fields["correct"] = best.by_logprob == *result.label;
  fields["correct_per_char"] = best.by_logprob_per_char == *result.label;
  return fields;
}

// Returns the field `classification` of a short result: the best choice, and the log-likelihoods of all.
json::object Classification(const RequestResult& result) {
  json::array logprobs;
  for (const ChoiceScore& score : ScoresOf(result)) logprobs.emplace_back(score.logprob);
  json::object fields = BestFields(result);
  fields["best_choice"] = ReplaceInvalidUtf8(result.choices[fields["best"].as_int64()].completion.text);
  fields["logprobs"] = std::move(logprobs);
  return fields;
}

void AppendScore(const ChoiceScore& score, std::string& out) {
  out += fmt::format(R"(,"logprob":{},"num_tokens":{},"is_greedy":{})", JsonText(score.logprob), score.num_tokens,
                     score.is_greedy);
}

void AppendChoice(const RequestResult& result, size_t choice_idx, size_t shown_idx, int64_t request_number,
                  const TokenText& token_text, std::string& out) {
  const ResultChoice& choice = result.choices[choice_idx];
  const bool chat = result.kind != RequestKind::kCompletion;
  if (chat) {
    out += OpenJson({{"index", shown_idx}, {"message", Message(choice.answer, request_number, shown_idx)}});
  } else {
    out += OpenJson({{"index", shown_idx}, {"text", ReplaceInvalidUtf8(result.prompt + choice.completion.text)}});
  }
  out += R"(,"logprobs":)";
  if (result.logprobs < 0) {
    out += "null";
  } else if (chat) {
    AppendChatLogprobs(choice.completion.logprobs, /*begins_text=*/true, token_text, out);
  } else {
    const TextBegins begins = result.is_scored       ? TextBegins::kBefore
                              : result.echoes_prompt ? TextBegins::kWithPrompt
                                                     : TextBegins::kWithAnswer;
    int64_t num_chars = 0;
    AppendCompletionLogprobs(choice.completion, begins, result.logprobs, token_text, num_chars, out);
  }
  if (!chat && result.shown_prompt_logprobs >= 0) {
    AppendPromptLogprobs(choice.completion.prompt_logprobs, result.shown_prompt_logprobs, token_text, out);
  }
  if (result.is_scored) AppendScore(choice.score, out);
  const bool stopped = choice.completion.finish_reason == FinishReason::kStop;
  const bool calls = stopped && !choice.answer.tool_calls.empty();
  out += fmt::format(R"(,"finish_reason":"{}")", calls ? "tool_calls" : stopped ? "stop" : "length");
  if (result.kind == RequestKind::kTurns) {
    out += R"(,"turns":)";
    const auto answer = [&](size_t i) { return JsonText(json::value(ReplaceInvalidUtf8(result.answers[i]))); };
    AppendList(result.answers.size(), answer, out);
  }
  out += '}';
}

json::object Head(const ResultHead& head) {
  return {{"id", ResultId(head.job_digest, head.line_number)},
          {"custom_id", head.custom_id.has_value() ? json::value(*head.custom_id) : json::value(nullptr)}};
}

}  // namespace

BestChoices BestOf(const RequestResult& result) {
  const std::vector<ChoiceScore> scores = ScoresOf(result);
  std::vector<int64_t> num_chars;
  for (const ResultChoice& choice : result.choices) num_chars.push_back(NumChars(choice.completion.text));
  return {BestChoice(scores), BestChoice(scores, num_chars)};
}

json::object UsageOf(std::span<const RequestResult> results) {
  int64_t prompt_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  for (const RequestResult& result : results) {
    prompt_tokens += result.prompt_tokens;
    completion_tokens += result.completion_tokens;
    reasoning_tokens += result.reasoning_tokens;
  }
  json::object usage = {{"prompt_tokens", prompt_tokens},
                        {"completion_tokens", completion_tokens},
                        {"total_tokens", prompt_tokens + completion_tokens}};
  if (results[0].kind != RequestKind::kCompletion) {
    usage["completion_tokens_details"] = json::object{{"reasoning_tokens", reasoning_tokens}};
  }
  return usage;
}

LabelCounts LabelsOf(const RequestResult& result) {
  const BestChoices best = BestOf(result);
  return {.num_labelled = 1,
          .num_correct = best.by_logprob == *result.label ? 1 : 0,
          .num_correct_per_char = best.by_logprob_per_char == *result.label ? 1 : 0};
}

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

std::string CallId(int64_t request_number, size_t choice_idx, size_t call_idx) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr uint64_t kCallsPerChoice = 1 << 12;
  uint64_t number =
      (static_cast<uint64_t>(request_number) * static_cast<uint64_t>(kMaxAnswers) + choice_idx) * kCallsPerChoice +
      call_idx;
  std::string id(9, '0');
  for (auto digit = id.rbegin(); digit != id.rend(); ++digit, number /= kDigits.size()) {
    *digit = kDigits[number % kDigits.size()];
  }
  return id;
}

std::string BodyId(RequestKind kind, uint64_t number) {
  return fmt::format("{}-{:016x}", kind == RequestKind::kCompletion ? "cmpl" : "chatcmpl", number);
}

void AppendBody(const BodyHead& head, std::span<const RequestResult> results, const TokenText& token_text,
                std::string& out) {
  const RequestResult& first = results[0];
  const bool chat = first.kind != RequestKind::kCompletion;
  out += OpenJson({{"id", BodyId(first.kind, head.number)},
                   {"object", first.is_short ? "classification"
                              : chat         ? "chat.completion"
                                             : "text_completion"},
                   {"created", head.created},
                   {"model", ReplaceInvalidUtf8(first.model)}});
  if (first.is_short) {
    out += R"(,"classification":)" + JsonText(Classification(first));
  } else {
    out += R"(,"choices":[)";
    size_t shown_idx = 0;
    for (const RequestResult& result : results) {
      for (size_t i = 0; i < result.choices.size(); ++i) {
        if (shown_idx > 0) out += ',';
        AppendChoice(result, i, shown_idx++, head.request_number, token_text, out);
      }
    }
    out += ']';
    if (first.is_scored) out += R"(,"scores":)" + JsonText(BestFields(first));
  }
  if (chat && first.shown_prompt_logprobs >= 0) {
    AppendPromptLogprobs(first.choices[0].completion.prompt_logprobs, first.shown_prompt_logprobs, token_text, out);
  }
  json::object usage = UsageOf(results);
  if (head.shared_tokens.has_value()) {
    usage["prompt_tokens_details"] = json::object{{"cached_tokens", *head.shared_tokens}};
  }
  out += R"(,"usage":)" + JsonText(usage) + '}';
}

std::string FormatResult(const ResultHead& head, const RequestResult& result, const TokenText& token_text) {
  const uint64_t number = ResultNumber(head.job_digest, head.line_number);
  std::string out = OpenJson(Head(head));
  out += R"(,"response":)" + OpenJson({{"status_code", 200}, {"request_id", fmt::format("req_{:016x}", number)}});
  out += R"(,"body":)";
  AppendBody({.number = number, .request_number = head.line_number}, {&result, 1}, token_text, out);
  out += R"(},"error":null})";
  return out;
}

std::string FormatError(const ResultHead& head, const LineError& error, const std::vector<std::string>& answers) {
  json::object line = Head(head);
  line["response"] = nullptr;
  json::object record = {{"code", error.code}, {"message", Printable(error.message)}, {"line", head.place.number}};
  if (!head.place.is_only_file) record["file"] = ReplaceInvalidUtf8(head.place.file);
  if (!error.param.empty()) record["param"] = error.param;
  if (!answers.empty()) {
    json::array turns;
    for (const std::string& answer : answers) turns.emplace_back(ReplaceInvalidUtf8(answer));
    record["turns"] = std::move(turns);
  }
  line["error"] = std::move(record);
  return std::string(json::serialize(line));
}

}  // namespace penstock
