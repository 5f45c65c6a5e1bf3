#include "penstock/schedule/schedule.h"

#include <algorithm>
#include <string>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// What the disk may have under way or just have brought while experts are computed.
constexpr uint64_t kRingBytes = 192 * kMiB;

}  // namespace

std::string_view ScheduleName(ScheduleKind kind) {
  constexpr std::string_view kNames[] = {"on-demand",  "zero",   "zigzag", "hybrid", "klotski", "zigzag-cpu-attention",
                                         "fastdecode", "cgopipe"};
  return kNames[static_cast<int>(kind)];
}

absl::StatusOr<ScheduleKind> ParseScheduleName(std::string_view name) {
  std::string known;
  for (const ScheduleKind kind : kAllSchedules) {
    if (ScheduleName(kind) == name) return kind;
    known += ", " + std::string(ScheduleName(kind));
  }
  return UsageError("--schedule '{}' is unknown: expected auto{}", name, known);
}

std::unique_ptr<Schedule> MakeSchedule(const ScheduleOptions& options, const ModelConfig& config) {
  switch (options.kind) {
    case ScheduleKind::kOnDemand: return MakeOnDemand();
    case ScheduleKind::kHybrid: return MakeHybrid(options, config);
    case ScheduleKind::kZero: return MakeZigzag(config, /*one_micro_batch=*/true);
    case ScheduleKind::kZigzag: return MakeZigzag(config, /*one_micro_batch=*/false);
    case ScheduleKind::kZigzagCpuAttention:
    case ScheduleKind::kFastdecode:
    case ScheduleKind::kCgopipe: return MakeHostAttention(options.kind, config);
    case ScheduleKind::kKlotski: break;
  }
  return MakeKlotski(options, config);
}

ExpertTiers::Device::Preload PreloadOf(const ScheduleOptions& options) {
  using Preload = ExpertTiers::Device::Preload;
  if (options.kind != ScheduleKind::kHybrid) return Preload::kNone;
  return options.hybrid_rule == HybridRule::kFixed ? Preload::kFirstLayers : Preload::kEvenly;
}

int64_t LeastStreamingSlots(ScheduleKind kind, const ModelConfig& config) {
  return IsLayerByLayer(kind) ? config.num_experts : 2;  // one is computed while the other is read
}

int64_t StreamingSlots(ScheduleKind kind, const ModelConfig& config, int64_t num_slots, uint64_t slot_bytes) {
  if (IsLayerByLayer(kind)) return 2 * config.num_experts;
  // Where slots are few or small, half of them: a disk wants many small reads under way.
  const auto ring = static_cast<int64_t>(CeilDiv(kRingBytes, std::max<uint64_t>(slot_bytes, 1)));
  return std::max(LeastStreamingSlots(kind, config) + 1, std::min(ring, num_slots / 2));
}

}  // namespace penstock
