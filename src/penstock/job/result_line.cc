#include "penstock/job/result_line.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "penstock/base/limits.h"
#include "penstock/base/text.h"
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

// JSON has no infinities; OpenAI writes -9999 for "impossible".
double FiniteLogprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

std::string Json(const json::value& value) { return json::serialize(value); }

// Returns a JSON object without its closing brace.
std::string OpenJson(const json::object& object) {
  std::string text = json::serialize(object);
  text.pop_back();
  return text;
}

// Appends "[item(0),item(1),...]". With 20 alternatives, a token has kilobytes of log-probabilities. They are written
// piece by piece and never held as a tree of values.
void AppendList(size_t count, absl::FunctionRef<std::string(size_t)> item, std::string& out) {
  out += '[';
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    out += item(i);
  }
  out += ']';
}

std::string ChatToken(const TokenLogprob& token, bool begins_text, const TokenText& token_text) {
  const std::string text = token_text(token.token_id, begins_text);
  json::array bytes;
  for (const char c : text) bytes.emplace_back(static_cast<int64_t>(static_cast<uint8_t>(c)));
  return OpenJson(
      {{"token", ReplaceInvalidUtf8(text)}, {"logprob", FiniteLogprob(token.logprob)}, {"bytes", std::move(bytes)}});
}

void AppendChatLogprobs(const std::vector<TokenLogprobs>& tokens, const TokenText& token_text, std::string& out) {
  const auto item = [&](size_t i) {
    std::string text = ChatToken(tokens[i].chosen, i == 0, token_text) + R"(,"top_logprobs":)";
    const auto other = [&](size_t j) { return ChatToken(tokens[i].top[j], i == 0, token_text) + "}"; };
    AppendList(tokens[i].top.size(), other, text);
    return text + "}";
  };
  out += R"({"content":)";
  AppendList(tokens.size(), item, out);
  out += R"(,"refusal":null})";
}

