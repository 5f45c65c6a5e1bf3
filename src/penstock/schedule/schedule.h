// A schedule decides in which order a pass's operations and transfers are issued. Each has its own file.
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

// Keeps what it fetches ahead from one pass to the next.
class Schedule {
 public:
  virtual ~Schedule() = default;
  // One pass, from the embedding to the last layer; Pass::Finish computes the logits. Failures of reads are the rows'
  // (Pass::row_status); an error is a fault of ours.
  virtual absl::Status Run(Pass& pass) = 0;
  // Lets go of what was fetched ahead.
  virtual void Reset() {}
  // What it predicts from, to be loaded and saved; null when it predicts nothing.
  virtual CorrelationTable* correlation() { return nullptr; }
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kOnDemand;
  // Klotski's switches, for its ablation.
  bool multi_batch = true;
  bool hot_prefetch = true;
  bool reorder = true;
  int64_t hot_experts = 0;  // fetched ahead for each layer; 0: all that are probably needed
  int64_t path_length = 1;  // layers before one that predict it; 0 to kMaxPathLength
  HybridRule hybrid_rule = HybridRule::kBalanced;
  PredictorKind predictor = PredictorKind::kNone;  // hybrid fetches ahead what it says
};

// A row of the table of schedules (include/penstock/schedules.def): what the rest of the engine asks of a schedule.
struct ScheduleTraits {
  ScheduleKind value;
  std::string_view name;     // "on-demand"
  std::string_view summary;  // one line for people
  std::unique_ptr<Schedule> (*make)(const ScheduleOptions& options, const ModelConfig& config);
  bool attends_on_host = false;  // while a device computes the layers: it needs one
  // All experts of a layer are in slots at a time, and each micro-batch is computed with them. Other schedules compute
  // each expert once, for all rows.
  bool is_layer_by_layer = false;
  Eviction eviction = Eviction::kStatic;  // where nothing else is asked for
  bool needs_rates = false;               // plans by the seconds that tasks take
  bool fetches_by_predictor = false;
  bool host_computes_experts = false;  // beside a device
  bool keeps_kv_on_device = false;     // where nothing else is asked for
  bool learns_correlation = false;     // and predicts from it
  bool pins_by_popularity = false;     // with eviction static and a correlation table
  // The policy search tries it. Hybrid plans layer by layer by the seconds that lanes take, and may do worse with a
  // faster link; its worth also depends on how soon tokens want the same experts again, which a workload does not say.
  bool is_searched = true;
};
std::span<const ScheduleTraits> Schedules();
const ScheduleTraits& TraitsOf(ScheduleKind kind);

// Whether the schedule asks what the gates of the next layers would choose, and how routers rated the experts.
bool NeedsGates(const ScheduleOptions& options);
bool NeedsScores(const ScheduleOptions& options);

// What a device should hold before the first step: a fixed mapping is made of whole layers, as KTransformers has it.
ExpertTiers::Device::Preload PreloadOf(const ScheduleOptions& options);

// Streaming slots (of the processor that computes the layers) without which a schedule cannot run.
int64_t LeastStreamingSlots(ScheduleKind kind, const ModelConfig& config);
// How many of `num_slots` should not be pinned: what is computed, and what the link brings meanwhile.
int64_t StreamingSlots(ScheduleKind kind, const ModelConfig& config, int64_t num_slots, uint64_t slot_bytes);

// Memory that any schedule takes at most, beside leases; and of it what its correlation table may keep.
uint64_t ScheduleBytes(const ModelConfig& config, int64_t path_length);
int64_t MostCorrelationPaths(const ModelConfig& config, int64_t path_length);
CorrelationShape CorrelationShapeOf(const ModelConfig& config, int64_t path_length);

}  // namespace penstock
