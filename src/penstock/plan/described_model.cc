#include "penstock/plan/described_model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "penstock/base/choices.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

// Memory of a tokenizer and a chat template, as measured with the tables of a large vocabulary.
constexpr uint64_t kTokenizerBytes = uint64_t{64} << 20;

constexpr double kDefaultDramShare = 0.9;  // of the hardware's DRAM

}  // namespace

absl::StatusOr<DescribedModel> DescribedModel::FromFolder(const std::string& model_dir,
                                                          std::span<const std::string> mirrors) {
  DescribedModel model;
  PENSTOCK_ASSIGN_OR_RETURN(model.loaded_, LoadModel(model_dir, mirrors));
  model.name_ = model.loaded_->name;
  return model;
}

absl::StatusOr<DescribedModel> DescribedModel::FromConfig(const std::string& config_path, const std::string& format) {
  const std::optional<WeightFormat> weights = WeightFormatOf(format);
  if (!weights.has_value()) {
    return UsageError("weights in '{}': expected one of {}", Printable(format),
                      ChoiceNames(std::span<const WeightFormatTraits>(kWeightFormats)));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path, kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) return Annotate(config.status(), Printable(config_path));
  DescribedModel model;
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(config_path, error);
  model.name_ = path.stem() == "config" ? path.parent_path().filename().string() : path.stem().string();
  model.config_ = *std::move(config);
  model.described_ = DescribeWeights(model.config_, *weights);
  return model;
}

uint64_t DescribedModel::weights_bytes() const {
  if (loaded_ != nullptr) return loaded_->checkpoint.total_bytes();
  const TensorInfo& last = described_.own.back();
  return last.extent.offset_bytes + last.extent.size_bytes;
}

EngineModel DescribedModel::engine_model() const {
  if (loaded_ == nullptr) return {.config = config_, .weights = described_, .memory_bytes = kTokenizerBytes};
  return {.config = loaded_->config,
          .weights = loaded_->weights,
          .files = loaded_->checkpoint.files(),
          .memory_bytes = loaded_->memory_bytes(),
          .fingerprint = loaded_->fingerprint};
}

absl::StatusOr<std::vector<TokenId>> DescribedModel::Tokenize(std::string_view text) const {
  if (loaded_ == nullptr || loaded_->tokenizer == nullptr) {
    return MakeError(Fault::kModel, Printable(name_) + " has no tokenizer");
  }
  return loaded_->tokenizer->Encode(text, Origin::kMessage, AddSpecial::kNo);
}

ModelInfo DescribedModel::Info(const Formats& formats, int64_t context_length) const {
  return loaded_ == nullptr ? ModelInfo() : InfoOf(*loaded_, formats, context_length);
}

absl::StatusOr<EngineOptions> OptionsFor(EngineOptions options, const Hardware& hardware, const Workload& workload) {
  const Processor* cpu = hardware.FindProcessor("cpu");
  const MemoryTier* dram = hardware.FindTier("dram");
  const MemoryTier* device = hardware.FindTier("device");
  if (cpu == nullptr) return UsageError("the hardware has no processor 'cpu'");
  if (options.threads == 0) options.threads = std::min(cpu->num_cpus, kMaxThreads);
  if (options.memory_bytes == 0) {
    if (dram == nullptr) return UsageError("the hardware does not say how much DRAM it has: give --memory");
    options.memory_bytes = ShareOf(dram->capacity_bytes, options.memory_share, kDefaultDramShare);
  }
  if (options.device == "auto") options.device = device == nullptr ? "cpu" : "gpu";
  if (options.device == "gpu") {
    if (device == nullptr) return UsageError("--device gpu: the hardware has no tier 'device'");
    if (options.device_memory_bytes == 0) {
      options.device_memory_bytes = ShareOf(device->capacity_bytes, options.device_memory_share, kDefaultDeviceShare);
    }
  } else if (options.device != "cpu") {
    return UsageError("--device '{}': expected auto, cpu or gpu", Printable(options.device));
  }
  if (options.context_length == 0) options.context_length = workload.max_positions();
  if (options.planned_positions == 0) options.planned_positions = workload.positions();
  return options;
}

absl::StatusOr<EnginePlan> PlanOn(const Hardware& hardware, const EngineOptions& options, const DescribedModel& model,
                                  std::shared_ptr<const ExpertLayouts> layouts) {
  EngineRoom room{.num_threads = options.threads, .device = std::nullopt, .budget_bytes = options.memory_bytes};
  // The last rank has the most experts.
  room.ranks = {hardware.num_ranks - 1, hardware.num_ranks};
  if (options.device == "gpu") {
    const Link* link = hardware.FindLink("dram_to_device");
    if (link == nullptr) return UsageError("the hardware has no link dram_to_device");
    room.device = DeviceSpec{.kind = DeviceKind::kDescribed, .name = "gpu", .link_bytes_per_s = link->bytes_per_s};
  }
  if (options.caller_memory) {
    PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(options, model.weights()));
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t context_length, ChooseContextLength(options, model.config()));
    room.caller = options.caller_memory(model.Info(formats, context_length));
  }
  return PlanEngine(options, model.engine_model(), room, std::move(layouts));
}

}  // namespace penstock
