#include "penstock/job/validate_prompts.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "absl/container/flat_hash_set.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/job/scoring.h"
#include "penstock/memory/prefix_cache.h"
#include "penstock/ops/sampler.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {
namespace {

// Counts the tokens that are not in pages which earlier prompts have computed.
class PageCounter {
 public:
  int64_t Add(std::span<const TokenId> ids) {
    constexpr size_t kMaxPages = size_t{1} << 24;  // beyond these, pages count as not shared
    int64_t num_shared = 0;
    bool is_shared = true;
    for (const uint64_t hash : PageHashes(ids)) {
      is_shared = is_shared && pages_.contains(hash);
      if (is_shared) num_shared += kKvPageTokens;
      if (!is_shared && pages_.size() < kMaxPages) pages_.insert(hash);
    }
    return std::ssize(ids) - num_shared;
  }

 private:
  absl::flat_hash_set<uint64_t> pages_;
};

class Validator {
 public:
  explicit Validator(const PromptsToValidate& job) : job_(job) {}

  void Add(JobRequest request, const LinePlace& place) {
    const absl::Status status = AddPrompts(request, place);
    if (status.ok()) return;
    ++report_.num_bad;
    const bool is_input = FaultOf(status) == Fault::kInput;
    AddBad(place, {is_input ? "invalid_request" : "model_error", penstock::Message(status), ""});
  }
  void AddBad(const LinePlace& place, LineError error) {
    if (report_.bad_lines.size() < kMaxReportedBadLines) report_.bad_lines.push_back({place, std::move(error)});
  }
  PromptReport Release() { return std::move(report_); }

 private:
  absl::Status AddPrompts(JobRequest& request, const LinePlace& place) {
    const int64_t context_length = job_.maker.model.context_length;
    if (!request.choices.empty()) return AddScored(request, place);
    const SamplingParams sampling = Overlay(job_.sampling, request.sampling);
    PENSTOCK_RETURN_IF_ERROR(ValidateSampling(sampling));
    PENSTOCK_RETURN_IF_ERROR(CheckTokenIds(sampling.stop_token_ids, job_.maker.model.vocab_size, "stop_token_ids"));
    for (const auto& [id, bias] : sampling.logit_bias) {
      PENSTOCK_RETURN_IF_ERROR(CheckTokenIds({&id, 1}, job_.maker.model.vocab_size, "logit_bias"));
    }
    const bool has_encoder = job_.maker.model.decoder_start_id.has_value();
    if (has_encoder && sampling.prompt_logprobs >= 0) return NoPromptLogprobs();
    const bool shares = job_.shares_prefixes && sampling.prompt_logprobs < 0 && !has_encoder;
    const int64_t max_tokens = sampling.max_tokens;
    const size_t num_turns = std::max<size_t>(1, request.turns.size());
    for (std::vector<std::string> answers; answers.size() < num_turns; answers.emplace_back()) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, PromptOf(job_.maker, request, answers));
      PENSTOCK_RETURN_IF_ERROR(CheckPrompt(ids, job_.maker.model.vocab_size, context_length, has_encoder ? 2 : 1));
      const auto num_tokens = std::ssize(ids);
      report_.num_prompts += request.num_answers;
      report_.prompt_tokens += request.num_answers * num_tokens;
      for (int64_t i = 0; i < request.num_answers; ++i)
        report_.computed_tokens += shares ? pages_.Add(ids) : num_tokens;
      report_.new_tokens +=
          request.num_answers * std::min(max_tokens, context_length - num_tokens - (has_encoder ? 1 : 0));
      TakeLongest(num_tokens, place);
    }
    return absl::OkStatus();
  }

  absl::Status AddScored(JobRequest& request, const LinePlace& place) {
    PENSTOCK_ASSIGN_OR_RETURN(const ScoredPrompt scored, ScoredPromptOf(job_.maker, request));
    const auto check = [&](std::span<const TokenId> ids, int64_t num_behind) {
      return CheckPrompt(ids, job_.maker.model.vocab_size, job_.maker.model.context_length, num_behind);
    };
    PENSTOCK_RETURN_IF_ERROR(check(scored.prompt, 0));
    const auto num_prompt = std::ssize(scored.prompt);
    int64_t num_given = num_prompt, longest = num_prompt;
    const bool shares = job_.shares_prefixes && scored.num_encoded == 0;
    int64_t num_computed = shares ? pages_.Add(scored.prompt) : num_prompt;
    for (size_t i = 0; i < scored.choices.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(CheckTokenIds({scored.choices[i].data(), 1}, job_.maker.model.vocab_size));
      if (scored.choices[i].size() == 1) continue;
      const Request further = FurtherScoringRequest(scored, i, /*num_top=*/1);
      PENSTOCK_RETURN_IF_ERROR(check(further.prompt_ids, -1));
      ++report_.num_prompts;
      const auto num_tokens = std::ssize(further.prompt_ids);
      num_given += num_tokens;
      num_computed += num_tokens - 1 - (shares ? num_prompt : 0);
      longest = std::max(longest, num_tokens);
    }
    ++report_.num_prompts;
    report_.prompt_tokens += num_given;
    report_.computed_tokens += num_computed;
    TakeLongest(longest, place);
    return absl::OkStatus();
  }

  void TakeLongest(int64_t num_tokens, const LinePlace& place) {
    if (num_tokens <= report_.longest_prompt) return;
    report_.longest_prompt = num_tokens;
    report_.longest_place = place;
  }

  const PromptsToValidate& job_;
  PageCounter pages_;
  PromptReport report_;
};

}  // namespace

