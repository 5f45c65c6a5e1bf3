// A model as plans and simulations need it, read from its folder or from a config.json alone. Also plans an engine for
// it on described hardware.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/plan/workload.h"

namespace penstock {

class DescribedModel {
 public:
  static absl::StatusOr<DescribedModel> FromFolder(const std::string& model_dir,
                                                   std::span<const std::string> mirrors = {});
  // Describes the weights as if they were packed in `format` ("bf16", "int8", "hqq4", ...). kModel when the config is
  // invalid or its family is unknown.
  static absl::StatusOr<DescribedModel> FromConfig(const std::string& config_path, const std::string& format);

  const std::string& name() const { return name_; }
  // Returns nullptr for a model from a config alone.
  const LoadedModel* loaded() const { return loaded_.get(); }
  const ModelConfig& config() const { return loaded_ != nullptr ? loaded_->config : config_; }
  const WeightMap& weights() const { return loaded_ != nullptr ? loaded_->weights : described_; }
  uint64_t weights_bytes() const;
  EngineModel engine_model() const;
  // Tokenizes a message with the folder's tokenizer; kModel when there is none.
  absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const;
  // Returns what Engine::model() would return for a folder's model. Empty for a model from a config alone.
  ModelInfo Info(const Formats& formats, int64_t context_length) const;

 private:
  std::string name_;
  std::unique_ptr<LoadedModel> loaded_;  // null: config_ and described_ are used
  ModelConfig config_;
  WeightMap described_;
};

// Fills in options that are not set. Threads, device, and budgets (nine tenths of each memory) come from the hardware.
// Context length and planned positions come from the workload. kUsage when the hardware lacks what is needed.
absl::StatusOr<EngineOptions> OptionsFor(EngineOptions options, const Hardware& hardware, const Workload& workload);

// Returns the plan that an engine on this hardware would make. `layouts` is the argument of PlanEngine(). REQUIRES:
// `options` come from OptionsFor().
absl::StatusOr<EnginePlan> PlanOn(const Hardware& hardware, const EngineOptions& options, const DescribedModel& model,
                                  std::shared_ptr<const ExpertLayouts> layouts = nullptr);

}  // namespace penstock
