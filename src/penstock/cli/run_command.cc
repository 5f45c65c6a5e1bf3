#include "penstock/cli/commands.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/choices.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/stop_signals.h"
#include "penstock/job/job.h"
#include "penstock/measure/probe.h"
#include "penstock/memory/eviction.h"
#include "penstock/plan/formats.h"
#include "penstock/schedule/schedule.h"
#include "penstock/simulate/policy_search.h"

namespace penstock::cli {
namespace {

constexpr int kExitFailedRequests = 8;

void LogPlan(const Engine& engine) {
  const MemoryPlan& plan = engine.memory_plan();
  const ModelInfo& model = engine.model();
  LogInfo("model {} ({}, computing in {}), {} sequences at once, context {}, prefill chunk {}", Printable(model.name),
          model.family, model.dtype, plan.batch_size, plan.context_length, plan.prefill_chunk);
  const uint64_t planned =
      plan.fixed_bytes + plan.dense_bytes + plan.kv_bytes + plan.activation_bytes + plan.expert_bytes;
  LogInfo(
      "memory {} of {}: tables {}, dense weights {}, KV cache {}, activations {}, expert slots {} ({} of {} experts in "
      "DRAM)",
      FormatBytes(planned), FormatBytes(plan.budget_bytes), FormatBytes(plan.fixed_bytes),
      FormatBytes(plan.dense_bytes), FormatBytes(plan.kv_bytes), FormatBytes(plan.activation_bytes),
      FormatBytes(plan.expert_bytes), plan.num_expert_slots, plan.num_experts_total);
  const DevicePlan& device = plan.device;
  if (!device.name.empty()) {
    LogInfo("{} device {}: dense weights {}, KV {}, activations {}, expert slots {} ({} experts, {} pinned)",
            device.name, FormatBytes(device.budget_bytes), FormatBytes(device.dense_bytes),
            FormatBytes(device.kv_bytes), FormatBytes(device.activation_bytes), FormatBytes(device.expert_bytes),
            device.num_expert_slots, device.num_pinned_experts);
  }
  LogInfo("schedule {}, eviction {}, {} experts pinned", TraitsOf(plan.schedule).name, TraitsOf(plan.eviction).name,
          plan.num_pinned_experts);
}

// Returns the bytes per token of the job's texts.
double BytesPerToken(const DescribedModel& model, const std::string& sample) {
  constexpr double kUsual = 4;
  const absl::StatusOr<std::vector<TokenId>> tokens = model.Tokenize(sample);
  if (!tokens.ok() || tokens->empty()) return kUsual;
  return static_cast<double>(sample.size()) / static_cast<double>(tokens->size());
}

// Lets the planner choose what `options` leave open, for this machine and this job.
absl::StatusOr<PolicyChoice> PlanJob(const InputReport& report, EngineOptions options) {
  const std::string asked_device = options.device;
  PENSTOCK_ASSIGN_OR_RETURN(const DescribedModel model, DescribedModel::FromFolder(options.model_dir));
  PENSTOCK_ASSIGN_OR_RETURN(options.context_length, ChooseContextLength(options, model.config()));
  PENSTOCK_ASSIGN_OR_RETURN(options.memory_bytes, ChooseBudget(options, /*emulated_bytes=*/0));
  Workload workload = WorkloadOf(report, BytesPerToken(model, report.prompts.sample));
  const GenerationConfig& generation = model.loaded()->generation;
  const bool model_draws = generation.do_sample && generation.temperature > 0;
  workload.draws_tokens = report.num_drawn > 0 || (model_draws && report.num_undecided > 0);
  // Longer requests get an error and cost nothing.
  workload.max_prompt_tokens =
      std::min(workload.max_prompt_tokens, std::max<int64_t>(1, options.context_length - workload.new_tokens));
  workload.prompt_tokens = std::min(workload.prompt_tokens, workload.max_prompt_tokens);
  workload.shared_tokens = options.shares_prefixes ? std::min(workload.shared_tokens, workload.prompt_tokens - 1) : 0;
  workload.new_tokens = std::min(workload.new_tokens, options.context_length - workload.max_prompt_tokens);
  PENSTOCK_ASSIGN_OR_RETURN(const Hardware hardware,
                            CachedProbe({.options = options, .model = &model, .max_bytes = options.memory_bytes}));
  if (asked_device.starts_with("cuda")) options.device = "gpu";
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<PolicyChoice> choices, SearchPolicies(model, hardware, workload, options));
  PolicyChoice& best = choices.front();
  if (best.options.device == "gpu") best.options.device = asked_device == "auto" ? "cuda" : asked_device;
  LogInfo(
      "planned for {} prompts of {} tokens ({} in common) and answers of {}: {:.1f} tokens per second, {:.0f} s in all",
      workload.num_requests, workload.prompt_tokens, workload.shared_tokens, workload.new_tokens,
      best.estimate.generation_tokens_per_s(), best.estimate.total_s());
  return std::move(best);
}

absl::StatusOr<int> Validate(const RunFlags& flags, const std::atomic<bool>& stop_requested) {
  PENSTOCK_ASSIGN_OR_RETURN(const InputReport report, ValidateJob(flags.job, stop_requested));
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, FormatInputReport(report) + "\n", "stdout"));
  return report.num_bad > 0 ? kExitFailedRequests : 0;
}

}  // namespace

