// penstock run: the main job, from a JSONL file of requests to a JSONL file of results.
#include <atomic>
#include <csignal>
#include <memory>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/command_line.h"
#include "penstock/job/job.h"

namespace penstock::cli {
namespace {

constexpr int kExitFailedRequests = 8;

struct Flags {
  ModelFlags model;
  LogFlags log;
  JobOptions job;
  bool validate_only = false;
};

std::atomic<bool> stop_requested{false};

// The first signal asks for a stop at the next step's border; the second ends the process at once, which loses nothing
// either: every line on disk is whole, and --resume does the rest.
void OnStopSignal(int) {
  if (stop_requested.exchange(true)) _exit(static_cast<int>(Fault::kStopped));
}

void InstallStopHandlers() {
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void LogPlan(const Engine& engine) {
  const MemoryPlan& plan = engine.memory_plan();
  const ModelInfo& model = engine.model();
  spdlog::info("model {} ({}, computing in {}), {} sequences at once, context {}, prefill chunk {}", Printable(model.name), model.family,
               model.dtype, plan.batch_size, plan.context_length, plan.prefill_chunk);
  spdlog::info("memory {}: tables {}, dense weights {}, KV cache {}, activations {}, expert slots {} ({} of {} experts in DRAM)",
               FormatBytes(plan.budget_bytes), FormatBytes(plan.fixed_bytes), FormatBytes(plan.dense_bytes),
               FormatBytes(plan.kv_bytes), FormatBytes(plan.activation_bytes), FormatBytes(plan.expert_bytes),
               plan.num_expert_slots, plan.num_experts_total);
}

absl::StatusOr<int> Validate(const Flags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const InputReport report, ValidateJob(flags.job, stop_requested));
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, FormatInputReport(report) + "\n", "stdout"));
  return report.num_bad > 0 ? kExitFailedRequests : 0;
}

absl::StatusOr<int> Run(Flags& flags) {
  PENSTOCK_RETURN_IF_ERROR(ApplyLogFlags(flags.log));
  InstallStopHandlers();
  if (flags.validate_only) return Validate(flags);
  if (flags.job.output_path.empty()) return UsageError("run needs --output FILE");
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  flags.job.quiet = flags.log.quiet;
  flags.job.seed = flags.job.sampling.seed.value_or(0);
  flags.job.sampling.seed.reset();  // the job's: each request has its own, derived from it
  flags.job.engine_settings = {{"dtype", options.dtype},
                               {"kv_dtype", options.kv_dtype},
                               {"context_length", std::to_string(options.context_length)}};
  flags.job.on_validated = [&](const InputReport& report) { options.reserved_bytes = report.run_bytes; };
  const auto open_engine = [&]() -> absl::StatusOr<std::unique_ptr<Engine>> {
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Open(options));
    LogPlan(*engine);
    return engine;
  };
  PENSTOCK_ASSIGN_OR_RETURN(const JobSummary summary, RunJob(flags.job, open_engine, stop_requested));
  if (summary.nothing_to_do) spdlog::info("nothing to do: every request of the job has its result");
  return summary.numbers.num_failed > 0 ? kExitFailedRequests : 0;
}

}  // namespace

Command MakeRunCommand(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("run", "offline batch job: a JSONL file of requests to a JSONL file of results");
  AddModelFlags(*command, flags->model);
  command->add_option("-i,--input", flags->job.input_path, "requests, one JSON object per line ('-': standard input)")
      ->required()
      ->type_name("FILE");
  command->add_option("-o,--output", flags->job.output_path, "results, one JSON object per line")->type_name("FILE");
  command->add_flag("--resume", flags->job.resume, "continue the job of this output");
  command->add_flag("--validate-only", flags->validate_only, "check the input, load no model, write nothing");
  command->add_option("--stats", flags->job.stats_path, "write statistics as JSON")->type_name("FILE");
  AddSamplingFlags(*command, flags->job.sampling);
  AddLogFlags(*command, flags->log);
  return {command, [flags] { return Run(*flags); }};
}

}  // namespace penstock::cli
