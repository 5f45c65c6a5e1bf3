// Passes in virtual time: schedules, expert stores and lanes as in a real run, tasks without bodies.
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
    int64_t staged_pages = 0;  // of KV; 0: the KV cache lies there
    bool reads_dram = false;   // its copies can read the experts in DRAM as they lie
  };
  struct Args {
    const ModelConfig& config;  // outlives the simulator
    ModelFormats formats;
    uint64_t expert_bytes = 0;  // as they cross links
    ScheduleOptions schedule;
    Eviction eviction = Eviction::kStatic;  // where the layers are computed
    ExpertRoom dram = {};
    std::span<const double> popularity = {};  // ExpertTiers::Args; while it is created
    std::optional<Device> device = std::nullopt;
    int64_t rows_at_once = 16;  // logits
    int64_t ffn_row_bytes = 0;  // of a row as experts take it; 0: f32
    LaneRates rates;
    TaskSink* sink = nullptr;
  };
  static absl::StatusOr<std::unique_ptr<PassSimulator>> Create(Args args);

  // One pass; the virtual seconds that it takes. The batch needs no KV pages.
  double Run(const RowBatch& batch, std::vector<RowRange> micro_batches, RoutingSource& routing);
  // The logits of a pass alone.
  double RunLogits(const RowBatch& batch, RoutingSource& routing);

  // Of the experts where they are computed.
  const ExpertCounters& counters() const { return experts_.compute()->counters(); }
  std::vector<LaneUsage> Usage() const { return runtime_.Usage(); }
  void ResetUsage();

 private:
  explicit PassSimulator(Args args);
  double Time(const RowBatch& batch, std::vector<RowRange> micro_batches, RoutingSource& routing,
              absl::FunctionRef<void(Pass&)> issue);

  Args args_;
  ModelCost cost_;
  ExpertLayouts layouts_;
  SimulatedRuntime runtime_;
  LaneIdx host_lane_ = 0;
  LaneIdx disk_lane_ = 0;
  PassDevice device_;
  std::optional<KvStaging> kv_staging_;
  ExpertTiers experts_;
  std::unique_ptr<Schedule> schedule_;  // holds leases: gone before the experts
};

}  // namespace penstock
