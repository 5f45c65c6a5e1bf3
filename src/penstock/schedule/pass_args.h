// The parts that one pass over the model is made of: processors, their links, stores of experts, and rows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "penstock/base/thread_pool.h"
#include "penstock/hardware/hardware.h"
#include "penstock/memory/copier.h"
#include "penstock/memory/expert_store.h"
#include "penstock/memory/kv_staging.h"
#include "penstock/model/cost.h"
#include "penstock/ops/operations.h"
#include "penstock/parallel/communicator.h"
#include "penstock/parallel/head_split.h"
#include "penstock/routing/routing_source.h"
#include "penstock/runtime/runtime.h"
#include "penstock/runtime/simulated_runtime.h"
#include "penstock/schedule/lane_rates.h"
#include "penstock/schedule/ranks/rank_rows.h"

namespace penstock {

// A processor: the lane of its tasks, and the operations that the tasks run.
struct PassProcessor {
  LaneIdx lane = 0;
  Operations* operations = nullptr;  // null in a simulation
};

// A device that computes the layers, and its links to the host.
struct PassDevice {
  PassProcessor processor;
  LaneIdx dram_to_device_lane = 0;
  LaneIdx device_to_dram_lane = 0;
  Copier* to_device = nullptr;  // null in a simulation, like to_host
  Copier* to_host = nullptr;
  // Buffers for attention on the device. Null if the KV cache lies on the device.
  KvStaging* kv_staging = nullptr;
  bool holds_kv_cache = false;
};

// This rank's share of the attention heads, if the ranks share them.
struct RankHeads {
  const ModelCost* cost = nullptr;   // of a model that has only these heads
  int64_t row_bytes = 0;             // of a row of gemm_input
  Operations* operations = nullptr;  // with activations for the rows of all ranks; null in a simulation
  KvLayer kv;                        // layer 0 in the KV cache's pages
};

// The other ranks that share the experts, and the lanes to them and from them. All ranks have the same values.
struct PassRankLanes {
  Communicator* communicator = nullptr;
  LaneIdx to_ranks_lane = 0;
  LaneIdx from_ranks_lane = 0;
  std::optional<RankHeads> heads = std::nullopt;
  const ModelCost* cut_expert_cost = nullptr;  // of a rank's part of an expert, if the ranks cut them
  int64_t expert_groups =
      0;           // groups of a rank's experts (schedule/ranks/expert_pipeline.h); 0: chosen by these times:
  Link link = {};  // between two ranks
  TaskDuration compute_time = {};     // of experts
  SimulatedRuntime* clock = nullptr;  // only in a simulation: the pass's runtime; all ranks begin passes at one time
};

struct PassArgs {
  const ModelConfig& config;
  const ModelCost& cost;
  Runtime& runtime;
  PassProcessor host;                // embeds, samples, attends if a schedule says so, computes if there is no device
  ThreadPool* host_pool = nullptr;   // checks experts that have arrived; null in a simulation
  std::optional<PassDevice> device;  // computes the layers
  std::optional<PassRankLanes> ranks = std::nullopt;  // with a device only in a simulation
  const RankRows* rank_rows = nullptr;                // with ranks that share heads
  CommFormat comm = CommFormat::kF32;                 // of experts' outputs
  KvFormat kv_format = KvFormat::kF32;                // of the KV cache's pages
  const RecurrentState* states = nullptr;             // in the same cache's pages; null in a simulation
  ExpertStore* experts = nullptr;       // in the memory of the processor that computes the layers; null without experts
  ExpertStore* host_experts = nullptr;  // in DRAM, if a device computes the layers; the host can compute them
  const LaneRates* rates = nullptr;     // the rates that planning schedules expect; null if the schedule plans nothing
  RoutingSource& routing;
  const RowBatch& batch;
  std::vector<RowRange> micro_batches;    // all rows, in order
  std::vector<absl::Status>& row_status;  // [num_rows]: OK, or why the row has no result; written by tasks
  int64_t rows_at_once = 1;               // rows whose logits are computed at once
  int64_t ffn_row_bytes = 0;              // bytes of a row in the form that experts take
  LaneIdx predict_lane = -1;              // of predictors that work ahead of the pass; -1: none does
  // Whether Route() also runs the gates of the next layers, for RoutingSource::ChoicesAhead().
  bool looks_ahead = false;
  // Whether router scores are copied to the host (RoutingSource::Scores()) even if no eviction policy wants them.
  bool wants_scores = false;
  // Called once for each row and layer with the experts that the row chose, one call at a time. Optional.
  std::function<void(int64_t layer_idx, RowRange rows, std::span<const int32_t> choices)> on_routing = {};

  // Returns the processor that computes the layers.
  const PassProcessor& compute() const { return device.has_value() ? device->processor : host; }
  bool is_simulated() const { return host.operations == nullptr; }
};

}  // namespace penstock
