// What a run of a workload would take, in milliseconds instead of in a whole simulation: a few steps are simulated over
// a few of the layers, and all others are read between them.
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
  double decode_step_s = 0;             // of a full batch
  std::vector<LaneUsage> decode_lanes;  // of one such step
};

// Sequences of the workload that the plan computes at once: places of the batch for which there are KV pages.
int64_t NumPlaces(const SimulationInputs& inputs, const Workload& workload);

// Uniform routing that is drawn once for all estimates of a model, whatever their plans.
class RepeatedRouting : public RoutingSource {
 public:
  explicit RepeatedRouting(const ModelConfig& config);

  // REQUIRES: first_row + num_rows <= kMostRows.
  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override;
  void NextStep();
  void Restart() { first_row_ = 0; }

  static constexpr int64_t kMostRows = kMaxPrefillChunk + kMaxBatchSize;

 private:
  static constexpr int64_t kSteps = 4096;  // after which choices are those of the first step again

  struct Layer {
    std::vector<int32_t> choices;  // of rows from 0 on, as many as were asked for
  };
  GeneratedRouting drawn_;
  int64_t num_topk_;
  std::vector<Layer> layers_;
  int64_t first_row_ = 0;  // of this step
};

class RunEstimator {
 public:
  // Errors as SimulateWorkload()'s. What `inputs` refer to, and `routing`, outlive the estimator.
  static absl::StatusOr<RunEstimator> Create(const SimulationInputs& inputs, const Hardware& hardware,
                                             const Workload& workload, RepeatedRouting& routing);
  RunEstimator(RunEstimator&&) noexcept;
  ~RunEstimator();

  // Of a generated token with its share of the prompts, from two steps: enough to see what is hopeless.
  double QuickSecondsPerToken();
  RunEstimate Estimate();

 private:
  struct Impl;
  explicit RunEstimator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
