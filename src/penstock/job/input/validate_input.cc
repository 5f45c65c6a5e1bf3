#include "penstock/job/input/validate_input.h"
#include "penstock/job/input/line_reader.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "penstock/base/bytes.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/tagged_arguments.h"
#include "penstock/job/result_logprobs.h"
#include "penstock/job/runner.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {
namespace {

struct IdHash {
  uint64_t hash;
  int64_t line_number;
  bool operator<(const IdHash& other) const {
    return hash != other.hash ? hash < other.hash : line_number < other.line_number;
  }
};

constexpr size_t kMaxSuspects = 1000;

// Reads lines with equal hashes again and compares the ids themselves.
absl::Status ConfirmDuplicates(const Inputs& inputs, const std::deque<IdHash>& ids) {
  std::map<int64_t, int64_t> first_of;  // later line -> first line with the same hash
  struct Id {
    std::string text;
    LinePlace place;
  };
  std::map<int64_t, Id> ids_of;
  for (size_t i = 1, first = 0; i < ids.size() && first_of.size() < kMaxSuspects; ++i) {
    if (ids[i].hash != ids[first].hash) {
      first = i;
      continue;
    }
    first_of[ids[i].line_number] = ids[first].line_number;
    ids_of[ids[first].line_number];
  }
  if (first_of.empty()) return absl::OkStatus();
  InputReader reader(inputs);
  Line line;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) return absl::OkStatus();
    const auto suspect = first_of.find(line.number);
    if (suspect == first_of.end() && !ids_of.contains(line.number)) continue;
    const std::string id = ParseRequestLine(line.text, line.number).id.value_or("");
    if (suspect == first_of.end()) {
      ids_of[line.number] = {id, reader.place()};
    } else if (const Id& first = ids_of[suspect->second]; first.text == id) {
      return InputError("{}: id '{}' was already used in {}; give each request its own id", reader.place().FullText(),
                        id, first.place.Text());
    }
  }
}

void CountLine(const RequestLine& line, const LinePlace& place, InputReport& report) {
  ++report.num_requests;
  if (line.error.has_value()) {
    ++report.num_bad;
    if (report.bad_lines.size() < kMaxReportedBadLines) report.bad_lines.push_back({place, *line.error});
    return;
  }
  constexpr size_t kMaxIgnored = 20, kMaxNameBytes = 64;
  for (const std::string& name : line.ignored) {
    const std::string shown = Printable(name.size() > kMaxNameBytes ? name.substr(0, kMaxNameBytes) + "..." : name);
    if (report.ignored_fields.size() < kMaxIgnored || report.ignored_fields.contains(shown)) {
      ++report.ignored_fields[shown];
    }
  }
  report.num_scored += line.request.choices.empty() ? 0 : 1;
  switch (line.request.kind) {
    case RequestKind::kCompletion:
      ++report.num_completions;
      report.num_texts += line.request.prompt_ids.empty() ? 1 : 0;
      break;
    case RequestKind::kChat: ++report.num_chats; break;
    case RequestKind::kTurns: ++report.num_turns_requests; break;
  }
}

// Sets what all good requests need, from the counters of the whole input.
void TakeNeeds(const InputReport& whole, InputReport& report) {
  const int64_t num_good = whole.num_requests - whole.num_bad;
  const int64_t num_chats = whole.num_chats + whole.num_turns_requests;
  report.all_need_template = num_good > 0 && num_chats == num_good;
  report.all_need_tokenizer = num_good > 0 && num_chats + whole.num_texts == num_good;
}

constexpr uint64_t kParseBytesPerByte = 8;

// Returns the most memory to read a line and to parse it.
uint64_t BytesToParse(std::string_view line) { return kParseBytesPerByte * line.size() + BytesOfValues(line); }

// Checks a line before it is parsed.
absl::Status CheckFits(const Line& line, const LinePlace& place, uint64_t max_bytes) {
  const uint64_t of_ids = static_cast<uint64_t>(line.number) * sizeof(IdHash);
  const uint64_t of_line =
      line.too_long ? kParseBytesPerByte * std::min(line.num_bytes, kMaxRequestLineBytes) : BytesToParse(line.text);
  if (of_ids + of_line <= max_bytes) return absl::OkStatus();
  return ResourceError("{}: the lines up to here take {} to be validated, and there are {} for that; cut the file",
                       place.FullText(), FormatBytes(of_ids + of_line), FormatBytes(max_bytes));
}

