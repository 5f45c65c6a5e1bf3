// The budget of one tier: the bytes that it may use, and their uses. Every reservation has a tag, so that a refusal can
// show the arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

enum class MemoryTag : uint8_t { kFixed, kDense, kKvCache, kActivations, kExperts };
inline constexpr int kNumMemoryTags = 5;
std::string_view MemoryTagName(MemoryTag tag);

class TierBudget {
 public:
  explicit TierBudget(uint64_t capacity_bytes) : capacity_(capacity_bytes) {}

  // Adds `size_bytes` to `tag`. When they do not fit, fails with kResources and lists all reservations.
  absl::Status Reserve(MemoryTag tag, uint64_t size_bytes);

  uint64_t capacity_bytes() const { return capacity_; }
  uint64_t used_bytes() const;
  uint64_t free_bytes() const { return capacity_ - used_bytes(); }
  uint64_t reserved_bytes(MemoryTag tag) const { return reserved_[static_cast<int>(tag)]; }

  // Returns "dense weights 3.1 MiB + KV cache 4.0 MiB + ...".
  std::string Account() const;

 private:
  uint64_t capacity_;
  std::array<uint64_t, kNumMemoryTags> reserved_ = {};
};

// Returns the shortest size that --memory takes and that is not less than `bytes`, to three digits: "16.7MiB".
std::string SizeToType(uint64_t bytes);

// Why the smallest plan does not fit a budget.
struct BudgetShortage {
  enum class Tier : uint8_t { kHost, kDevice };
  Tier tier = Tier::kHost;
  bool has_batch_size = false;  // a batch size was asked for, and a smaller one would need less
  uint64_t least_bytes = 0;
  std::string account;  // "the memory budget of 1 MiB is too small: dense weights 3.1 MiB + ... = 9 MiB"
};

// Returns kResources with the account, the least budget, and the flag that gives it.
absl::Status TooSmall(const BudgetShortage& shortage);

// Returns the error of one of `num_parts` engines that share the budget equally: it names the whole budget. Another
// error stays as it is.
absl::Status TooSmallForParts(const absl::Status& status, int num_parts);

}  // namespace penstock
