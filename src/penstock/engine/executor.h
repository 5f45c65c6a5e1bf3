// Everything that passes run on: lanes, weights, the expert stores, the KV cache, activations and the schedule.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/engine.h"
#include "penstock/engine/formats.h"
#include "penstock/engine/loaded_model.h"
#include "penstock/engine/policy.h"
#include "penstock/engine/recorders.h"
#include "penstock/hardware/hardware.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/memory/expert_tiers.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/memory/kv_staging.h"
#include "penstock/routing/routing_source.h"
#include "penstock/runtime/real_runtime.h"
#include "penstock/schedule/host_operations.h"
#include "penstock/schedule/schedule.h"

namespace penstock {

class Executor {
 public:
  struct Args {
    const LoadedModel& model;  // outlives the executor, like all references here
    const ExpertLayouts& layouts;
    const kernels::KernelTable& kernels;
    ThreadPool& pool;
    Formats formats;
    const ChosenPolicy& policy;
    std::span<const double> popularity;  // ExpertTiers::Args
    std::unique_ptr<DiskReader> disk;
    Recorders& recorders;
    std::function<std::unique_ptr<Operations>(const OpContext&)> make_device_operations = {};  // EngineHooks
  };
  // Reads the dense weights, and all experts where there is room for all.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(Args args);
  ~Executor();

  KvCache& kv_cache() { return *kv_cache_; }
  CorrelationTable* correlation() { return schedule_->correlation(); }
  int64_t max_rows() const { return host_.activations.dims.max_rows; }

  // One pass. Rows whose experts could not be read have failed (row_statuses); everything else is computed. An error is
  // a fault of ours. `row_statuses` [num_rows] may be read from the sink on.
  absl::Status Run(const RowBatch& batch, std::vector<RowRange> micro_batches, LogitsSink sink,
                   std::vector<absl::Status>& row_statuses);

  MachineRates MeasureRates();

  // Brings the counters of lanes and experts up to date.
  void UpdateStats(EngineStats& stats) const;

 private:
  // A processor with what it holds in its memory.
  struct Side {
    ThreadPool* pool = nullptr;
    LaneIdx lane = 0;
    std::optional<DenseWeights> dense;
    Activations activations;
    std::unique_ptr<Operations> operations;
  };
  struct Device : Side {
    std::unique_ptr<ThreadPool> own_pool;
    double link_bytes_per_s = 0;
    LaneIdx dram_to_pinned_lane = 0;
    LaneIdx dram_to_device_lane = 0;
    LaneIdx device_to_dram_lane = 0;
    std::optional<KvStaging> kv_staging;
  };

  explicit Executor(Args& args);
  absl::Status CreateExperts(const Args& args);
  absl::Status CreateDevice(const Args& args);
  // What lanes will take, roughly: who plans by it corrects it while it runs.
  void GuessRates();
  OpContext ContextOf(Side& side) {
    return {model_->config, *kernels_, *side.pool, formats_.rows, *side.dense, side.activations};
  }
  const Side& compute() const { return device_.has_value() ? *device_ : host_; }

  const LoadedModel* model_;
  const kernels::KernelTable* kernels_;
  Recorders* recorders_;
  Formats formats_;
  ModelFormats model_formats_;
  ModelCost cost_;
  RealRuntime runtime_;
  LaneIdx disk_lane_ = 0;
  LaneIdx finish_lane_ = 0;  // with a device
  std::optional<KvCache> kv_cache_;
  std::optional<GateRouting> routing_;
  Side host_;
  std::optional<Device> device_;
  ExpertTiers experts_;
  LaneRates rates_;  // for schedules that plan
  ScheduleOptions schedule_options_;
  std::unique_ptr<Schedule> schedule_;  // holds leases: gone before the experts
};

}  // namespace penstock
