// Estimates a run of a workload within milliseconds, without a whole simulation. It simulates a few steps over a few of
// the layers, and interpolates between them for all other steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/limits.h"
#include "penstock/routing/generated_routing.h"
#include "penstock/simulate/simulated_run.h"

namespace penstock {

struct RunEstimate : RunTotals {
  double decode_step_s = 0;             // seconds of a step in which a full batch decodes
  std::vector<LaneUsage> decode_lanes;  // lane usage in one such step
};

// Returns how many sequences of the workload the plan computes at once: the places of the batch that have KV pages.
int64_t NumPlaces(const SimulationInputs& inputs, const Workload& workload);

// Generated routing that is drawn once and serves all estimates of a model, whatever their plans. Choices of the last
// token are not repeated.
class RepeatedRouting : public RoutingSource {
 public:
  RepeatedRouting(const ModelConfig& config, const RoutingSpec& spec);

  // REQUIRES: first_row + num_rows <= kMaxRows.
  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override;
  void NextStep();
  void Restart() { first_row_ = 0; }

  static constexpr int64_t kMaxRows = kMaxPrefillChunk + kMaxBatchSize;

 private:
  static constexpr int64_t kSteps = 4096;  // number of steps after which the choices repeat

  struct Layer {
    std::vector<int32_t> choices;  // [rows drawn so far, num_topk]
  };
  GeneratedRouting drawn_;
  int64_t num_topk_;
  std::vector<Layer> layers_;
  int64_t first_row_ = 0;  // first row of this step
};

class RunEstimator {
 public:
  enum class Layers { kFew, kAll };

  // Returns errors like SimulateWorkload(). The objects that `inputs` refer to, and `routing`, must outlive the
  // estimator. It simulates a few of the layers, or all of them.
  static absl::StatusOr<RunEstimator> Create(const SimulationInputs& inputs, const Hardware& hardware,
                                             const Workload& workload, RepeatedRouting& routing,
                                             Layers layers = Layers::kFew);
  RunEstimator(RunEstimator&&) noexcept;
  ~RunEstimator();

  // Returns the seconds of a generated token with its share of the prompts. Simulates only two sizes of steps, which is
  // enough to recognise hopeless plans.
  double QuickSecondsPerToken();
  RunEstimate Estimate();

 private:
  struct Impl;
  explicit RunEstimator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
