#include "penstock/memory/eviction.h"

#include <list>
#include <string>
#include <utility>

#include "penstock/base/status.h"

namespace penstock {
namespace {

// Slots in the order in which they should go.
class Order {
 public:
  explicit Order(int64_t num_slots) : places_(static_cast<size_t>(num_slots), slots_.end()) {}
  void MoveToBack(int slot_idx) {
    std::list<int>::iterator& place = places_[slot_idx];
    if (place == slots_.end()) {
      place = slots_.insert(slots_.end(), slot_idx);
    } else {
      slots_.splice(slots_.end(), slots_, place);
    }
  }
  void Remove(int slot_idx) {
    std::list<int>::iterator& place = places_[slot_idx];
    if (place != slots_.end()) slots_.erase(place);
    place = slots_.end();
  }
  const std::list<int>& slots() const { return slots_; }

 private:
  std::list<int> slots_;
  std::vector<std::list<int>::iterator> places_;
};

class LruPolicy : public EvictionPolicy {
 public:
  explicit LruPolicy(int64_t num_slots) : order_(num_slots) {}
  void OnLoad(int slot_idx, int64_t) override { order_.MoveToBack(slot_idx); }
  void OnUse(int slot_idx) override { order_.MoveToBack(slot_idx); }
  int Victim(absl::FunctionRef<bool(int)> may_go) const override {
    for (const int slot_idx : order_.slots()) {
      if (may_go(slot_idx)) return slot_idx;
    }
    return -1;
  }

 private:
  Order order_;
};

// Uses are counted for each expert, also while it is away: an expert that is wanted again and again stays when it
// comes.
class LfuPolicy : public EvictionPolicy {
 public:
  LfuPolicy(int64_t num_slots, size_t num_experts)
      : order_(num_slots), keys_(static_cast<size_t>(num_slots)), num_uses_(num_experts) {}
  void OnLoad(int slot_idx, int64_t key) override {
    keys_[slot_idx] = key;
    order_.MoveToBack(slot_idx);
  }
  void OnUse(int slot_idx) override {
    ++num_uses_[keys_[slot_idx]];
    order_.MoveToBack(slot_idx);
  }
  int Victim(absl::FunctionRef<bool(int)> may_go) const override {
    int victim = -1;
    for (const int slot_idx : order_.slots()) {
      if (!may_go(slot_idx)) continue;
      if (victim < 0 || num_uses_[keys_[slot_idx]] < num_uses_[keys_[victim]]) victim = slot_idx;
    }
    return victim;
  }

 private:
  Order order_;
  std::vector<int64_t> keys_;      // by slot
  std::vector<int64_t> num_uses_;  // by expert
};

// First in, first out, but for what is pinned.
class FifoPolicy : public EvictionPolicy {
 public:
  FifoPolicy(int64_t num_slots, std::vector<bool> pinned) : order_(num_slots), pinned_(std::move(pinned)) {}
  void OnLoad(int slot_idx, int64_t key) override {
    if (pinned_[key]) {
      order_.Remove(slot_idx);  // nobody looks at it again: there may be thousands
    } else {
      order_.MoveToBack(slot_idx);
    }
  }
  void OnUse(int) override {}
  int Victim(absl::FunctionRef<bool(int)> may_go) const override {
    for (const int slot_idx : order_.slots()) {
      if (may_go(slot_idx)) return slot_idx;
    }
    return -1;
  }

 private:
  Order order_;               // of what is not pinned
  std::vector<bool> pinned_;  // by expert
};

}  // namespace

std::string_view EvictionName(Eviction eviction) {
  constexpr std::string_view kNames[] = {"lru", "lfu", "fifo", "static"};
  return kNames[static_cast<int>(eviction)];
}

absl::StatusOr<Eviction> ParseEvictionName(std::string_view name) {
  std::string known = "auto";
  for (const Eviction eviction : kAllEvictions) {
    if (EvictionName(eviction) == name) return eviction;
    known += ", " + std::string(EvictionName(eviction));
  }
  return UsageError("eviction '{}' is unknown: expected {}", name, known);
}

std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(Eviction eviction, int64_t num_slots, std::vector<bool> pinned) {
  switch (eviction) {
    case Eviction::kLru: return std::make_unique<LruPolicy>(num_slots);
    case Eviction::kLfu: return std::make_unique<LfuPolicy>(num_slots, pinned.size());
    case Eviction::kFifo: return std::make_unique<FifoPolicy>(num_slots, std::vector<bool>(pinned.size()));
    case Eviction::kStatic: break;
  }
  return std::make_unique<FifoPolicy>(num_slots, std::move(pinned));
}

}  // namespace penstock