// Returns the maximum number of tokens in a choice: each has at least one byte of a text.
int64_t MaxTokensOf(const ScoredText& choice) { return std::ssize(choice.text) + std::ssize(choice.ids); }

// Returns the tokens of a request's prompt and answer, in whole KV pages. A text has about three bytes per token.
int64_t EstimatePositions(const Line& line, const JobRequest& request, int64_t max_tokens) {
  constexpr int64_t kBytesPerToken = 3;
  const auto num_answers = std::max<int64_t>(1, std::ssize(request.turns));
  const int64_t prompt =
      request.prompt_ids.empty() ? std::ssize(line.text) / kBytesPerToken : std::ssize(request.prompt_ids);
  return (prompt + std::min<int64_t>(max_tokens, kMaxContext) * num_answers + kKvPageTokens - 1) / kKvPageTokens *
         kKvPageTokens;
}

void AddPrompt(uint64_t text_bytes, int64_t num_tokens, int64_t max_tokens, PromptTotals& totals) {
  ++totals.num_prompts;
  totals.text_bytes += text_bytes;
  totals.num_tokens += num_tokens;
  totals.new_tokens += max_tokens;
  totals.longest_bytes = std::max(totals.longest_bytes, text_bytes);
  totals.longest_tokens = std::max(totals.longest_tokens, num_tokens);
}

// Finds what a prompt begins with in common with the prompt before it. Compares only the first 64 Ki bytes or tokens.
class Beginnings {
 public:
  // A prompt is a text, in pieces, or token ids.
  void AddText(std::string_view piece) { text_ += piece.substr(0, kMaxCompared - text_.size()); }
  void EndPrompt(std::span<const TokenId> ids, PromptTotals& totals) {
    ids = ids.first(std::min(ids.size(), kMaxCompared));
    totals.shared_bytes += static_cast<uint64_t>(std::ranges::mismatch(text_, last_text_).in1 - text_.begin());
    totals.shared_tokens += std::ranges::mismatch(ids, last_ids_).in1 - ids.begin();
    std::swap(text_, last_text_);
    text_.clear();
    last_ids_.assign(ids.begin(), ids.end());
  }

 private:
  static constexpr size_t kMaxCompared = 64 << 10;
  std::string text_, last_text_;
  std::vector<TokenId> last_ids_;
};

void CountPrompts(const JobRequest& request, int64_t max_tokens, Beginnings& beginnings, PromptTotals& totals) {
  constexpr size_t kSampleBytes = 1 << 10;  // taken from one text
  const auto sample = [&](std::string_view text) {
    const size_t room = kPromptSampleBytes - std::min(kPromptSampleBytes, totals.sample.size());
    totals.sample += text.substr(0, std::min(kSampleBytes, room));
  };
  uint64_t text_bytes = 0;
  const auto add = [&](std::string_view text) {
    text_bytes += text.size();
    beginnings.AddText(text);
    sample(text);
  };
  add(request.prompt);
  for (const json::value& message : request.chat.messages) {
    const json::value* content = message.is_object() ? message.get_object().if_contains("content") : nullptr;
    if (content == nullptr || !content->is_string()) continue;
    add(std::string_view(content->get_string()));
  }
  if (request.turns.empty()) AddPrompt(text_bytes, std::ssize(request.prompt_ids), max_tokens, totals);
  for (size_t i = 0; i < request.turns.size(); ++i) {
    if (i > 0) {
      totals.shared_bytes += text_bytes;
      totals.shared_tokens += static_cast<int64_t>(i) * max_tokens;
    }
    add(request.turns[i]);
    AddPrompt(text_bytes, static_cast<int64_t>(i) * max_tokens, max_tokens, totals);
  }
  const auto add_further = [&](uint64_t further_bytes, int64_t further_tokens) {
    AddPrompt(text_bytes + further_bytes, std::ssize(request.prompt_ids) + further_tokens, max_tokens, totals);
    totals.shared_bytes += text_bytes;
    totals.shared_tokens += std::ssize(request.prompt_ids);
  };
  for (int64_t i = 1; i < request.num_answers; ++i) add_further(0, 0);
  for (const ScoredText& choice : request.choices) add_further(choice.text.size(), std::ssize(choice.ids));
  beginnings.EndPrompt(request.prompt_ids, totals);
}

