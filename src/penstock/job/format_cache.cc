#include "penstock/job/format_cache.h"

#include <algorithm>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/grammar/constraint.h"

namespace penstock {

uint64_t FormatBytesOf(uint64_t budget_bytes) {
  constexpr uint64_t kMost = 64 * kMiB, kUsual = 16 * kMiB, kShare = 32;
  return budget_bytes == 0 ? kUsual : std::clamp<uint64_t>(budget_bytes / kShare, kMiB, kMost);
}

absl::StatusOr<std::shared_ptr<const Constraint>> FormatCache::Compile(const Engine& engine,
                                                                       const RequestFormat& format) {
  constexpr size_t kMaxFormats = 4;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find(kept_, format.format, [](const auto& kept) -> const OutputFormat& { return kept.first; });
    if (found != kept_.end()) return found->second;
    if (!MakesRoom()) {
      return ResourceError("{}: the formats of requests under way take too much memory; try again", format.field);
    }
  }
  absl::StatusOr<std::shared_ptr<const Constraint>> constraint = engine.CompileFormat(format.format);
  if (!constraint.ok()) return Annotate(constraint.status(), format.field);
  const std::lock_guard lock(mutex_);
  std::erase_if(live_, [](const auto& one) { return one.expired(); });
  live_.push_back(*constraint);
  if (kept_.size() >= kMaxFormats) kept_.pop_front();
  kept_.emplace_back(format.format, *constraint);
  return constraint;
}

bool FormatCache::HasRoom() {
  const std::lock_guard lock(mutex_);
  return MakesRoom();
}

bool FormatCache::MakesRoom() {
  if (LiveBytes() <= max_bytes_) return true;
  kept_.clear();
  return LiveBytes() <= max_bytes_;
}

uint64_t FormatCache::LiveBytes() const {
  uint64_t num_bytes = 0;
  for (const auto& one : live_) {
    if (const auto constraint = one.lock()) num_bytes += constraint->memory_bytes();
  }
  return num_bytes;
}

}  // namespace penstock