// Returns a token's text; of a token that is a part of a character, its bytes as OpenAI's older format writes them:
// "bytes:\\xe2\\x80".
std::string CompletionToken(const std::string& bytes) {
  if (IsUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return text;
}

bool ContinuesCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// The tokens of a completion's text: with an echo those of the prompt, then those of the answer.
struct ShownToken {
  const TokenLogprobs* token = nullptr;
  bool begins_text = false;
  bool has_logprob = true;
};

std::vector<ShownToken> ShownTokens(const Completion& completion, bool with_prompt, const TokenText& token_text) {
  std::vector<ShownToken> shown;
  bool begins_text = true;  // special tokens show nothing, so the text begins behind them
  for (size_t i = 0; with_prompt && i < completion.prompt_logprobs.size(); ++i) {
    shown.push_back({&completion.prompt_logprobs[i], begins_text, i > 0});
    begins_text = begins_text && token_text(completion.prompt_logprobs[i].chosen.token_id, begins_text).empty();
  }
  for (size_t i = 0; i < completion.logprobs.size(); ++i) {
    shown.push_back({&completion.logprobs[i], !with_prompt && i == 0, true});
  }
  return shown;
}

// Returns the most likely tokens with their log-probabilities, and the chosen one.
json::object TopLogprobs(const ShownToken& shown, int num_top, const TokenText& token_text) {
  json::object others;
  // Two tokens may have the same text; the more likely token comes first and is kept.
  const auto add = [&](const TokenLogprob& token) {
    const std::string text = CompletionToken(token_text(token.token_id, shown.begins_text));
    if (!others.contains(text)) others[text] = FiniteLogprob(token.logprob);
  };
  const std::vector<TokenLogprob>& top = shown.token->top;
  for (size_t i = 0; i < std::min(top.size(), static_cast<size_t>(num_top)); ++i) add(top[i]);
  add(shown.token->chosen);
  return others;
}

// Appends the older format. `text_offset` counts characters from the start of the text.
void AppendCompletionLogprobs(const std::vector<ShownToken>& tokens, int num_top, const TokenText& token_text,
                              std::string& out) {
  const auto bytes_of = [&](size_t i) { return token_text(tokens[i].token->chosen.token_id, tokens[i].begins_text); };
  out += R"({"tokens":)";
  AppendList(
      tokens.size(), [&](size_t i) { return Json(json::value(CompletionToken(bytes_of(i)))); }, out);
  out += R"(,"token_logprobs":)";
  const auto logprob = [&](size_t i) {
    return tokens[i].has_logprob ? Json(FiniteLogprob(tokens[i].token->chosen.logprob)) : "null";
  };
  AppendList(tokens.size(), logprob, out);
  out += R"(,"top_logprobs":)";
  const auto top = [&](size_t i) {
    return tokens[i].has_logprob ? Json(TopLogprobs(tokens[i], num_top, token_text)) : "null";
  };
  if (num_top > 0) {
    AppendList(tokens.size(), top, out);
  } else {
    out += "null";
  }
  out += R"(,"text_offset":)";
  int64_t num_chars = 0;  // that have begun before this token
  const auto next_offset = [&](size_t i) {
    const std::string bytes = bytes_of(i);
    const int64_t begin = num_chars - (num_chars > 0 && !bytes.empty() && ContinuesCharacter(bytes[0]) ? 1 : 0);
    num_chars += std::ranges::count_if(bytes, [](char byte) { return !ContinuesCharacter(byte); });
    return Json(begin);
  };
  AppendList(tokens.size(), next_offset, out);
  out += '}';
}

// Appends vLLM's format: for each token of the prompt an object with token ids as keys, null for the first one.
void AppendPromptLogprobs(const std::vector<TokenLogprobs>& tokens, int num_top, const TokenText& token_text,
                          std::string& out) {
  const auto item = [&](size_t i) -> std::string {
    if (i == 0) return "null";
    json::object others;
    const auto add = [&](const TokenLogprob& token) {
      others[fmt::format("{}", token.token_id)] = {
          {"logprob", FiniteLogprob(token.logprob)},
          {"decoded_token", CompletionToken(token_text(token.token_id, /*begins_text=*/false))}};
    };
    add(tokens[i].chosen);
    for (size_t j = 0; j < std::min(tokens[i].top.size(), static_cast<size_t>(num_top)); ++j) add(tokens[i].top[j]);
    return Json(others);
  };
  out += R"(,"prompt_logprobs":)";
  AppendList(tokens.size(), item, out);
}

// Returns nine letters and digits, as Mistral's templates require. The id is unique in the job.
std::string CallId(int64_t line_number, size_t choice_idx, size_t call_idx) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr uint64_t kCallsPerChoice = 1 << 12;
  uint64_t number =
      (static_cast<uint64_t>(line_number) * static_cast<uint64_t>(kMaxAnswers) + choice_idx) * kCallsPerChoice +
      call_idx;
  std::string id(9, '0');
  for (auto digit = id.rbegin(); digit != id.rend(); ++digit, number /= kDigits.size()) {
    *digit = kDigits[number % kDigits.size()];
  }
  return id;
}