void CountParsing(const Line& line, const LinePlace& place, InputReport& report) {
  const uint64_t bytes = BytesToParse(line.text);
  if (bytes <= report.parse_bytes) return;
  report.parse_bytes = bytes;
  report.costliest_line = place;
}

// Counts what a request with choices holds, and sets what its engine requests ask for.
void CountGivenChoices(const JobRequest& request, SamplingParams& params, InputReport& report) {
  if (request.choices.empty()) return;
  uint64_t text_bytes = 0;
  int64_t num_tokens = 0;
  params.max_tokens = 0;
  for (const ScoredText& choice : request.choices) {
    text_bytes += 2 * choice.text.size();
    num_tokens += MaxTokensOf(choice);
    params.max_tokens = std::max(params.max_tokens, MaxTokensOf(choice));  // behind the prompt
  }
  report.max_choices = std::max(report.max_choices, std::ssize(request.choices));
  report.max_choice_bytes = std::max(report.max_choice_bytes, text_bytes);
  report.max_choice_tokens = std::max(report.max_choice_tokens, num_tokens);
  report.max_logprobs = std::max(report.max_logprobs, 1);  // whether a token is the most likely one
  if (params.logprobs >= 0) report.max_listed_tokens = std::max(report.max_listed_tokens, num_tokens);
}

void CountMemory(const Line& line, const RequestLine& parsed, const SamplingOverrides& sampling, Beginnings& beginnings,
                 InputReport& report) {
  report.longest_line_bytes = std::max<uint64_t>(report.longest_line_bytes, line.text.size());
  uint64_t turns_bytes = 0;
  const int64_t num_further = parsed.request.num_answers - 1;
  report.max_further_answers = std::max(report.max_further_answers, num_further);
  uint64_t field_bytes = 0;
  for (const std::string& word : parsed.request.bad_words)
    field_bytes += 2 * (sizeof(TokenId) * (word.size() + 1) + 48);
  if (parsed.request.sampling.logit_bias.has_value()) field_bytes += 8 * parsed.request.sampling.logit_bias->size();
  if (parsed.request.format.has_value()) {
    // The compiled format, about: its size depends on what the text says.
    constexpr uint64_t kFormatBytes = 64 << 10, kFormatBytesPerByte = 64;
    report.has_formats = true;
    field_bytes += kFormatBytes + kFormatBytesPerByte * parsed.request.format->format.text.size();
  }
  if (parsed.request.echoes_prompt) field_bytes += line.text.size();
  field_bytes += ToolTypes(parsed.request.chat.tools).num_bytes();
  report.max_field_bytes = std::max(report.max_field_bytes, field_bytes);
  for (const std::string& turn : parsed.request.turns) turns_bytes += turn.size();
  report.longest_turns_bytes = std::max(report.longest_turns_bytes, turns_bytes);
  SamplingParams params = Overlay(Overlay({}, sampling), parsed.request.sampling);
  CountGivenChoices(parsed.request, params, report);
  report.max_further_tokens =
      std::max(report.max_further_tokens, num_further * std::min(params.max_tokens, kMaxContext));
  if (!parsed.error.has_value()) {
    const std::optional<double>& own = parsed.request.sampling.temperature;
    const std::optional<double>& temperature = own.has_value() ? own : sampling.temperature;
    report.num_undecided += temperature.has_value() ? 0 : 1;
    report.num_drawn += temperature.value_or(0) > 0 ? 1 : 0;
    // A sum, until the last line has been read.
    report.mean_positions += EstimatePositions(line, parsed.request, params.max_tokens);
    const int64_t max_tokens = parsed.request.choices.empty() ? std::min<int64_t>(params.max_tokens, kMaxContext) : 0;
    CountPrompts(parsed.request, max_tokens, beginnings, report.prompts);
  }
  report.max_logprobs = std::max({report.max_logprobs, params.logprobs, params.prompt_logprobs});
  // A prompt has at most as many tokens as the context. An echo with log-probabilities lists the prompt's again.
  const bool echoes = parsed.request.echoes_prompt && params.logprobs >= 0;
  const int64_t logprob_tokens = params.prompt_logprobs >= 0 || echoes ? kMaxContext
                                 : params.logprobs >= 0                ? params.max_tokens
                                                                       : 0;
  report.lists_logprobs_twice = report.lists_logprobs_twice || (params.prompt_logprobs >= 0 && echoes);
  report.max_logprob_tokens = std::max(report.max_logprob_tokens, logprob_tokens);
  report.max_further_listed_tokens =
      std::max(report.max_further_listed_tokens, num_further * std::min(logprob_tokens, kMaxContext));
}

}  // namespace

