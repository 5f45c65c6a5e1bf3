#include "penstock/cli/flags/described_flags.h"

#include <filesystem>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/hardware/presets.h"
#include "penstock/job/input/validate_input.h"
#include "penstock/measure/learned_routing.h"
#include "penstock/measure/probe.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/plan/formats.h"

namespace penstock::cli {

absl::StatusOr<DescribedModel> DescribeModel(const std::string& model_dir, const ConfigFlags& config,
                                             const std::vector<std::string>& mirrors) {
  if (model_dir.empty() == config.path.empty()) return UsageError("give --model DIR or --config FILE");
  if (config.path.empty()) return DescribedModel::FromFolder(model_dir, mirrors);
  if (!mirrors.empty()) return UsageError("--model-mirror: a model of --config has no files; give --model");
  return DescribedModel::FromConfig(config.path, config.weights);
}

absl::StatusOr<Hardware> ParseHardwareFlag(const std::string& spec) {
  std::error_code error;
  if (!std::filesystem::exists(spec, error)) {
    absl::StatusOr<Hardware> preset = HardwarePreset(spec);
    if (preset.ok() || spec.find(':') != std::string::npos) return preset;
    return UsageError("{} (or auto, or a file of penstock probe)", Message(preset.status()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(spec, kMaxConfigBytes));
  const absl::StatusOr<json::value> value = ParseJson(text, Fault::kInput);
  if (!value.ok()) return Annotate(value.status(), Printable(spec));
  absl::StatusOr<Hardware> hardware = ParseHardware(*value);
  if (!hardware.ok()) return Annotate(hardware.status(), Printable(spec));
  return hardware;
}

absl::StatusOr<Described> Describe(const DescribedFlags& flags) {
  ModelFlags model_flags = flags.model;
  const bool all_schedules = model_flags.schedule == "all";
  if (all_schedules || model_flags.schedule == "auto") model_flags.schedule.reset();
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(model_flags));
  PENSTOCK_ASSIGN_OR_RETURN(DescribedModel model,
                            DescribeModel(options.model_dir, flags.config, options.model_mirrors));
  const bool model_draws = model.loaded() != nullptr && model.loaded()->generation.draws_tokens();
  PENSTOCK_ASSIGN_OR_RETURN(Workload workload, ParseWorkload(flags.workload, model_draws));
  const bool is_this_machine = flags.hardware == "auto";
  if (!is_this_machine && !options.model_mirrors.empty()) {
    return UsageError(
        "--model-mirror: only --hardware auto measures disks; the rate of {} already is that of all disks",
        Printable(flags.hardware));
  }
  // The same memory as in a run on this machine.
  if (is_this_machine) {
    PENSTOCK_ASSIGN_OR_RETURN(options.memory_bytes, ChooseBudget(options, /*emulated_bytes=*/0));
    workload.routing = ExpectedRouting(model);
  }
  // A run that computes the workload holds this memory, too.
  options.caller_memory = [report = ReportOf(workload)](const ModelInfo& info) { return JobMemory(report, info); };
  PENSTOCK_ASSIGN_OR_RETURN(Hardware hardware, is_this_machine ? CachedProbe({.options = options, .model = &model})
                                                               : ParseHardwareFlag(flags.hardware));
  hardware.num_ranks = static_cast<int>(flags.ranks);
  if (!flags.network.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const Link network, NetworkPreset(flags.network));
    std::erase_if(hardware.links, [](const Link& link) { return link.name == kRankLink; });
    hardware.links.push_back(network);
  }
  if (hardware.num_ranks > 1 && hardware.FindLink(kRankLink) == nullptr) {
    return UsageError("--ranks {}: which network joins them? Give --network", flags.ranks);
  }
  // A described GPU may compute anything. The warning names what the CUDA kernels do not support yet.
  if (hardware.FindTier("device") != nullptr && options.device != "cpu") {
    PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(options, model.weights()));
    const absl::Status computed = CheckComputedOnGpus("cuda", model.config(), model.weights(), formats.dtype);
    if (!computed.ok()) LogWarning("on a GPU this is a forecast only: {}", Message(computed));
  }
  return Described{.model = std::move(model),
                   .hardware = std::move(hardware),
                   .workload = std::move(workload),
                   .options = std::move(options),
                   .all_schedules = all_schedules};
}

std::string ModelLine(const DescribedModel& model) {
  const ModelConfig& config = model.config();
  return fmt::format("{}: {} layers, {} experts a layer, {} of them for each token, {} of weights",
                     Printable(model.name()), config.num_layers, config.num_experts, config.num_topk,
                     FormatBytes(model.weights_bytes()));
}

std::string WorkloadLine(const Workload& workload) {
  std::string line = workload.num_requests > 0 ? fmt::format("{} requests, ", workload.num_requests) : "";
  line += fmt::format("prompts of {} tokens", workload.prompt_tokens);
  if (workload.max_prompt_tokens > workload.prompt_tokens) {
    line += fmt::format(" on the average and {} at most", workload.max_prompt_tokens);
  }
  if (workload.shared_tokens > 0) line += fmt::format(" ({} in common)", workload.shared_tokens);
  return line + fmt::format(", {}answers of {}", workload.draws_tokens ? "sampled " : "", workload.new_tokens);
}

json::object ToJson(const Described& described) {
  const Workload& workload = described.workload;
  return {{"model", ReplaceInvalidUtf8(described.model.name())},
          {"weights_bytes", described.model.weights_bytes()},
          {"memory_bytes", described.options.memory_bytes},
          {"device_memory_bytes", described.options.device_memory_bytes},
          {"workload", json::object{{"requests", workload.num_requests},
                                    {"prompt_tokens", workload.prompt_tokens},
                                    {"max_prompt_tokens", workload.max_prompt_tokens},
                                    {"shared_tokens", workload.shared_tokens},
                                    {"sampled", workload.draws_tokens},
                                    {"new_tokens", workload.new_tokens}}}};
}

std::string PresetTable() {
  std::string table;
  for (const PresetInfo& info : AllPresets()) {
    table += fmt::format("{:<8} {:<11} {} ({})\n", info.kind, info.name, info.summary, info.source);
  }
  return table;
}

}  // namespace penstock::cli