absl::StatusOr<int> RunCommand(RunFlags flags) {
  const std::atomic<bool>& stop_requested = StopOnSignals();
  flags.job.resume = flags.job.resume || flags.job.retry_failed;
  if (flags.validate_only) return Validate(flags, stop_requested);
  if (flags.job.output_path.empty()) return UsageError("run needs --output FILE");
  PENSTOCK_RETURN_IF_ERROR(CheckNoFileOfTheModel("--stats", flags.job.stats_path, flags.model.engine.model_dir));
  const bool wants_plan = WantsPlan(flags.model);
  if (flags.model.policy_path == "auto") flags.model.policy_path.clear();
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  flags.job.seed = flags.job.sampling.seed.value_or(0);
  flags.job.sampling.seed.reset();  // used as the job's seed: each request derives its own
  flags.job.engine_settings = {{"dtype", flags.model.dtype},
                               {"kv_dtype", std::string(ChoiceName(options.kv_dtype, KvFormats()))},
                               {"context_length", std::to_string(options.context_length)}};
  if (options.attention_window > 0) {
    flags.job.engine_settings.emplace_back("attention_window", std::to_string(options.attention_window));
    flags.job.engine_settings.emplace_back("attention_sinks", std::to_string(options.attention_sinks));
  }
  if (flags.job.system.has_value()) {
    if (!IsUtf8(*flags.job.system)) return UsageError("--system: the text is not UTF-8");
    flags.job.engine_settings.emplace_back("system", *flags.job.system);
  }
  flags.job.other_files = {{"--trace", options.trace_path},
                           {"--trace-html", options.trace_html_path},
                           {"--record-routing", options.routing_path},
                           {"--record-correlation", options.correlation_path}};
  const auto open_engine = [&](const InputReport& report) -> absl::StatusOr<OpenedEngine> {
    if (options.planned_positions == 0) options.planned_positions = report.mean_positions;
    options.caller_memory = [&report](const ModelInfo& model) { return JobMemory(report, model); };
    double predicted_tokens_per_s = 0;
    if (wants_plan) {
      PENSTOCK_ASSIGN_OR_RETURN(const PolicyChoice choice, PlanJob(report, options));
      options = choice.options;
      predicted_tokens_per_s = choice.estimate.generation_tokens_per_s();
    }
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Open(options));
    LogPlan(*engine);
    return OpenedEngine(std::move(engine), predicted_tokens_per_s);
  };
  PENSTOCK_ASSIGN_OR_RETURN(const JobSummary summary, RunJob(flags.job, open_engine, stop_requested));
  return summary.numbers.num_failed > 0 ? kExitFailedRequests : 0;
}

}  // namespace penstock::cli
