#include "penstock/tokenizer/vocabulary.h"

#include <bit>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// absl::Hash has a seed per process, so nobody can build a vocabulary that collides.
size_t HashText(std::string_view text) {
  return absl::Hash<absl::string_view>{}(absl::string_view(text.data(), text.size()));
}

size_t HashPair(TokenId left, TokenId right) {
  return absl::Hash<uint64_t>{}(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
                                static_cast<uint32_t>(right));
}

size_t NumSlotsFor(size_t num_entries) { return std::bit_ceil(num_entries * 2 + 16); }

}  // namespace

void Vocabulary::Reserve(size_t num_tokens, size_t num_bytes) {
  arena_.reserve(num_bytes);
  spans_.reserve(num_tokens);
  if (NumSlotsFor(num_tokens) > slots_.size()) Grow(NumSlotsFor(num_tokens));
}

absl::Status Vocabulary::Add(std::string_view text, int64_t id, std::string_view where) {
  if (id < 0 || id >= kMaxVocabSize) {
    return ModelError("{}: token '{}': expected an id from 0 to {}, found {}", where, text, kMaxVocabSize - 1, id);
  }
  if (text.empty()) return ModelError("{}: the token of id {} is empty", where, id);
  if (id < size() && spans_[id].num_bytes > 0) {
    return ModelError("{}: tokens '{}' and '{}' have the same id {}", where, Text(static_cast<TokenId>(id)), text, id);
  }
  if (arena_.size() + text.size() > UINT32_MAX) return ModelError("{}: more than 4 GiB of tokens", where);
  if (NumSlotsFor(static_cast<size_t>(num_tokens_) + 1) > slots_.size()) {
    Grow(NumSlotsFor(static_cast<size_t>(num_tokens_) * 2));
  }
  const size_t slot = SlotOf(text);
  if (slots_[slot] >= 0) {
    return ModelError("{}: token '{}' has two ids, {} and {}", where, text, slots_[slot], id);
  }
  slots_[slot] = static_cast<TokenId>(id);
  if (id >= size()) spans_.resize(static_cast<size_t>(id) + 1);
  spans_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size())};
  arena_.append(text);
  ++num_tokens_;
  return absl::OkStatus();
}

TokenId Vocabulary::Find(std::string_view text) const {
  if (slots_.empty() || text.empty()) return -1;
  return slots_[SlotOf(text)];
}

std::string_view Vocabulary::Text(TokenId id) const {
  if (id < 0 || id >= size()) return {};
  const Span& span = spans_[id];
  return std::string_view(arena_).substr(span.offset, span.num_bytes);
}

uint64_t Vocabulary::memory_bytes() const {
  return arena_.capacity() + spans_.capacity() * sizeof(Span) + slots_.capacity() * sizeof(TokenId);
}

// Returns the slot of `text`, or the free slot where it belongs.
size_t Vocabulary::SlotOf(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = HashText(text) & mask;
  while (slots_[slot] >= 0 && Text(slots_[slot]) != text) slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::Grow(size_t num_slots) {
  const std::vector<TokenId> old = std::exchange(slots_, std::vector<TokenId>(num_slots, -1));
  for (const TokenId id : old) {
    if (id >= 0) slots_[SlotOf(Text(id))] = id;
  }
}

void MergeTable::Reserve(size_t num_merges) {
  if (NumSlotsFor(num_merges) > slots_.size()) Grow(NumSlotsFor(num_merges));
}

void MergeTable::Add(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
  if (NumSlotsFor(num_merges_ + 1) > slots_.size()) Grow(NumSlotsFor(num_merges_ * 2));
  Slot& slot = slots_[SlotOf(left, right)];
  if (!slot.merge.exists()) ++num_merges_;
  slot = {left, right, {rank, merged}};
}

MergeTable::Merge MergeTable::Find(TokenId left, TokenId right) const {
  if (slots_.empty() || left < 0 || right < 0) return {};
  return slots_[SlotOf(left, right)].merge;
}

void MergeTable::RemoveMergesInto(const absl::flat_hash_set<TokenId>& tokens) {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size()));
  num_merges_ = 0;
  for (const Slot& slot : old) {
    if (!slot.merge.exists() || tokens.contains(slot.merge.merged)) continue;
    slots_[SlotOf(slot.left, slot.right)] = slot;
    ++num_merges_;
  }
}

size_t MergeTable::SlotOf(TokenId left, TokenId right) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = HashPair(left, right) & mask;
  while (slots_[slot].merge.exists() && (slots_[slot].left != left || slots_[slot].right != right)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void MergeTable::Grow(size_t num_slots) {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(num_slots));
  for (const Slot& slot : old) {
    if (slot.merge.exists()) slots_[SlotOf(slot.left, slot.right)] = slot;
  }
}

}  // namespace penstock