json::object Message(const ChatAnswer& answer, int64_t line_number, size_t choice_idx) {
  json::object message = {{"role", "assistant"}, {"content", ReplaceInvalidUtf8(answer.content)}, {"refusal", nullptr}};
  if (!answer.reasoning.empty()) message["reasoning_content"] = ReplaceInvalidUtf8(answer.reasoning);
  json::array calls;
  for (const ToolCall& call : answer.tool_calls) {
    calls.push_back(json::object{{"id", CallId(line_number, choice_idx, calls.size())},
                                 {"type", "function"},
                                 {"function", json::object{{"name", ReplaceInvalidUtf8(call.name)},
                                                           {"arguments", ReplaceInvalidUtf8(call.arguments)}}}});
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

// Returns the number of characters of a choice, without white space at its beginning.
int64_t NumChars(const std::string& text) {
  return std::ranges::count_if(WithoutLeadingSpace(text), [](char c) { return !ContinuesCharacter(c); });
}

std::vector<ChoiceScore> ScoresOf(const RequestResult& result) {
  std::vector<ChoiceScore> scores;
  for (const ResultChoice& choice : result.choices) scores.push_back(ScoreOf(choice.completion.logprobs));
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

void AppendScore(const Completion& completion, std::string& out) {
  const ChoiceScore score = ScoreOf(completion.logprobs);
  out += fmt::format(R"(,"logprob":{},"num_tokens":{},"is_greedy":{})", Json(score.logprob), score.num_tokens,
                     score.is_greedy);
}

void AppendChoice(const RequestResult& result, size_t choice_idx, int64_t line_number, const TokenText& token_text,
                  std::string& out) {
  const ResultChoice& choice = result.choices[choice_idx];
  const bool chat = result.kind != RequestKind::kCompletion;
  if (chat) {
    out += OpenJson({{"index", choice_idx}, {"message", Message(choice.answer, line_number, choice_idx)}});
  } else {
    out += OpenJson({{"index", choice_idx}, {"text", ReplaceInvalidUtf8(result.prompt + choice.completion.text)}});
  }
  out += R"(,"logprobs":)";
  if (result.logprobs < 0) {
    out += "null";
  } else if (chat) {
    AppendChatLogprobs(choice.completion.logprobs, token_text, out);
  } else {
    AppendCompletionLogprobs(ShownTokens(choice.completion, result.echoes_prompt, token_text), result.logprobs,
                             token_text, out);
  }
  if (!chat && result.shown_prompt_logprobs >= 0) {
    AppendPromptLogprobs(choice.completion.prompt_logprobs, result.shown_prompt_logprobs, token_text, out);
  }
  if (result.is_scored) AppendScore(choice.completion, out);
  const bool stopped = choice.completion.finish_reason == FinishReason::kStop;
  const bool calls = stopped && !choice.answer.tool_calls.empty();
  out += fmt::format(R"(,"finish_reason":"{}")", calls ? "tool_calls" : stopped ? "stop" : "length");
  if (result.kind == RequestKind::kTurns) {
    out += R"(,"turns":)";
    const auto answer = [&](size_t i) { return Json(json::value(ReplaceInvalidUtf8(result.answers[i]))); };
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
  std::string out = OpenJson(Head(head));
  out += R"(,"response":)" + OpenJson({{"status_code", 200}, {"request_id", fmt::format("req_{:016x}", number)}});
  out += R"(,"body":)" + OpenJson({{"id", fmt::format("{}-{:016x}", chat ? "chatcmpl" : "cmpl", number)},
                                   {"object", result.is_short ? "classification"
                                              : chat          ? "chat.completion"
                                                              : "text_completion"},
                                   {"created", 0},
                                   {"model", ReplaceInvalidUtf8(result.model)}});
  if (result.is_short) {
    out += R"(,"classification":)" + Json(Classification(result));
  } else {
    out += R"(,"choices":[)";
    for (size_t i = 0; i < result.choices.size(); ++i) {
      if (i > 0) out += ',';
      AppendChoice(result, i, head.line_number, token_text, out);
    }
    out += ']';
    if (result.is_scored) out += R"(,"scores":)" + Json(BestFields(result));
  }
  if (chat && result.shown_prompt_logprobs >= 0) {
    AppendPromptLogprobs(result.choices[0].completion.prompt_logprobs, result.shown_prompt_logprobs, token_text, out);
  }
  out += R"(,"usage":)" + Json(json::object{{"prompt_tokens", result.prompt_tokens},
                                            {"completion_tokens", result.completion_tokens},
                                            {"total_tokens", result.prompt_tokens + result.completion_tokens}});
  out += R"(}},"error":null})";
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
