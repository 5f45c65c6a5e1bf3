#include "penstock/cli/job_plan.h"

#include <algorithm>
#include <optional>
#include <string>

#include <unistd.h>

#include "absl/functional/function_ref.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/job/validate_prompts.h"
#include "penstock/measure/learned_routing.h"
#include "penstock/measure/probe.h"
#include "penstock/plan/described_model.h"
#include "penstock/plan/formats.h"

namespace penstock::cli {
namespace {

// Returns the bytes per token of the job's texts.
double BytesPerToken(const DescribedModel& model, const std::string& sample) {
  constexpr double kUsual = 4;
  const absl::StatusOr<std::vector<TokenId>> tokens = model.Tokenize(sample);
  if (!tokens.ok() || tokens->empty()) return kUsual;
  return static_cast<double>(sample.size()) / static_cast<double>(tokens->size());
}

// Returns the workload within the limits of the options, routed as the model's earlier ones. Longer requests get an
// error and cost nothing.
Workload Limited(Workload workload, const InputReport& report, const DescribedModel& model,
                 const EngineOptions& options) {
  const bool model_draws = model.loaded()->generation.draws_tokens();
  // Nobody knows the requests of a server.
  const bool may_be_undecided = report.num_undecided > 0 || report.num_requests == 0;
  workload.draws_tokens = report.num_drawn > 0 || (model_draws && may_be_undecided);
  workload.max_prompt_tokens =
      std::min(workload.max_prompt_tokens, std::max<int64_t>(1, options.context_length - workload.new_tokens));
  workload.prompt_tokens = std::min(workload.prompt_tokens, workload.max_prompt_tokens);
  workload.shared_tokens = options.shares_prefixes ? std::min(workload.shared_tokens, workload.prompt_tokens - 1) : 0;
  workload.new_tokens = std::min(workload.new_tokens, options.context_length - workload.max_prompt_tokens);
  workload.routing = ExpectedRouting(model);
  return workload;
}

absl::StatusOr<PolicyChoice> PlanOn(const Hardware& hardware, const DescribedModel& model, const Workload& workload,
                                    EngineOptions options) {
  const std::string asked_device = options.device;
  if (asked_device.starts_with("cuda")) options.device = "gpu";
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<PolicyChoice> choices, SearchPolicies(model, hardware, workload, options));
  PolicyChoice& best = choices.front();
  if (best.options.device == "gpu") best.options.device = asked_device == "auto" ? "cuda" : asked_device;
  return std::move(best);
}

// Plans for this machine and the workload that `workload_of` returns, and says for which.
absl::StatusOr<PolicyChoice> PlanHere(
    EngineOptions options, const std::optional<RankNetwork>& ranks,
    absl::FunctionRef<Workload(const DescribedModel&, const EngineOptions&)> workload_of) {
  PENSTOCK_ASSIGN_OR_RETURN(const DescribedModel model,
                            DescribedModel::FromFolder(options.model_dir, options.model_mirrors));
  PENSTOCK_ASSIGN_OR_RETURN(options.context_length, ChooseContextLength(options, model.config()));
  PENSTOCK_ASSIGN_OR_RETURN(options.memory_bytes, ChooseBudget(options, /*emulated_bytes=*/0));
  const Workload workload = workload_of(model, options);
  PENSTOCK_ASSIGN_OR_RETURN(Hardware hardware,
                            CachedProbe({.options = options, .model = &model, .max_bytes = options.memory_bytes}));
  if (ranks.has_value()) {
    hardware.num_ranks = ranks->num_ranks;
    std::erase_if(hardware.links, [](const Link& link) { return link.name == kRankLink; });
    hardware.links.push_back(ranks->link);
  }
  PENSTOCK_ASSIGN_OR_RETURN(PolicyChoice best, PlanOn(hardware, model, workload, options));
  LogInfo(
      "planned for {} prompts of {} tokens ({} in common) and answers of {}: {:.1f} tokens per second, {:.0f} s in all",
      workload.num_requests, workload.prompt_tokens, workload.shared_tokens, workload.new_tokens,
      best.estimate.generation_tokens_per_s(), best.estimate.total_s());
  return best;
}

struct Cost {
  PromptReport prompts;
  std::optional<RunEstimate> estimate;  // nothing: this machine was not measured yet, or there is no plan
  absl::Status plan_status;             // why there is no plan
};

absl::StatusOr<Cost> CostOf(const RunFlags& flags, const ValidatedJob& job, const std::atomic<bool>& stop_requested) {
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToPlannedOptions(flags.model));
  PENSTOCK_ASSIGN_OR_RETURN(DescribedModel model, DescribedModel::FromFolder(options.model_dir, options.model_mirrors));
  PENSTOCK_ASSIGN_OR_RETURN(options.context_length, ChooseContextLength(options, model.config()));
  PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(options, model.weights()));
  const LoadedModel& loaded = *model.loaded();
  const PromptMaker maker{.model = model.Info(formats, options.context_length),
                          .tokenize = [&loaded](std::string_view text) { return loaded.Tokenize(text); },
                          .tokenize_piece = [&loaded](std::string_view text) { return loaded.TokenizePiece(text); },
                          .tokenize_chat = [&loaded](const Chat& chat) { return loaded.TokenizeChat(chat); },
                          .system = flags.job.system};
  const SamplingParams sampling = Overlay({.max_tokens = flags.job.default_max_tokens}, flags.job.sampling);
  Cost cost;
  PENSTOCK_ASSIGN_OR_RETURN(cost.prompts, ValidatePrompts({.inputs = job.inputs,
                                                           .report = job.report,
                                                           .maker = maker,
                                                           .sampling = sampling,
                                                           .task = flags.job.task,
                                                           .shares_prefixes = options.shares_prefixes},
                                                          stop_requested));
  if (cost.prompts.num_prompts == 0) return cost;
  PENSTOCK_ASSIGN_OR_RETURN(options.memory_bytes, ChooseBudget(options, /*emulated_bytes=*/0));
  const ProbeTarget target{.options = options, .model = &model, .max_bytes = options.memory_bytes};
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<Hardware> hardware,
                            WantsPlan(flags.model) ? CachedProbe(target) : KeptProbe(target));
  if (!hardware.has_value()) return cost;
  // Made-up requests have no tokens for a network, so the prediction is that of a run without it.
  if (options.policy.predictor.has_value() && TraitsOf(*options.policy.predictor).needs_network) {
    options.policy.predictor = PredictorKind::kNone;
    options.policy.predictor_replaces_routers = false;
  }
  const absl::StatusOr<PolicyChoice> choice =
      PlanOn(*hardware, model, Limited(WorkloadOf(cost.prompts), job.report, model, options), options);
  cost.plan_status = choice.status();
  if (choice.ok()) cost.estimate = choice->estimate;
  return cost;
}