// A share of the tree and of the parser's growing stack for each value. (Measured: 58 bytes for a number in a list, 200
// for a key with its value.) Commas inside strings count, too, which does no harm.
uint64_t BytesOfValues(std::string_view text) {
  constexpr uint64_t kBytesPerValue = 104;
  const auto begins_value = [](char c) { return c == ',' || c == '[' || c == '{' || c == ':'; };
  return kBytesPerValue * static_cast<uint64_t>(std::count_if(text.begin(), text.end(), begins_value));
}

Workload WorkloadOf(const InputReport& report, double bytes_per_token) {
  const PromptTotals& totals = report.prompts;
  const auto tokens = [&](uint64_t bytes, int64_t num_tokens) {
    return std::max<int64_t>(1, num_tokens + std::llround(static_cast<double>(bytes) / bytes_per_token));
  };
  const int64_t num_prompts = std::max<int64_t>(1, totals.num_prompts);
  Workload workload;
  workload.num_requests = num_prompts;
  workload.prompt_tokens = std::max<int64_t>(1, tokens(totals.text_bytes, totals.num_tokens) / num_prompts);
  workload.max_prompt_tokens = std::max(workload.prompt_tokens, tokens(totals.longest_bytes, totals.longest_tokens));
  workload.new_tokens = std::max<int64_t>(1, totals.new_tokens / num_prompts);
  workload.shared_tokens =
      std::min(workload.prompt_tokens, tokens(totals.shared_bytes, totals.shared_tokens) / num_prompts + 1) - 1;
  return workload;
}

InputReport ReportOf(const Workload& workload) {
  std::string line = R"({"id": "request-000000", "max_tokens": 1000, "prompt": [)";
  for (int64_t i = 0; i < workload.max_prompt_tokens; ++i) line += "12345, ";
  InputReport report;
  report.num_lines = workload.num_requests;
  report.longest_line_bytes = line.size();
  // The reader holds a block, and two once a line crosses from one to the next.
  const bool is_one_block = static_cast<uint64_t>(workload.num_requests) * line.size() < kLineBlockBytes;
  report.parse_bytes = BytesToParse(line) + (is_one_block ? 1 : 2) * kLineBlockBytes;
  report.prompts.longest_tokens = workload.max_prompt_tokens;
  return report;
}

