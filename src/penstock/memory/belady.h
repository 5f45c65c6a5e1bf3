// The most hits that any cache can have, one that knows the future (Belady 1966): what is wanted again last leaves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Hits of `num_slots` slots, empty at first, that serve `wanted`, keys >= 0 in the order in which they are wanted. What
// is wanted need not take a slot. REQUIRES: num_slots >= 0.
int64_t BeladyHits(std::span<const int64_t> wanted, int64_t num_slots);

}  // namespace penstock
