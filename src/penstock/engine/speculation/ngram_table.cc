#include "penstock/engine/speculation/ngram_table.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr uint32_t kCountMask = NgramTable::kNumCounts - 1;

}  // namespace

uint64_t NgramTable::Hash(std::span<const TokenId> context) {
  uint64_t hash = 0x9e3779b97f4a7c15u * context.size();
  for (const TokenId id : context) {
    hash = (hash ^ static_cast<uint64_t>(static_cast<uint32_t>(id))) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

void NgramTable::Learn(std::span<const TokenId> tokens) {
  const std::span<const TokenId> before = tokens.first(tokens.size() - 1);
  const TokenId next = tokens.back();
  for (const int order : kOrders) {
    if (before.size() < static_cast<size_t>(order)) continue;
    const uint64_t hash = Hash(before.last(order));
    const uint32_t tag = static_cast<uint32_t>(hash >> 32) & ~kCountMask;
    Entry& entry = entries_[hash % entries_.size()];
    const uint32_t count = entry.tag & kCountMask;
    if ((entry.tag & ~kCountMask) != tag || entry.token_id < 0) {
      entry = {.tag = tag, .token_id = next};
    } else if (entry.token_id == next) {
      entry.tag = tag | std::min(count + 1, kCountMask);
    } else if (count > 0) {
      entry.tag = tag | (count - 1);
    } else {
      entry.token_id = next;
    }
  }
}

NgramTable::Guess NgramTable::Next(std::span<const TokenId> tokens) const {
  for (int i = 0; i < kNumOrders; ++i) {
    const size_t order = kOrders[i];
    if (tokens.size() < order) continue;
    const uint64_t hash = Hash(tokens.last(order));
    const Entry& entry = entries_[hash % entries_.size()];
    if (entry.token_id < 0 || ((entry.tag ^ static_cast<uint32_t>(hash >> 32)) & ~kCountMask) != 0) continue;
    return {.token_id = entry.token_id, .kind = i * kNumCounts + static_cast<int>(entry.tag & kCountMask)};
  }
  return {};
}

}  // namespace penstock
