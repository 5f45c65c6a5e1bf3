#include "penstock/memory/eviction.h"

#include <algorithm>
#include <list>
#include <set>
#include <string>
#include <utility>

namespace penstock {
namespace {

// Slots in the order in which they should leave.
class Order {
 public:
  explicit Order(int64_t num_slots) : places_(num_slots, slots_.end()) {}
  void MoveToBack(SlotId slot_id) {
    std::list<SlotId>::iterator& place = places_[slot_id];
    if (place == slots_.end()) {
      place = slots_.insert(slots_.end(), slot_id);
    } else {
      slots_.splice(slots_.end(), slots_, place);
    }
  }
  void Remove(SlotId slot_id) {
    std::list<SlotId>::iterator& place = places_[slot_id];
    if (place != slots_.end()) slots_.erase(place);
    place = slots_.end();
  }
  const std::list<SlotId>& slots() const { return slots_; }

 private:
  std::list<SlotId> slots_;
  IdVector<SlotId, std::list<SlotId>::iterator> places_;
};

class LruPolicy : public EvictionPolicy {
 public:
  explicit LruPolicy(int64_t num_slots) : order_(num_slots) {}
  void OnLoad(SlotId slot_id, ExpertKey) override { order_.MoveToBack(slot_id); }
  void OnUse(SlotId slot_id) override { order_.MoveToBack(slot_id); }
  SlotId Victim(ExpertKey, absl::FunctionRef<bool(SlotId)> may_go) const override {
    for (const SlotId slot_id : order_.slots()) {
      if (may_go(slot_id)) return slot_id;
    }
    return kNoSlot;
  }

 private:
  Order order_;
};

// Counts the uses of each expert, also while it is absent, so that an expert with many uses stays when it comes back.
class LfuPolicy : public EvictionPolicy {
 public:
  LfuPolicy(int64_t num_slots, size_t num_experts) : order_(num_slots), keys_(num_slots), num_uses_(num_experts) {}
  void OnLoad(SlotId slot_id, ExpertKey key) override {
    keys_[slot_id] = key;
    order_.MoveToBack(slot_id);
  }
  void OnUse(SlotId slot_id) override {
    ++num_uses_[keys_[slot_id]];
    order_.MoveToBack(slot_id);
  }
  SlotId Victim(ExpertKey, absl::FunctionRef<bool(SlotId)> may_go) const override {
    SlotId victim = kNoSlot;
    for (const SlotId slot_id : order_.slots()) {
      if (!may_go(slot_id)) continue;
      if (victim == kNoSlot || num_uses_[keys_[slot_id]] < num_uses_[keys_[victim]]) victim = slot_id;
    }
    return victim;
  }

 private:
  Order order_;
  IdVector<SlotId, ExpertKey> keys_;
  IdVector<ExpertKey, int64_t> num_uses_;
};

// Evicts the expert with the lowest score; among equals, such as experts never rated, the least recently used.
class MrsPolicy : public EvictionPolicy {
 public:
  // Alpha is the weight of the present step. With `by_layer`, a layer that holds its share of the slots gives up one of
  // its own.
  MrsPolicy(const EvictionArgs& args, float alpha, bool by_layer)
      : alpha_(alpha),
        order_(args.num_slots),
        keys_(args.num_slots, kNoExpert),
        scores_(args.layer_of.size()),
        by_layer_(by_layer),
        layer_of_(args.layer_of) {
    const std::set<int64_t> layers(layer_of_.begin(), layer_of_.end());
    num_slots_of_.resize(layers.empty() ? 0 : static_cast<size_t>(*layers.rbegin()) + 1);
    share_ = args.num_slots / std::max<int64_t>(1, std::ssize(layers));
  }

