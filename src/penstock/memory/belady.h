// The maximum number of hits of any cache. A cache that knows the future reaches it (Belady 1966): it evicts the key
// whose next use is the latest.
#pragma once

#include <cstdint>
#include <span>

#include <vector>
#include "penstock/memory/expert_key.h"

namespace penstock {

// Returns the hits of a cache of `num_slots` slots, empty at first. `wanted` lists the wanted experts in order. A
// wanted key need not be cached. REQUIRES: num_slots >= 0.
int64_t BeladyHits(std::span<const ExpertKey> wanted, int64_t num_slots);

}  // namespace penstock
