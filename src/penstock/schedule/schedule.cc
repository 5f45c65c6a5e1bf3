#include "penstock/schedule/schedule.h"

#include <algorithm>
#include <cmath>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"

namespace penstock {

// Each maker is defined in its schedule's file.
#define PENSTOCK_SCHEDULE(kind, called, maker, ...) \
  std::unique_ptr<Schedule> maker(const ScheduleOptions& options, const ModelConfig& config);
#include "penstock/schedules.def"

namespace {

// Bytes of streaming slots that suffice for the experts that the disk reads or has just read, while others are
// computed.
constexpr uint64_t kRingBytes = 192 * kMiB;

constexpr ScheduleTraits kSchedules[] = {
#define PENSTOCK_SCHEDULE(kind, called, maker, line, ...) \
  {.value = ScheduleKind::kind, .name = called, .summary = line, .make = maker, __VA_ARGS__},
#include "penstock/schedules.def"
};

}  // namespace

std::span<const ScheduleTraits> Schedules() { return kSchedules; }
const ScheduleTraits& TraitsOf(ScheduleKind kind) { return kSchedules[static_cast<size_t>(kind)]; }

bool NeedsGates(const ScheduleOptions& options) {
  return TraitsOf(options.kind).fetches_by_predictor && TraitsOf(options.predictor).needs_gates;
}
bool NeedsScores(const ScheduleOptions& options) {
  return TraitsOf(options.kind).fetches_by_predictor && TraitsOf(options.predictor).needs_scores;
}

bool RowsChooseFew(const ModelConfig& config, int64_t num_rows) {
  constexpr double kMaxShare = 0.75;
  const double share = static_cast<double>(config.num_topk) / static_cast<double>(config.num_experts);
  return 1 - std::pow(1 - share, static_cast<double>(num_rows)) <= kMaxShare;
}

ExpertTiers::Device::Preload PreloadOf(const ScheduleOptions& options) {
  using Preload = ExpertTiers::Device::Preload;
  if (!TraitsOf(options.kind).host_computes_experts) return Preload::kNone;
  return options.hybrid_rule == HybridRule::kFixed ? Preload::kFirstLayers : Preload::kEvenly;
}

int64_t MinStreamingSlots(ScheduleKind kind, int64_t num_experts) {
  return TraitsOf(kind).is_layer_by_layer ? num_experts : 2;  // one is computed while the other is read
}

int64_t StreamingSlots(ScheduleKind kind, int64_t num_experts, int64_t num_slots, uint64_t slot_bytes) {
  if (TraitsOf(kind).is_layer_by_layer) return 2 * num_experts;
  // If slots are few or small, half of them stream. Small experts need many slots, because a disk needs many reads
  // under way.
  const auto ring = static_cast<int64_t>(CeilDiv(kRingBytes, std::max<uint64_t>(slot_bytes, 1)));
  return std::max(MinStreamingSlots(kind, num_experts) + 1, std::min(ring, num_slots / 2));
}

}  // namespace penstock