  void OnLoad(SlotId slot_id, ExpertKey key) override {
    if (keys_[slot_id] != kNoExpert) --num_slots_of_[layer_of_[keys_[slot_id]]];
    keys_[slot_id] = key;
    ++num_slots_of_[layer_of_[key]];
    order_.MoveToBack(slot_id);
  }
  void OnUse(SlotId slot_id) override { order_.MoveToBack(slot_id); }
  void OnScores(ExpertKey first_key, std::span<const float> scores) override {
    for (size_t i = 0; i < scores.size(); ++i) {
      float& score = scores_[first_key + static_cast<int64_t>(i)];
      score = alpha_ * scores[i] + (1 - alpha_) * score;
    }
  }
  SlotId Victim(ExpertKey key, absl::FunctionRef<bool(SlotId)> may_go) const override {
    if (!by_layer_) return Lowest(may_go);
    const int64_t layer = layer_of_[key];
    const bool has_share = num_slots_of_[layer] >= share_;
    const SlotId victim = Lowest([&](SlotId slot_id) {
      const int64_t other = layer_of_[keys_[slot_id]];
      return (has_share ? other == layer : num_slots_of_[other] > share_) && may_go(slot_id);
    });
    return victim != kNoSlot ? victim : Lowest(may_go);
  }

 private:
  SlotId Lowest(absl::FunctionRef<bool(SlotId)> may_go) const {
    SlotId victim = kNoSlot;
    for (const SlotId slot_id : order_.slots()) {
      if (victim != kNoSlot && scores_[keys_[slot_id]] >= scores_[keys_[victim]]) continue;
      if (may_go(slot_id)) victim = slot_id;
    }
    return victim;
  }

  float alpha_;
  Order order_;
  IdVector<SlotId, ExpertKey> keys_;
  IdVector<ExpertKey, float> scores_;
  bool by_layer_;
  IdVector<ExpertKey, int64_t> layer_of_;
  std::vector<int64_t> num_slots_of_;  // by layer
  int64_t share_ = 1;
};

// First in, first out, except for pinned experts.
class FifoPolicy : public EvictionPolicy {
 public:
  FifoPolicy(int64_t num_slots, ExpertSet pinned) : order_(num_slots), pinned_(std::move(pinned)) {}
  void OnLoad(SlotId slot_id, ExpertKey key) override {
    if (pinned_[key]) {
      order_.Remove(slot_id);  // pinned slots leave the order: there may be thousands to pass over
    } else {
      order_.MoveToBack(slot_id);
    }
  }
  void OnUse(SlotId) override {}
  SlotId Victim(ExpertKey, absl::FunctionRef<bool(SlotId)> may_go) const override {
    for (const SlotId slot_id : order_.slots()) {
      if (may_go(slot_id)) return slot_id;
    }
    return kNoSlot;
  }

 private:
  Order order_;  // slots of experts that are not pinned
  ExpertSet pinned_;
};

std::unique_ptr<EvictionPolicy> MakeLru(EvictionArgs args) { return std::make_unique<LruPolicy>(args.num_slots); }
std::unique_ptr<EvictionPolicy> MakeLfu(EvictionArgs args) {
  return std::make_unique<LfuPolicy>(args.num_slots, args.layer_of.size());
}
std::unique_ptr<EvictionPolicy> MakeFifo(EvictionArgs args) {
  return std::make_unique<FifoPolicy>(args.num_slots, ExpertSet(args.layer_of.size()));
}
std::unique_ptr<EvictionPolicy> MakeMrs(EvictionArgs args) {
  return std::make_unique<MrsPolicy>(args, /*alpha=*/0.5f, /*by_layer=*/false);  // as in the paper's code
}
std::unique_ptr<EvictionPolicy> MakeMrsLayer(EvictionArgs args) {
  return std::make_unique<MrsPolicy>(args, /*alpha=*/0.1f, /*by_layer=*/true);
}
std::unique_ptr<EvictionPolicy> MakeStatic(EvictionArgs args) {
  return std::make_unique<FifoPolicy>(args.num_slots, std::move(args.pinned));
}

constexpr EvictionTraits kEvictions[] = {
#define PENSTOCK_EVICTION(kind, called, maker, line, ...) \
  {.value = Eviction::kind, .name = called, .summary = line, .make = maker, __VA_ARGS__},
#include "penstock/evictions.def"
};

}  // namespace

std::span<const EvictionTraits> Evictions() { return kEvictions; }
const EvictionTraits& TraitsOf(Eviction eviction) { return kEvictions[static_cast<size_t>(eviction)]; }

}  // namespace penstock
