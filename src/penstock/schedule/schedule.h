// A schedule decides in which order a pass's operations and transfers are issued. Each has its own file.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/memory/expert_tiers.h"
#include "penstock/model/model_config.h"
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

enum class ScheduleKind : uint8_t {
  kOnDemand,  // layer by layer over all rows; experts are fetched when the router has chosen them
  kZero,      // ZeRO-Inference: layer by layer, all experts of the next layer fetched ahead; one micro-batch a pass
  kZigzag,    // FlexGen: the same for all micro-batches of the batch
  kHybrid,    // HybriMoE: each expert where it is computed soonest, on the host or on a device
  kKlotski,   // gate-decided transfers, hot experts ahead, expert by expert over all micro-batches in order of arrival
  // For a device: the host attends, in DRAM.
  kZigzagCpuAttention,  // FlexGen(c): the device waits meanwhile
  kFastdecode,          // FastDecode: the host attends ahead of the device
  kCgopipe,             // MoE-Lightning: and weights come in pages between hidden states
};
inline constexpr ScheduleKind kAllSchedules[] = {ScheduleKind::kOnDemand,   ScheduleKind::kZero,
                                                 ScheduleKind::kZigzag,     ScheduleKind::kHybrid,
                                                 ScheduleKind::kKlotski,    ScheduleKind::kZigzagCpuAttention,
                                                 ScheduleKind::kFastdecode, ScheduleKind::kCgopipe};
// Whether it needs to know what tasks take.
constexpr bool PlansByRates(ScheduleKind kind) { return kind == ScheduleKind::kHybrid; }
// Whether it attends on the host while a device computes the layers.
constexpr bool AttendsOnHost(ScheduleKind kind) { return kind >= ScheduleKind::kZigzagCpuAttention; }
// Whether all experts of a layer are in slots at a time, and each micro-batch is computed with them; else each expert
// is computed once, for all rows.
constexpr bool IsLayerByLayer(ScheduleKind kind) {
  return kind == ScheduleKind::kZero || kind == ScheduleKind::kZigzag || AttendsOnHost(kind);
}
std::string_view ScheduleName(ScheduleKind kind);  // "on-demand"
// kUsage names those that there are.
absl::StatusOr<ScheduleKind> ParseScheduleName(std::string_view name);

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
// Whether it asks what the gates of the next layers would choose.
constexpr bool LooksAhead(const ScheduleOptions& options) {
  return options.kind == ScheduleKind::kHybrid && options.predictor == PredictorKind::kGate;
}
// Whether it asks how routers rated the experts.
constexpr bool WantsScores(const ScheduleOptions& options) {
  return options.kind == ScheduleKind::kHybrid && options.predictor == PredictorKind::kHistory;
}
std::unique_ptr<Schedule> MakeSchedule(const ScheduleOptions& options, const ModelConfig& config);

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

std::unique_ptr<Schedule> MakeOnDemand();
std::unique_ptr<Schedule> MakeHybrid(const ScheduleOptions& options, const ModelConfig& config);
std::unique_ptr<Schedule> MakeZigzag(const ModelConfig& config, bool one_micro_batch);
std::unique_ptr<Schedule> MakeHostAttention(ScheduleKind kind, const ModelConfig& config);
std::unique_ptr<Schedule> MakeKlotski(const ScheduleOptions& options, const ModelConfig& config);

}  // namespace penstock
