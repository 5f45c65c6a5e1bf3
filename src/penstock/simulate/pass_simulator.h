// Simulates passes in virtual time. Schedules, expert stores and lanes are those of a real run; tasks have no bodies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "penstock/memory/eviction.h"
#include "penstock/memory/expert_tiers.h"
#include "penstock/memory/kv_staging.h"
#include "penstock/model/cost.h"
#include "penstock/routing/routing_source.h"
#include "penstock/runtime/simulated_runtime.h"
#include "penstock/schedule/schedule.h"

namespace penstock {

class PassSimulator {
 public:
  struct Device {
    ExpertRoom room;
    int64_t staged_pages = 0;  // KV pages of each staging buffer; 0: no staging
    bool reads_dram = false;   // the device's copies can read DRAM's slots
  };
  struct Args {
    const ModelConfig& config;  // outlives the simulator
    ModelFormats formats;
    uint64_t expert_bytes = 0;                                // bytes that cross a link for one expert, on average
    std::vector<uint64_t> bytes_of_experts = {};              // of each expert, by key; empty: all alike
    std::optional<uint64_t> compressed_bytes = std::nullopt;  // read from the disk instead
    bool packs = false;                                       // experts are made panels after they arrived
    ScheduleOptions schedule;
    Eviction eviction = Eviction::kStatic;  // eviction policy of the tier that computes the layers
    ExpertRoom dram = {};
    PinnedExperts pinned = PinnedExperts::kEvenly;
    std::span<const double> popularity = {};  // see ExpertTiers::Args; only read by Create()
    std::optional<Device> device = std::nullopt;
    int64_t rows_at_once = 16;  // rows whose logits are computed at once
    int64_t ffn_row_bytes = 0;  // bytes of one row of the experts' input; 0: f32
    LaneRates rates;
    TaskSink* sink = nullptr;
    // With several ranks: this one, the link to the others, and messages to them (simulate/simulated_ranks.h).
    // Whole experts need a placement.
    RankSplit ranks = {};
    Link link = {};
    CommFormat comm = CommFormat::kF32;
    int64_t attention_row_bytes = 0;  // bytes of a row between ranks that share the heads
    Communicator* communicator = nullptr;
  };
  static absl::StatusOr<std::unique_ptr<PassSimulator>> Create(Args args);

  // Simulates one pass, with its logits. Returns the virtual seconds that it takes. The batch needs no KV pages.
  double Run(const RowBatch& batch, std::vector<RowRange> micro_batches, RoutingSource& routing);
  // Simulates only the logits of a pass. Returns the virtual seconds that they take.
  double RunLogits(const RowBatch& batch, RoutingSource& routing);

  // Returns the counters of the tier that computes the layers. REQUIRES: the model has experts.
  const ExpertCounters& counters() const { return experts_.compute()->counters(); }
  double now_s() const { return runtime_.now_s(); }
  void AdvanceTo(double now_s) { runtime_.AdvanceTo(now_s); }
  std::vector<LaneUsage> Usage() const { return runtime_.Usage(); }
  void ResetUsage();

 private:
  explicit PassSimulator(Args args);
  double Time(const RowBatch& batch, std::vector<RowRange> micro_batches, RoutingSource& routing,
              absl::FunctionRef<void(Pass&)> issue);

  Args args_;
  ModelCost cost_;
  ModelConfig heads_config_;  // of this rank's heads
  ModelCost heads_cost_;
  ModelCost cut_expert_cost_;  // of this rank's part of an expert
  ExpertLayouts layouts_;
  SimulatedRuntime runtime_;
  LaneIdx host_lane_ = 0;
  LaneIdx disk_lane_ = 0;
  LaneIdx predict_lane_ = -1;
  PassDevice device_;
  std::optional<PassRankLanes> ranks_;
  std::optional<KvStaging> kv_staging_;
  ExpertTiers experts_;
  std::unique_ptr<Schedule> schedule_;  // holds leases on experts, so it is destroyed before them
};

}  // namespace penstock
