// Which expert leaves a tier when another one needs its slot.
//
//   lru     least recently used: follows what is wanted now; a scan that is longer than the cache hits nothing
//   lfu     least often used, the least recently used of these
//   fifo    the one that came first
//   mrs     minus recent score (HybriMoE, section IV-D): the one that routers have rated lowest lately, chosen or not.
//           S = alpha * TopP(s) + (1 - alpha) * S for each expert of a layer that was routed; s are the router's
//           probabilities, the mean over the rows, of which each row's p = 2 * num_topk largest count
//   mrs-layer  the same among the experts of one layer: each layer keeps its share of the slots
//   static  some experts never leave (the pinned share); the others pass through what is left, first come first gone.
//           For scans: all experts of all layers, step after step
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/policy.h"

namespace penstock {

class EvictionPolicy;
struct EvictionArgs {
  int64_t num_slots = 0;
  std::vector<bool> pinned;       // [num_experts]: the experts that never leave; for kStatic, else ignored
  std::vector<int64_t> layer_of;  // [num_experts]: of the model
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

// Follows the slots of one tier. Slots are numbered from 0; keys are experts.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A slot has got an expert, or was used by one that it holds.
  virtual void OnLoad(int slot_idx, int64_t key) = 0;
  virtual void OnUse(int slot_idx) = 0;
  // TopP(s) of the experts from `first_key` on, those of one layer.
  virtual void OnScores(int64_t /*first_key*/, std::span<const float> /*scores*/) {}
  // The slot that expert `key` should get: the one that should go first among those that may go; -1 when there is none.
  // Slots without an expert were never loaded and are not asked for.
  virtual int Victim(int64_t key, absl::FunctionRef<bool(int slot_idx)> may_go) const = 0;
};

}  // namespace penstock
