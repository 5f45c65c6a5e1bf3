#include "penstock/job/format_cache.h"

#include <algorithm>

#include "penstock/base/status.h"

namespace penstock {

absl::StatusOr<std::shared_ptr<const Constraint>> FormatCache::Compile(const Engine& engine,
                                                                       const RequestFormat& format) {
  constexpr size_t kMaxFormats = 4;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find(kept_, format.format, [](const auto& kept) -> const OutputFormat& { return kept.first; });
    if (found != kept_.end()) return found->second;
  }
  absl::StatusOr<std::shared_ptr<const Constraint>> constraint = engine.CompileFormat(format.format);
  if (!constraint.ok()) return Annotate(constraint.status(), format.field);
  const std::lock_guard lock(mutex_);
  if (kept_.size() >= kMaxFormats) kept_.pop_front();
  kept_.emplace_back(format.format, *constraint);
  return constraint;
}

}  // namespace penstock
