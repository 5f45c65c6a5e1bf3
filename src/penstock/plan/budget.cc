#include "penstock/plan/budget.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/cord.h"
#include "penstock/base/bytes.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// A status with a shortage: the letter of its tier, whether a batch size was asked for (1 or 0), the least bytes, a
// space, the account.
constexpr char kShortagePayload[] = "penstock/shortage";

absl::Status TooSmallStatus(const BudgetShortage& shortage, std::string_view least) {
  const bool is_host = shortage.tier == BudgetShortage::Tier::kHost;
  absl::Status status =
      ResourceError("{}; {} is {} bytes (give {} {} or more, or a smaller --context-length{})", shortage.account, least,
                    shortage.least_bytes, is_host ? "--memory" : "--gpu-memory", SizeToType(shortage.least_bytes),
                    shortage.has_batch_size ? " or --batch-size" : "");
  status.SetPayload(kShortagePayload,
                    absl::Cord(fmt::format("{}{:d}{} {}", is_host ? 'h' : 'd', shortage.has_batch_size,
                                           shortage.least_bytes, shortage.account)));
  return status;
}

std::string_view LeastWords(const BudgetShortage& shortage) {
  return shortage.tier == BudgetShortage::Tier::kHost ? "the least budget" : "the least device memory";
}

}  // namespace

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

std::string SizeToType(uint64_t bytes) {
  constexpr std::array<std::pair<double, const char*>, 4> kSizes = {
      {{1ull << 40, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}}};
  for (const auto& [unit, name] : kSizes) {
    const double value = static_cast<double>(bytes) / unit;
    if (value < 1) continue;
    const int digits = value < 10 ? 2 : value < 100 ? 1 : 0;
    const double scale = std::pow(10, digits);
    for (double steps = std::ceil(value * scale);; ++steps) {
      std::string size = fmt::format("{:.{}f}{}", steps / scale, digits, name);
      const absl::StatusOr<uint64_t> parsed = ParseBytes(size);
      if (!parsed.ok() || *parsed >= bytes) return size;
    }
  }
  return fmt::format("{}B", bytes);
}

absl::Status TooSmall(const BudgetShortage& shortage) { return TooSmallStatus(shortage, LeastWords(shortage)); }

absl::Status TooSmallForParts(const absl::Status& status, int num_parts) {
  const auto payload = status.GetPayload(kShortagePayload);
  if (!payload.has_value()) return status;
  const std::string text(*payload);
  const size_t space = text.find(' ');
  const BudgetShortage whole{
      .tier = text[0] == 'h' ? BudgetShortage::Tier::kHost : BudgetShortage::Tier::kDevice,
      .has_batch_size = text[1] == '1',
      .least_bytes = static_cast<uint64_t>(num_parts) * std::stoull(text.substr(2, space - 2)),
      .account = text.substr(space + 1),
  };
  return TooSmallStatus(whole, fmt::format("with {} models, {}", num_parts, LeastWords(whole)));
}

}  // namespace penstock
