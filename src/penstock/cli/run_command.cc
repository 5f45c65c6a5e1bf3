#include "penstock/cli/commands.h"

#include <atomic>
#include <memory>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/stop_signals.h"
#include "penstock/job/job.h"

namespace penstock::cli {
namespace {

constexpr int kExitFailedRequests = 8;

void LogPlan(const Engine& engine) {
  const MemoryPlan& plan = engine.memory_plan();
  const ModelInfo& model = engine.model();
  LogInfo("model {} ({}, computing in {}), {} sequences at once, context {}, prefill chunk {}", Printable(model.name),
          model.family, model.dtype, plan.batch_size, plan.context_length, plan.prefill_chunk);
  LogInfo(
      "memory {}: tables {}, dense weights {}, KV cache {}, activations {}, expert slots {} ({} of {} experts in DRAM)",
      FormatBytes(plan.budget_bytes), FormatBytes(plan.fixed_bytes), FormatBytes(plan.dense_bytes),
      FormatBytes(plan.kv_bytes), FormatBytes(plan.activation_bytes), FormatBytes(plan.expert_bytes),
      plan.num_expert_slots, plan.num_experts_total);
  const DevicePlan& device = plan.device;
  if (!device.name.empty()) {
    LogInfo("{} device {}: dense weights {}, KV {}, activations {}, expert slots {} ({} experts, {} pinned)",
            device.name, FormatBytes(device.budget_bytes), FormatBytes(device.dense_bytes),
            FormatBytes(device.kv_bytes), FormatBytes(device.activation_bytes), FormatBytes(device.expert_bytes),
            device.num_expert_slots, device.num_pinned_experts);
  }
  LogInfo("schedule {}, eviction {}, {} experts pinned", plan.schedule, plan.eviction, plan.num_pinned_experts);
}

absl::StatusOr<int> Validate(const RunFlags& flags, const std::atomic<bool>& stop_requested) {
  PENSTOCK_ASSIGN_OR_RETURN(const InputReport report, ValidateJob(flags.job, stop_requested));
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, FormatInputReport(report) + "\n", "stdout"));
  return report.num_bad > 0 ? kExitFailedRequests : 0;
}

}  // namespace

absl::StatusOr<int> RunCommand(RunFlags flags) {
  const std::atomic<bool>& stop_requested = StopOnSignals();
  if (flags.validate_only) return Validate(flags, stop_requested);
  if (flags.job.output_path.empty()) return UsageError("run needs --output FILE");
  if (flags.job.output_path == "-") return UsageError("--output '-': for standard output write /dev/stdout");
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  flags.job.seed = flags.job.sampling.seed.value_or(0);
  flags.job.sampling.seed.reset();  // the job's: each request has its own, derived from it
  flags.job.engine_settings = {{"dtype", options.dtype},
                               {"kv_dtype", options.kv_dtype},
                               {"context_length", std::to_string(options.context_length)}};
  if (options.attention_window > 0) {
    flags.job.engine_settings.emplace_back("attention_window", std::to_string(options.attention_window));
    flags.job.engine_settings.emplace_back("attention_sinks", std::to_string(options.attention_sinks));
  }
  flags.job.other_files = {{"--trace", options.trace_path},
                           {"--trace-html", options.trace_html_path},
                           {"--record-routing", options.routing_path},
                           {"--record-correlation", options.correlation_path}};
  const auto open_engine = [&](const InputReport& report) -> absl::StatusOr<std::unique_ptr<Engine>> {
    options.planned_positions = report.mean_positions;
    options.caller_memory = [&report](const ModelInfo& model) { return JobMemory(report, model); };
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Open(options));
    LogPlan(*engine);
    return engine;
  };
  PENSTOCK_ASSIGN_OR_RETURN(const JobSummary summary, RunJob(flags.job, open_engine, stop_requested));
  if (summary.nothing_to_do) LogInfo("nothing to do: every request of the job has its result");
  return summary.numbers.num_failed > 0 ? kExitFailedRequests : 0;
}

}  // namespace penstock::cli
