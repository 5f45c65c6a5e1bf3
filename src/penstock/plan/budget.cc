#include "penstock/plan/budget.h"

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"

namespace penstock {

std::string_view MemoryTagName(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::kFixed: return "tokenizer and tables";
    case MemoryTag::kDense: return "dense weights";
    case MemoryTag::kKvCache: return "KV cache";
    case MemoryTag::kActivations: return "activations";
    case MemoryTag::kExperts: return "expert slots";
  }
  return "unknown";
}

uint64_t TierBudget::used_bytes() const {
  uint64_t used = 0;
  for (const uint64_t bytes : reserved_) used += bytes;
  return used;
}

absl::Status TierBudget::Reserve(MemoryTag tag, uint64_t size_bytes) {
  if (size_bytes > free_bytes()) {
    return ResourceError("{} needs {}, but of the budget of {} only {} is free (used: {})", MemoryTagName(tag),
                         FormatBytes(size_bytes), FormatBytes(capacity_), FormatBytes(free_bytes()), Account());
  }
  reserved_[static_cast<int>(tag)] += size_bytes;
  return absl::OkStatus();
}

std::string TierBudget::Account() const {
  std::string account;
  for (int i = 0; i < kNumMemoryTags; ++i) {
    if (reserved_[i] == 0) continue;
    account += fmt::format("{}{} {}", account.empty() ? "" : " + ", MemoryTagName(static_cast<MemoryTag>(i)),
                           FormatBytes(reserved_[i]));
  }
  return account.empty() ? "nothing" : account;
}

}  // namespace penstock