absl::StatusOr<PromptReport> ValidatePrompts(const PromptsToValidate& job, const std::atomic<bool>& stop) {
  Validator validator(job);
  InputReader reader(job.inputs);
  Line line;
  while (true) {
    if (stop.load())
      return MakeError(Fault::kStopped, job.inputs.name() + ": stopped while counting the tokens of prompts");
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) return validator.Release();
    if ((!line.too_long && IsBlank(line.text)) || !job.report.Has(line.number)) continue;
    RequestLine request = line.too_long ? TooLongLine(line.num_bytes) : ParseRequestLine(line.text, line.number);
    CheckLineModel(job.report, request);
    CheckLineTask(job.task, request);
    if (request.error.has_value()) {
      validator.AddBad(reader.place(), *std::move(request.error));
    } else {
      validator.Add(std::move(request.request), reader.place());
    }
  }
}

Workload WorkloadOf(const PromptReport& report) {
  const int64_t num_prompts = std::max<int64_t>(1, report.num_prompts);
  Workload workload;
  workload.num_requests = num_prompts;
  workload.prompt_tokens = std::max<int64_t>(1, report.prompt_tokens / num_prompts);
  workload.max_prompt_tokens = std::max(workload.prompt_tokens, report.longest_prompt);
  workload.new_tokens = std::max<int64_t>(1, report.new_tokens / num_prompts);
  workload.shared_tokens =
      std::min(workload.prompt_tokens - 1, (report.prompt_tokens - report.computed_tokens) / num_prompts);
  return workload;
}

std::string FormatPromptReport(const PromptReport& report) {
  std::string text = fmt::format(
      "{} prompts of {} tokens together (each turn, further answer, and choice of several tokens has a prompt); {} of "
      "these tokens repeat the beginnings of earlier prompts and need not be computed; answers of at most {} tokens\n",
      report.num_prompts, report.prompt_tokens, report.prompt_tokens - report.computed_tokens, report.new_tokens);
  if (report.longest_prompt > 0) {
    text += fmt::format("longest prompt: {} tokens, {}\n", report.longest_prompt, report.longest_place.Text());
  }
  if (report.num_bad > 0) text += fmt::format("{} more requests that this model cannot take\n", report.num_bad);
  return text;
}

json::object ToJson(const PromptReport& report) {
  return {{"prompts", report.num_prompts},
          {"prompt_tokens", report.prompt_tokens},
          {"computed_prompt_tokens", report.computed_tokens},
          {"longest_prompt", report.longest_prompt},
          {"max_new_tokens", report.new_tokens},
          {"bad", report.num_bad}};
}

}  // namespace penstock
