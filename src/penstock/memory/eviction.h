// Policies that choose which expert leaves a tier when another one needs its slot.
//
// - lru: the least recently used expert. Adapts to the current demand; a scan longer than the cache hits nothing.
// - lfu: the least often used expert; among equals the least recently used.
// - fifo: the expert that came first.
// - mrs: minus recent score (HybriMoE, section IV-D): the expert that routers have rated lowest lately, chosen or not.
//   S = alpha * TopP(s) + (1 - alpha) * S for each expert of a layer that was routed. s are the router's probabilities,
//   averaged over the rows. Of each row only the p = 2 * num_topk largest count.
//   alpha = 0.5, as in the paper's code.
// - mrs-layer: mrs among the experts of one layer; each layer keeps its share of the slots. alpha = 0.1: the ratings of
//   about ten steps predict better than those of two (docs/decisions/streaming.md).
// - static: some experts never leave (the pinned share); the others share the remaining slots, first in, first out.
//   Made for scans, which use all experts of all layers in every step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/memory/expert_key.h"
#include "penstock/policy.h"

namespace penstock {

class EvictionPolicy;
struct EvictionArgs {
  int64_t num_slots = 0;
  ExpertSet pinned;                       // [num_experts]: the experts that never leave; for kStatic, else ignored
  IdVector<ExpertKey, int64_t> layer_of;  // [num_experts]: the index of the layer in the model
};

// A row of the table of eviction policies (include/penstock/evictions.def).
struct EvictionTraits {
  Eviction value;
  std::string_view name;     // "lru"
  std::string_view summary;  // one line for people
  std::unique_ptr<EvictionPolicy> (*make)(EvictionArgs args);
  bool needs_scores = false;  // asks how routers rated the experts
};
std::span<const EvictionTraits> Evictions();
const EvictionTraits& TraitsOf(Eviction eviction);

// Tracks the slots of one tier.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // The slot received expert `key` (OnLoad), or its expert was used (OnUse).
  virtual void OnLoad(SlotId slot_id, ExpertKey key) = 0;
  virtual void OnUse(SlotId slot_id) = 0;
  // Reports TopP(s) of the experts of one layer, which begin at `first_key`.
  virtual void OnScores(ExpertKey /*first_key*/, std::span<const float> /*scores*/) {}
  // Returns the slot that expert `key` should get. This is the first to leave among the slots for which `may_go` is
  // true; kNoSlot when there is none. Slots that never held an expert are not considered.
  virtual SlotId Victim(ExpertKey key, absl::FunctionRef<bool(SlotId slot_id)> may_go) const = 0;
};

}  // namespace penstock
