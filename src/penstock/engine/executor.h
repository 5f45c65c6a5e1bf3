// Everything that passes run on: lanes, weights, the expert store, the KV cache, activations and the schedule.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/engine.h"
#include "penstock/engine/loaded_model.h"
#include "penstock/engine/recorders.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/memory/expert_store.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/routing/routing_source.h"
#include "penstock/runtime/real_runtime.h"
#include "penstock/schedule/schedule.h"

namespace penstock {

// How a model computes; fixed when it is opened.
struct Formats {
  ComputeDtype dtype = ComputeDtype::kF32;
  RowFormats rows;
  KvFormat kv = KvFormat::kF32;
};

class Executor {
 public:
  struct Args {
    const LoadedModel& model;  // outlives the executor, like all references here
    const ExpertLayouts& layouts;
    const kernels::KernelTable& kernels;
    ThreadPool& pool;
    Formats formats;
    MemoryPlan plan;
    ScheduleOptions schedule;
    Eviction eviction = Eviction::kLru;
    int64_t num_pinned = 0;  // experts; for Eviction::kStatic
    std::unique_ptr<DiskReader> disk;
    Recorders& recorders;
  };
  // Reads the dense weights, and all experts where there is room for all.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(Args args);
  ~Executor();

  KvCache& kv_cache() { return *kv_cache_; }
  int64_t max_rows() const { return activations_.dims.max_rows; }

  // One pass. Rows whose experts could not be read have failed (row_statuses); everything else is computed. An error is
  // a fault of ours. `row_statuses` [num_rows] may be read from the sink on.
  absl::Status Run(const RowBatch& batch, std::vector<RowRange> micro_batches, LogitsSink sink,
                   std::vector<absl::Status>& row_statuses);

  MachineRates MeasureRates();

  // Brings the counters of lanes and experts up to date.
  void UpdateStats(EngineStats& stats) const;

 private:
  explicit Executor(Args& args);

  const LoadedModel* model_;
  const kernels::KernelTable* kernels_;
  ThreadPool* pool_;
  Recorders* recorders_;
  Formats formats_;
  ModelCost cost_;
  RealRuntime runtime_;
  LaneIdx compute_lane_ = 0;
  LaneIdx disk_lane_ = 0;
  std::optional<DenseWeights> dense_;
  std::optional<KvCache> kv_cache_;
  Activations activations_;
  std::optional<GateRouting> routing_;
  std::unique_ptr<ExpertStore> experts_;  // null for a model without experts
  std::unique_ptr<Schedule> schedule_;    // holds leases: gone before the experts
};

}  // namespace penstock