CallerMemory JobMemory(const InputReport& report, const ModelInfo& model) {
  CallerMemory memory;
  // Longer prompts and turns are refused.
  const uint64_t max_prompt = model.max_prompt_bytes > 0 ? model.max_prompt_bytes : kMaxRequestLineBytes;
  // Validation holds a hash for each id; the running job holds a bit for each line.
  memory.bytes = static_cast<uint64_t>(report.num_lines) * sizeof(IdHash) + report.parse_bytes +
                 kTokenizingBytesPerByte * std::min(report.longest_line_bytes, max_prompt);
  if (report.has_formats) memory.bytes += model.format_bytes;
  // The tokens of prompts that wait.
  memory.bytes += static_cast<uint64_t>(kReadAheadTokens + model.context_length) * sizeof(TokenId);
  // The request's id, stop texts and remaining turns. For each place of the batch a request runs and one waits.
  // Each has a copy of the prompt's tokens; the plan counts tokens only once for each page of the KV cache.
  const auto context = static_cast<uint64_t>(model.context_length);
  const uint64_t prompt_tokens =
      std::min(report.prompts.longest_bytes + static_cast<uint64_t>(report.prompts.longest_tokens), context);
  const uint64_t request_bytes = (2 << 10) + report.max_field_bytes + sizeof(TokenId) * prompt_tokens;
  memory.bytes_per_sequence = 2 * (request_bytes + std::min(report.longest_turns_bytes, max_prompt));
  // Further answers to a request may all wait. When they are finished, they are kept until the last one is.
  constexpr uint64_t kAnswerBytesPerToken = 16;
  const auto num_further = static_cast<uint64_t>(report.max_further_answers);
  memory.bytes += num_further * request_bytes;
  memory.bytes_per_sequence +=
      kAnswerBytesPerToken * std::min(static_cast<uint64_t>(report.max_further_tokens), num_further * context);
  // Requests with choices: their texts and tokens, and an engine request for each choice of several tokens. Of these
  // one runs and two wait for each place, and each has the prompt's tokens.
  const uint64_t max_choice_tokens = static_cast<uint64_t>(report.max_choices) * context;
  if (report.max_choices > 0) {
    constexpr uint64_t kChoiceBytes = 320;
    memory.bytes_per_sequence +=
        request_bytes + report.max_choice_bytes + kChoiceBytes * static_cast<uint64_t>(report.max_choices) +
        sizeof(TokenId) * std::min(static_cast<uint64_t>(report.max_choice_tokens), max_choice_tokens);
  }
  if (report.max_logprobs < 0) return memory;
  const uint64_t values = 1 + static_cast<uint64_t>(report.max_logprobs);
  memory.bytes_per_position = 32 + values * sizeof(TokenLogprob);
  // Log-probabilities of choices wait until the last choice of their request is scored, and those of further answers
  // until the last one has finished. Growing vectors have up to twice their size.
  const auto listed_tokens =
      std::max(std::min(static_cast<uint64_t>(report.max_listed_tokens), max_choice_tokens),
               std::min(static_cast<uint64_t>(report.max_further_listed_tokens), num_further * context));
  memory.bytes_per_sequence += listed_tokens * KeptLogprobsBytes(report.max_logprobs);
  // Results are written one at a time.
  memory.bytes += (listed_tokens + static_cast<uint64_t>(std::min(report.max_logprob_tokens, model.context_length))) *
                  ListedLogprobsBytes(report.max_logprobs) * (report.lists_logprobs_twice ? 2 : 1);
  return memory;
}

void CheckLineModel(const InputReport& report, RequestLine& line) {
  if (line.error.has_value() || line.model.empty() || line.model == report.model) return;
  line.error = LineError{"mixed_models",
                         fmt::format("body.model: expected '{}' as in {}, found '{}'; one job runs one model",
                                     report.model, report.model_place.Text(), line.model),
                         "body.model"};
}

void CheckLineTask(JobTask task, RequestLine& line) {
  if (task != JobTask::kClassify || line.error.has_value() || !line.request.choices.empty()) return;
  line.error =
      LineError{"invalid_request", "choices: are missing; --task classify needs them in every line", "choices"};
}

