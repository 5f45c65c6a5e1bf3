#include <algorithm>
#include <utility>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/choices.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/flags/described_flags.h"
#include "penstock/cli/sweep.h"
#include "penstock/memory/eviction.h"
#include "penstock/routing/trace_routing.h"
#include "penstock/schedule/schedule.h"
#include "penstock/simulate/simulated_run.h"
#include "penstock/trace/recorders.h"

namespace penstock::cli {
namespace {

struct Simulated {
  std::optional<ScheduleKind> schedule;
  MemoryPlan plan;
  SimulatedRun run;
  absl::Status status;  // not OK: this schedule cannot run with these options
};

// Returns the schedules to be simulated; several are compared.
std::vector<std::optional<ScheduleKind>> SchedulesOf(const Described& described) {
  if (!described.all_schedules) return {described.options.policy.schedule};
  std::vector<std::optional<ScheduleKind>> schedules;
  for (const ScheduleTraits& schedule : Schedules()) {
    if (described.options.device == "gpu" || !schedule.attends_on_host) schedules.emplace_back(schedule.value);
  }
  return schedules;
}

absl::Status Simulate(const Described& described, Simulated& simulated) {
  EngineOptions options = described.options;
  options.policy.schedule = simulated.schedule;
  const DescribedModel& model = described.model;
  PENSTOCK_ASSIGN_OR_RETURN(const EnginePlan plan, PlanOn(described.hardware, options, model));
  simulated.plan = plan.policy.plan;
  ModelInfo info;
  info.name = model.name();
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Recorders> recorders,
                            Recorders::Create(options, model.config(), info));
  PENSTOCK_ASSIGN_OR_RETURN(
      simulated.run,
      SimulateWorkload(
          {.config = model.config(), .plan = plan, .num_threads = options.threads, .sink = recorders->sink()},
          described.hardware, described.workload));
  return recorders->Close();
}

double Rate(int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

const LaneUsage& Busiest(const SimulatedRun& run) {
  return *std::max_element(run.lanes.begin(), run.lanes.end(),
                           [](const LaneUsage& a, const LaneUsage& b) { return a.busy_s < b.busy_s; });
}

json::object ToJson(const Simulated& simulated) {
  if (!simulated.status.ok())
    return {{"schedule", ChoiceName(simulated.schedule, Schedules())}, {"error", Message(simulated.status)}};
  const SimulatedRun& run = simulated.run;
  json::object lanes;
  for (const LaneUsage& lane : run.lanes) lanes[lane.name] = lane.busy_s / run.total_s();
  return {{"schedule", TraitsOf(simulated.plan.schedule).name},
          {"requests", run.num_requests},
          {"batch_size", simulated.plan.batch_size},
          {"micro_batch_size", simulated.plan.micro_batch_size},
          {"prompt_tokens", run.prompt_tokens},
          {"computed_prompt_tokens", run.computed_prompt_tokens},
          {"generated_tokens", run.generated_tokens},
          {"seconds", json::object{{"prefill", run.prefill_s}, {"decode", run.decode_s}, {"total", run.total_s()}}},
          {"tokens_per_second", json::object{{"prefill", Rate(run.prompt_tokens, run.prefill_s)},
                                             {"decode", Rate(run.generated_tokens, run.decode_s)},
                                             {"generation", run.generation_tokens_per_s()}}},
          {"limited_by", Busiest(run).name},
          {"lanes", std::move(lanes)},
          {"expert_cache", json::object{{"hits", run.expert_hits}, {"misses", run.expert_misses}}}};
}

std::string Head(const Described& described) {
  const EngineOptions& options = described.options;
  const int num_ranks = described.hardware.num_ranks;
  return fmt::format(
      "model     {}\nmemory    {} of DRAM{}{}\nworkload  {}\n\n{:<21}{:>6}{:>7}{:>14}{:>13}{:>17}  {}\n",
      ModelLine(described.model), FormatBytes(options.memory_bytes),
      options.device == "gpu" ? fmt::format(", {} on the device", FormatBytes(options.device_memory_bytes)) : "",
      num_ranks > 1 ? fmt::format(", on each of {} machines", num_ranks) : "", WorkloadLine(described.workload),
      "schedule", "N", "micro", "prefill tok/s", "decode tok/s", "generation tok/s", "lanes busy");
}

std::string Line(const Simulated& simulated) {
  if (!simulated.status.ok())
    return fmt::format("{:<21}{}\n", ChoiceName(simulated.schedule, Schedules()), Message(simulated.status));
  const SimulatedRun& run = simulated.run;
  std::string lanes;
  for (const LaneUsage& lane : run.lanes) {
    if (lane.busy_s > 0) lanes += fmt::format("  {} {:.0f}%", lane.name, 100 * lane.busy_s / run.total_s());
  }
  const int64_t micro = simulated.plan.micro_batch_size;
  return fmt::format("{:<21}{:>6}{:>7}{:>14.1f}{:>13.1f}{:>17.2f}{}\n", TraitsOf(simulated.plan.schedule).name,
                     simulated.plan.batch_size, micro > 0 ? std::to_string(micro) : "all",
                     Rate(run.prompt_tokens, run.prefill_s), Rate(run.generated_tokens, run.decode_s),
                     run.generation_tokens_per_s(), lanes);
}

// Changes what the flags name.
absl::Status SetRouting(const SimulateFlags& flags, const ModelConfig& config, RoutingSpec& routing) {
  routing.seed = flags.seed;
  routing.gate_accuracy = flags.gate_accuracy;
  routing.repeat = flags.routing_repeat.value_or(routing.repeat);
  routing.follow = flags.routing_follow.value_or(routing.follow);
  if (routing.repeat + routing.follow >= 1) {
    return UsageError("--routing-repeat and --routing-follow are probabilities: together less than 1");
  }
  if (flags.routing_skew.has_value()) {
    routing.skew = *flags.routing_skew;
    routing.counts.clear();
  }
  if (flags.routing_trace.empty()) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(routing.counts, TraceRouting::CountChoices(flags.routing_trace, config));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> SimulateCommand(const SimulateFlags& flags) {
  if (flags.described.hardware == "list") {
    PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, PresetTable(), "stdout"));
    return 0;
  }
  if (flags.sweep.empty() && !flags.plot_path.empty()) return UsageError("--plot draws a --sweep: give one");
  PENSTOCK_ASSIGN_OR_RETURN(Described described, Describe(flags.described));
  if (!flags.sweep.empty()) {
    PENSTOCK_RETURN_IF_ERROR(RunSweep(described, flags.sweep, flags.plot_path));
    return 0;
  }
  PENSTOCK_ASSIGN_OR_RETURN(described.options,
                            OptionsFor(std::move(described.options), described.hardware, described.workload));
  PENSTOCK_RETURN_IF_ERROR(SetRouting(flags, described.model.config(), described.workload.routing));
  const EngineOptions& options = described.options;
  const std::vector<std::optional<ScheduleKind>> schedules = SchedulesOf(described);
  if (schedules.size() > 1 && !(options.trace_path + options.trace_html_path).empty()) {
    return UsageError("--trace and --trace-html show one schedule: give its name instead of all");
  }
  json::array results;
  std::string head = Head(described);
  for (const std::optional<ScheduleKind> schedule : schedules) {
    Simulated simulated{.schedule = schedule, .plan = {}, .run = {}, .status = {}};
    simulated.status = Simulate(described, simulated);
    if (!simulated.status.ok() && schedules.size() == 1) return simulated.status;
    if (flags.as_json) {
      results.push_back(ToJson(simulated));
    } else {
      PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, std::exchange(head, "") + Line(simulated), "stdout"));
    }
  }
  if (!flags.as_json) return 0;
  json::object all = ToJson(described);
  all["schedules"] = std::move(results);
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, std::string(json::serialize(all)) + "\n", "stdout"));
  return 0;
}

}  // namespace penstock::cli
