// Which expert leaves a tier when another one needs its slot.
//
//   lru     least recently used: follows what is wanted now; a scan that is longer than the cache hits nothing
//   lfu     least often used, the least recently used of these
//   fifo    the one that came first
//   static  some experts never leave (the pinned share); the others pass through what is left, first come first gone.
//           For scans: all experts of all layers, step after step
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace penstock {

enum class Eviction : uint8_t { kLru, kLfu, kFifo, kStatic };
inline constexpr Eviction kAllEvictions[] = {Eviction::kLru, Eviction::kLfu, Eviction::kFifo, Eviction::kStatic};

std::string_view EvictionName(Eviction eviction);
// kUsage names those that there are.
absl::StatusOr<Eviction> ParseEvictionName(std::string_view name);

// Follows the slots of one tier. Slots are numbered from 0; keys are experts.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A slot has got an expert, or was used by one that it holds.
  virtual void OnLoad(int slot_idx, int64_t key) = 0;
  virtual void OnUse(int slot_idx) = 0;
  // The slot that should go first among those that may go; -1 when there is none. Slots without an expert were never
  // loaded and are not asked for.
  virtual int Victim(absl::FunctionRef<bool(int slot_idx)> may_go) const = 0;
};

// `pinned` [num_experts]: the experts that never leave; for kStatic, else ignored.
std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(Eviction eviction, int64_t num_slots, std::vector<bool> pinned);

}  // namespace penstock
