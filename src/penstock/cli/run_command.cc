#include "penstock/cli/commands.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>

#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/choices.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/thread_pool.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/cli/job_plan.h"
#include "penstock/cli/rank_options.h"
#include "penstock/cli/stop_signals.h"
#include "penstock/engine/ranked_engine.h"
#include "penstock/job/job.h"
#include "penstock/job/manifest.h"
#include "penstock/memory/eviction.h"
#include "penstock/model/generation_config.h"
#include "penstock/parallel/mpi_ranks.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/schedule/schedule.h"

namespace penstock::cli {
namespace {

void LogPlan(const Engine& engine) {
  const MemoryPlan& plan = engine.memory_plan();
  if (plan.num_ranks > 1) {
    LogInfo("{} ranks share the experts; memory and experts below are those of rank 0", plan.num_ranks);
  }
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
  const SamplingParams& sampling = engine.default_sampling();
  if (sampling.temperature > 0) {
    LogInfo("the model's own sampling, where requests and flags say nothing: temperature {}, top_p {}, top_k {}",
            sampling.temperature, sampling.top_p, sampling.top_k);
  }
  LogInfo("schedule {}, eviction {}, {} experts pinned", TraitsOf(plan.schedule).name, TraitsOf(plan.eviction).name,
          plan.num_pinned_experts);
}

// Returns how long the model's answers are when nobody says it. What is wrong with the model is told when it is opened.
int64_t DefaultMaxTokens(const std::string& model_dir) {
  const int64_t usual = SamplingParams().max_tokens;
  const absl::StatusOr<ModelFolder> folder = ModelFolder::Open(model_dir);
  if (!folder.ok()) return usual;
  const absl::StatusOr<GenerationConfig> generation = LoadGenerationConfig(*folder, kMaxVocabSize);
  return generation.ok() && generation->max_new_tokens > 0 ? generation->max_new_tokens : usual;
}

// Runs another rank than 0: it writes no file and says nothing, because rank 0 tells what fails.
int ServeOtherRank(const RunFlags& flags, const MpiRanks& ranks) {
  PENSTOCK_CHECK(SetUpLogging("off").ok());
  StopOnSignals();  // one signal may reach all ranks: rank 0 ends the job in order
  absl::StatusOr<EngineOptions> options = ToPlannedOptions(flags.model);
  if (options.ok()) {
    ShareMachine(ranks, *options);
    UseFilesOfRank(ranks.communicator->rank(), *options);
  }
  const absl::Status status = ServeRank(std::move(options), *ranks.communicator);
  return EndOtherRank(status);
}

// Returns what answers depend on besides the model and the input. A resumed job must have the same.
absl::StatusOr<Settings> AllSettingsOf(const RunFlags& flags, const EngineOptions& options, const MpiRanks& ranks) {
  PENSTOCK_ASSIGN_OR_RETURN(Settings settings, SettingsOf(options, flags.job.system));
  settings.emplace_back("dtype", flags.model.dtype);
  settings.emplace_back("context_length", std::to_string(options.context_length));
  if (options.comm_dtype.value_or(CommFormat::kF32) != CommFormat::kF32) {
    settings.emplace_back("comm_dtype", ChoiceName(options.comm_dtype, CommFormats()));
  }
  if (ranks.communicator != nullptr && options.policy.expert_parallel == ExpertParallel::kCut) {
    settings.emplace_back("experts_cut_for_ranks", std::to_string(ranks.communicator->num_ranks()));
  }
  if (flags.job.task != JobTask::kAnswer) settings.emplace_back("task", flags.task);
  return settings;
}

}  // namespace

absl::StatusOr<int> RunCommand(RunFlags flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const MpiRanks ranks, JoinMpiRanks(StopStuckRank));
  if (ranks.communicator != nullptr && ranks.communicator->rank() > 0) return ServeOtherRank(flags, ranks);
  std::optional<RankLeader> leader;  // tells the other ranks that this command ends, however it ends
  if (ranks.communicator != nullptr) leader.emplace(*ranks.communicator);
  flags.job.default_max_tokens = DefaultMaxTokens(flags.model.engine.model_dir);
  if (flags.shard.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(flags.job.shard, ParseShard(*flags.shard));
  }
  flags.job.task = FindChoice(flags.task, JobTasks())->value;
  struct stat output = {};
  const bool is_file =
      flags.job.output_path != "-" && (::stat(flags.job.output_path.c_str(), &output) != 0 || S_ISREG(output.st_mode));
  const std::atomic<bool>& stop_requested =
      StopOnSignals(is_file && !flags.validate_only ? Resumable::kYes : Resumable::kNo);
  flags.job.resume = flags.job.resume || flags.job.retry_failed;
  if (flags.validate_only) return ValidateOnly(flags, stop_requested);
  if (flags.as_json) LogWarning("--json counts only with --validate-only");
  if (flags.model.engine.model_dir.empty()) return UsageError("--model is required (see penstock run --help)");
  if (flags.job.output_path.empty()) return UsageError("run needs --output FILE");
  PENSTOCK_RETURN_IF_ERROR(CheckNoFileOfTheModel("--stats", flags.job.stats_path, flags.model.engine.model_dir));
  const bool wants_plan = WantsPlan(flags.model);
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToPlannedOptions(flags.model));
  if (ranks.communicator != nullptr) ShareMachine(ranks, options);
  flags.job.seed = flags.job.sampling.seed.value_or(0);
  flags.job.sampling.seed.reset();  // used as the job's seed: each request derives its own
  PENSTOCK_ASSIGN_OR_RETURN(flags.job.engine_settings, AllSettingsOf(flags, options, ranks));
  flags.job.other_files = {{"--trace", options.trace_path},
                           {"--trace-html", options.trace_html_path},
                           {"--record-routing", options.routing_path},
                           {"--record-correlation", options.correlation_path}};
  flags.job.fingerprint = [&]() -> absl::StatusOr<std::string> {
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, LoadModel(options.model_dir));
    return model->fingerprint;
  };
  const auto open_engine = [&](const InputReport& report) -> absl::StatusOr<OpenedEngine> {
    if (options.planned_positions == 0) options.planned_positions = report.mean_positions;
    const auto job_memory = [&report](const ModelInfo& model) { return JobMemory(report, model); };
    options.caller_memory = job_memory;
    double predicted_tokens_per_s = 0;
    if (wants_plan) {
      options.learns_routing = true;
      std::optional<RankNetwork> network;
      if (leader.has_value()) {
        PENSTOCK_ASSIGN_OR_RETURN(const Link link, leader->MeasureNetwork());
        network = RankNetwork{.num_ranks = leader->num_ranks(), .link = link};
        options.caller_memory = leader->MemoryOfAll(job_memory);
      }
      PENSTOCK_ASSIGN_OR_RETURN(const PolicyChoice choice, PlanOfJob(report, options, network));
      options = choice.options;
      options.caller_memory = job_memory;
      predicted_tokens_per_s = choice.estimate.generation_tokens_per_s();
    }
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                              leader.has_value() ? leader->Open(options, wants_plan) : Engine::Open(options));
    LogPlan(*engine);
    return OpenedEngine(std::move(engine), predicted_tokens_per_s);
  };
  PENSTOCK_ASSIGN_OR_RETURN(const JobSummary summary, RunJob(flags.job, open_engine, stop_requested));
  return summary.numbers.num_failed > 0 ? kExitFailedRequests : 0;
}

}  // namespace penstock::cli
