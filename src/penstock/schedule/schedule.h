// A schedule decides in which order a pass's operations and transfers are issued. Each schedule has its own file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/memory/expert_tiers.h"
#include "penstock/model/model_config.h"
#include "penstock/policy.h"
#include "penstock/routing/correlation_table.h"
#include "penstock/routing/expert_predictor.h"
#include "penstock/schedule/expert_split.h"
#include "penstock/schedule/pass.h"

namespace penstock {

// Keeps the experts that it fetched ahead from one pass to the next.
class Schedule {
 public:
  virtual ~Schedule() = default;
  // Runs one pass, from the embedding to the last layer; Pass::Finish() computes the logits. A failed read fails only
  // the rows that need it (PassArgs::row_status). A returned error is a fault of the engine.
  virtual absl::Status Run(Pass& pass) = 0;
  // Releases the experts that were fetched ahead.
  virtual void Reset() {}
  // Returns the table that the schedule predicts from, to be loaded and saved; null for a schedule without one.
  virtual CorrelationTable* correlation() { return nullptr; }
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kOnDemand;
  // Switches of Klotski, for its ablation.
  bool multi_batch = true;
  bool hot_prefetch = true;
  bool reorder = true;
  int64_t hot_experts = 0;  // maximum fetched ahead for each layer; 0: all that are probably needed
  int64_t path_length = 1;  // layers before a layer that predict its experts; 0 to kMaxPathLength
  HybridRule hybrid_rule = HybridRule::kBalanced;
  int64_t expert_groups = 0;                       // on several ranks (schedule/ranks/expert_pipeline.h); 0: chosen
  PredictorKind predictor = PredictorKind::kNone;  // names the experts that hybrid fetches ahead
  bool replaces_routers = false;                   // the predictor does; it has a network
  std::shared_ptr<const SidaNetwork> network = nullptr;  // of the predictor, if it needs one
  uint64_t network_state_bytes = 0;                      // of the sequences that it follows
  int64_t max_ahead = 0;  // sequences for whose next rows the network runs beside the passes before them
};

// A row of the table of schedules (include/penstock/schedules.def): what the rest of the engine needs to know.
struct ScheduleTraits {
  ScheduleKind value;
  std::string_view name;     // "on-demand"
  std::string_view summary;  // one line for people
  std::unique_ptr<Schedule> (*make)(const ScheduleOptions& options, const ModelConfig& config);
  bool attends_on_host = false;  // the host attends while a device computes the layers; needs a device
  // All experts of a layer are in slots at the same time, and each micro-batch is computed with them. Other schedules
  // compute each expert once, for all rows.
  bool is_layer_by_layer = false;
  Eviction eviction = Eviction::kStatic;  // the default
  bool needs_rates = false;               // plans with the times that tasks take
  bool fetches_by_predictor = false;
  bool host_computes_experts = false;  // computes some experts on the host, others on a device
  bool keeps_kv_on_device = false;     // the default with a device
  bool learns_correlation = false;     // learns a correlation table and predicts from it
  bool pins_by_popularity = false;     // if eviction is static and a correlation table is given
};
std::span<const ScheduleTraits> Schedules();
const ScheduleTraits& TraitsOf(ScheduleKind kind);

// NeedsGates() returns whether the schedule asks what the gates of the next layers would choose. NeedsScores() returns
// whether it asks how routers rated the experts.
bool NeedsGates(const ScheduleOptions& options);
bool NeedsScores(const ScheduleOptions& options);

// Returns whether so many rows are expected to choose at most three quarters of a layer's experts. If all experts are
// equally likely, b rows choose E * (1 - (1 - k / E)^b) of E experts.
bool RowsChooseFew(const ModelConfig& config, int64_t num_rows);

// Returns the experts that a device should hold before the first step. The fixed mapping consists of whole layers, as
// in KTransformers.
ExpertTiers::Device::Preload PreloadOf(const ScheduleOptions& options);

// Returns the minimum number of streaming slots for a schedule, on the processor that computes the layers, which have
// `num_experts` experts each.
int64_t MinStreamingSlots(ScheduleKind kind, int64_t num_experts);
// Returns how many of `num_slots` should not be pinned. They hold the experts that are computed and those that are
// fetched meanwhile.
int64_t StreamingSlots(ScheduleKind kind, int64_t num_experts, int64_t num_slots, uint64_t slot_bytes);

// ScheduleBytes() returns the maximum memory of any schedule, without its leases. MaxCorrelationPaths() returns the
// maximum number of paths of its correlation table.
uint64_t ScheduleBytes(const ModelConfig& config, int64_t path_length);
int64_t MaxCorrelationPaths(const ModelConfig& config, int64_t path_length);
CorrelationShape CorrelationShapeOf(const ModelConfig& config, int64_t path_length);

}  // namespace penstock