absl::StatusOr<InputReport> ValidateInput(Inputs& inputs, const SamplingOverrides& sampling,
                                          const std::atomic<bool>& stop, const InputChecks& checks) {
  const Shard& shard = checks.shard;
  InputReport report;
  report.shard = shard;
  InputReport whole;  // only its counters are used
  InputDigest digest;
  Beginnings beginnings;
  std::deque<IdHash> ids;  // a deque grows without copying
  InputReader reader(inputs, std::min(kMaxRequestLineBytes, checks.max_bytes / kParseBytesPerByte));
  Line line;
  while (true) {
    if (stop.load()) return MakeError(Fault::kStopped, inputs.name() + ": stopped while validating the input");
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) break;
    PENSTOCK_RETURN_IF_ERROR(CheckFits(line, reader.place(), checks.max_bytes));
    digest.Add(line);
    report.num_lines = line.number;
    if (!shard.is_whole()) report.of_shard.resize(static_cast<size_t>(line.number) + 1, false);
    if (!line.too_long && IsBlank(line.text)) {
      ++report.num_blank;
      continue;
    }
    const LinePlace place = reader.place();
    RequestLine request = line.too_long ? TooLongLine(line.num_bytes) : ParseRequestLine(line.text, line.number);
    if (report.model.empty() && !request.error.has_value() && !request.model.empty()) {
      report.model = request.model;
      report.model_place = place;
    }
    CheckLineModel(report, request);
    CheckLineTask(checks.task, request);
    if (!line.too_long) CountParsing(line, place, report);
    if (shard.Has(whole.num_requests)) {
      if (!shard.is_whole()) report.of_shard[static_cast<size_t>(line.number)] = true;
      CountLine(request, place, report);
      if (!line.too_long) CountMemory(line, request, sampling, beginnings, report);
    }
    CountLine(request, place, whole);
    if (request.id.has_value()) ids.push_back({XXH3_64bits(request.id->data(), request.id->size()), line.number});
  }
  TakeNeeds(whole, report);
  std::sort(ids.begin(), ids.end());
  PENSTOCK_RETURN_IF_ERROR(ConfirmDuplicates(inputs, ids));
  report.digest = digest.Hex();
  report.checkpoints = digest.Release();
  PENSTOCK_RETURN_IF_ERROR(inputs.CheckUnchanged(report.digest));
  report.parse_bytes += reader.buffer_bytes();
  report.mean_positions /= std::max<int64_t>(1, report.num_requests - report.num_bad);
  return report;
}

std::string FormatInputReport(const InputReport& report) {
  std::string text = fmt::format(
      "{} lines: {} requests{} ({} completions, {} chats, {} with turns, {}{} bad), {} blank lines\n", report.num_lines,
      report.num_requests, report.shard.Suffix(), report.num_completions, report.num_chats, report.num_turns_requests,
      report.num_scored > 0 ? fmt::format("{} with choices, ", report.num_scored) : "", report.num_bad,
      report.num_blank);
  if (report.num_requests == 0) text += "the input holds no requests\n";
  const std::string ignored = FormatIgnoredFields(report);
  return ignored.empty() ? text : text + "ignored fields: " + ignored + "\n";
}

std::string FormatBadLines(const std::vector<BadLine>& lines, int64_t num_bad) {
  std::string text;
  for (const BadLine& bad : lines) {
    text += fmt::format("{}: {}: {}\n", bad.place.Text(), bad.error.code, Printable(bad.error.message));
  }
  const int64_t num_unsaid = num_bad - std::ssize(lines);
  if (num_unsaid > 0) text += fmt::format("and {} more bad requests\n", num_unsaid);
  return text;
}

std::string FormatIgnoredFields(const InputReport& report) {
  std::string text;
  for (const auto& [name, count] : report.ignored_fields) {
    text += fmt::format("{}{} ({} request{})", text.empty() ? "" : ", ", name, count, count == 1 ? "" : "s");
  }
  return text;
}

json::array ToJson(const std::vector<BadLine>& lines) {
  json::array errors;
  for (const BadLine& bad : lines) {
    errors.push_back(json::object{{"file", ReplaceInvalidUtf8(bad.place.file)},
                                  {"line", bad.place.number},
                                  {"code", bad.error.code},
                                  {"message", Printable(bad.error.message)}});
  }
  return errors;
}

json::object ToJson(const InputReport& report) {
  json::object object = {
      {"lines", report.num_lines}, {"requests", report.num_requests},    {"completions", report.num_completions},
      {"chats", report.num_chats}, {"turns", report.num_turns_requests}, {"scored", report.num_scored},
      {"bad", report.num_bad},     {"blank", report.num_blank}};
  json::object ignored;
  for (const auto& [name, count] : report.ignored_fields) ignored[name] = count;
  object["ignored_fields"] = std::move(ignored);
  if (!report.shard.is_whole()) object["shard"] = report.shard.Text();
  return object;
}

}  // namespace penstock