std::string TextOf(const Cost& cost) {
  std::string text = FormatPromptReport(cost.prompts);
  if (cost.estimate.has_value()) {
    text += fmt::format("with --policy auto the job takes about {:.3g} s", cost.estimate->total_s());
    if (cost.prompts.new_tokens > 0) {
      text +=
          fmt::format(", {:.1f} tokens per second, if no answer ends early", cost.estimate->generation_tokens_per_s());
    }
    text += "\n";
  } else if (cost.prompts.num_prompts > 0 && cost.plan_status.ok()) {
    text += "no prediction of the time: penstock probe --model DIR has not measured this machine yet\n";
  }
  return text;
}

json::object JsonOf(const Cost& cost) {
  json::object object = ToJson(cost.prompts);
  object["predicted_seconds"] = cost.estimate.has_value() ? json::value(cost.estimate->total_s()) : json::value();
  object["predicted_tokens_per_second"] =
      cost.estimate.has_value() ? json::value(cost.estimate->generation_tokens_per_s()) : json::value();
  return object;
}

}  // namespace

absl::StatusOr<PolicyChoice> PlanOfJob(const InputReport& report, EngineOptions options,
                                       const std::optional<RankNetwork>& ranks) {
  return PlanHere(std::move(options), ranks, [&](const DescribedModel& model, const EngineOptions& given) {
    return Limited(WorkloadOf(report, BytesPerToken(model, report.prompts.sample)), report, model, given);
  });
}

absl::StatusOr<PolicyChoice> PlanOfServer(EngineOptions options) {
  return PlanHere(std::move(options), std::nullopt, [](const DescribedModel& model, const EngineOptions& given) {
    const Workload chats{.num_requests = 128, .prompt_tokens = 512, .max_prompt_tokens = 512, .new_tokens = 256};
    return Limited(chats, {}, model, given);
  });
}

absl::StatusOr<int> ValidateOnly(const RunFlags& flags, const std::atomic<bool>& stop_requested) {
  PENSTOCK_ASSIGN_OR_RETURN(const ValidatedJob job, ValidateJob(flags.job, stop_requested));
  std::optional<Cost> cost;
  if (!flags.model.engine.model_dir.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(cost, CostOf(flags, job, stop_requested));
  }
  const std::vector<BadLine>& bad_lines = cost.has_value() ? cost->prompts.bad_lines : job.report.bad_lines;
  const int64_t num_bad = job.report.num_bad + (cost.has_value() ? cost->prompts.num_bad : 0);
  std::string text;
  if (flags.as_json) {
    json::object object = {{"input", ToJson(job.report)}};
    if (cost.has_value()) object["model"] = JsonOf(*cost);
    object["bad"] = num_bad;
    object["errors"] = ToJson(bad_lines);
    text = std::string(json::serialize(object)) + "\n";
  } else {
    text = FormatInputReport(job.report) + (cost.has_value() ? TextOf(*cost) : "") + FormatBadLines(bad_lines, num_bad);
  }
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, text, "stdout"));
  if (cost.has_value()) PENSTOCK_RETURN_IF_ERROR(cost->plan_status);
  return num_bad == 0 ? 0 : kExitFailedRequests;
}

}  // namespace penstock::cli
