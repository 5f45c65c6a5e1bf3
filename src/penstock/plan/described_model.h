// A model as far as plans and simulations need it: from its folder, or from a config.json alone; and the plan of an
// engine for it on hardware that is described.
#pragma once

#include <memory>
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
  static absl::StatusOr<DescribedModel> FromFolder(const std::string& model_dir);
  // The weights as if they were packed in `format` ("bf16", "int8", "hqq4", ...). kModel when the config is invalid or
  // of a family that is not known.
  static absl::StatusOr<DescribedModel> FromConfig(const std::string& config_path, const std::string& format);

  const std::string& name() const { return name_; }
  // nullptr for a config's.
  const LoadedModel* loaded() const { return loaded_.get(); }
  const ModelConfig& config() const { return loaded_ != nullptr ? loaded_->config : config_; }
  const WeightMap& weights() const { return loaded_ != nullptr ? loaded_->weights : described_; }
  uint64_t weights_bytes() const;
  EngineModel engine_model() const;
  // Of a folder that has a tokenizer; kModel otherwise.
  absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const;
  // What an engine would say of a folder's model; nothing of a config's.
  ModelInfo Info(const Formats& formats, int64_t context_length) const;

 private:
  std::string name_;
  std::unique_ptr<LoadedModel> loaded_;  // or the two below
  ModelConfig config_;
  WeightMap described_;
};

// Completes `options` with what hardware and workload say (threads, device, budgets of nine tenths of each memory,
// context, positions), where nobody else said it.
absl::StatusOr<EngineOptions> OptionsFor(EngineOptions options, const Hardware& hardware, const Workload& workload);

// What an engine on this hardware would decide; `layouts` as PlanEngine() has them. REQUIRES: options from
// OptionsFor().
absl::StatusOr<EnginePlan> PlanOn(const Hardware& hardware, const EngineOptions& options, const DescribedModel& model,
                                  std::shared_ptr<const ExpertLayouts> layouts = nullptr);

}  // namespace penstock
