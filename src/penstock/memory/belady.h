// The most hits that any cache can have: the hits of a cache that knows the future (Belady 1966). It evicts the key
// that is next wanted last.
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
