// Owns everything that passes run on: lanes, weights, the expert stores, the KV cache, activations and the schedule.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/device/device.h"
#include "penstock/engine.h"
#include "penstock/hardware/hardware.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/memory/expert_tiers.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/memory/kv_staging.h"
#include "penstock/ops/operations.h"
#include "penstock/ops/pass_observer.h"
#include "penstock/parallel/communicator.h"
#include "penstock/parallel/head_split.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/plan/policy.h"
#include "penstock/routing/routing_source.h"
#include "penstock/runtime/real_runtime.h"
#include "penstock/schedule/schedule.h"
#include "penstock/trace/recorders.h"

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
    std::span<const double> popularity;  // see ExpertTiers::Args
    std::unique_ptr<DiskReader> disk;
    Recorders& recorders;
    Communicator* communicator = nullptr;  // with the ranks that share the experts; null: there are no others
    PassObserver* observer = nullptr;      // see EngineHooks
  };
  // Reads the dense weights, and also all experts if DRAM has room for all.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(Args args);
  ~Executor();

  KvCache& kv_cache() { return *kv_cache_; }
  // Takes all its memory from the system (EngineOptions::touches_kv_cache).
  void TouchKvCache();
  CorrelationTable* correlation() { return schedule_->correlation(); }

  // Runs one pass. Rows whose experts could not be read fail (row_statuses); everything else is computed. An error
  // status is a fault of Penstock, not of a row. From the first call of the sink on, `row_statuses` [num_rows] may be
  // read.
  absl::Status Run(const RowBatch& batch, std::vector<RowRange> micro_batches, LogitsSink sink,
                   std::vector<absl::Status>& row_statuses);

  MachineRates MeasureRates();

  // On several ranks: the time of experts in the last pass, divided by the time that all ranks expect; 0 if unknown.
  // The ranks agree on the factor of the next pass, from which they choose the groups of experts.
  double expert_slowdown() const { return expert_slowdown_; }
  void SetExpertSlowdown(double factor) { agreed_slowdown_ = factor; }

  // Returns where the experts are, and what has been counted.
  LiveView View() const;
  // Updates the counters of lanes and experts in `stats`.
  void UpdateStats(EngineStats& stats) const;

 private:
  // A processor's lane, its operations, and what its memory holds.
  struct Side {
    LaneIdx lane = 0;
    std::optional<DenseWeights> dense;
    Activations activations;
    std::unique_ptr<Operations> operations;
  };

  // This rank's share of the attention heads, if the ranks share them.
  struct HeadsSide {
    ModelConfig config;
    ModelCost cost;
    Activations activations;
    std::unique_ptr<Operations> operations;
  };

  // A link whose rate is learnt from its transfers.
  struct LearnedLink {
    LaneIdx lane = 0;
    LearnedBandwidth bandwidth;
    LaneUsage before = {};  // the lane's, when it was learnt from last
  };

  explicit Executor(Args& args);
  absl::Status CreateHost(const Args& args);
  absl::Status CreateDevice(const Args& args);
  absl::Status CreateKvCache(const Args& args, const RankSplit& split);
  absl::Status CreateHeads(const Args& args, const HeadRange& heads);
  absl::Status CreateExperts(const Args& args);
  // Sets rates_ to what short measurements show, and to guesses. LearnLinks() corrects those of links after each pass.
  // Schedules that plan by rates correct those of processors while they run.
  void GuessRates();
  void LearnLinks();
  // Measures the network and the processors of all ranks, which then have the same rates.
  absl::Status AgreeOnRates();
  ProcessorRates MeasureHost(double seconds) const;
  LaneIdx compute_lane() const { return device_ == nullptr ? host_.lane : device_side_.lane; }
  // Returns the host memory that the device's links can read and write; any DRAM without a device.
  Memory& host_memory() const { return device_ == nullptr ? *joined_memory_ : device_->host_memory(); }

  std::unique_ptr<Device> device_;               // null: none; outlives the runtime and all that lies in its memory
  std::unique_ptr<JoinedMemory> joined_memory_;  // null with a device; outlives what lies in it
  const LoadedModel* model_;
  ThreadPool* pool_;
  Recorders* recorders_;
  Formats formats_;
  ModelFormats model_formats_;
  ModelCost cost_;
  RealRuntime runtime_;
  LaneIdx disk_lane_ = 0;
  const DiskReader* disk_ = nullptr;  // the runtime has it
  LaneIdx predict_lane_ = -1;         // only with a predictor that works ahead
  std::optional<PassRankLanes> ranks_;
  double expert_slowdown_ = 0;
  double agreed_slowdown_ = 1;
  LaneIdx finish_lane_ = 0;  // only with a device
  std::optional<KvCache> kv_cache_;
  std::optional<GateRouting> routing_;
  Side host_;
  Side device_side_;
  std::unique_ptr<HeadsSide> heads_;  // null: this rank has all heads
  std::optional<ModelCost> cut_expert_cost_;
  Device::Lanes device_lanes_;
  std::optional<KvStaging> kv_staging_;
  bool device_holds_kv_ = false;
  ExpertTiers experts_;
  LaneRates rates_;                // for schedules that plan by times
  std::deque<LearnedLink> links_;  // rates_ refers to them
  ScheduleOptions schedule_options_;
  std::unique_ptr<Schedule> schedule_;  // holds leases, so it is destroyed before the experts
};

}  // namespace penstock
