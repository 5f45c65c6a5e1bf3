// Decodes the compressed weights of a packed store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

// Decodes `compressed`, which may be any bytes, into `values`. Compares the checksum of each block's values. Returns
// the checksum (XXH3) of the compressed bytes, or nullopt when they are not the compressed form of so many values;
// `values` may then hold anything.
//
// The two may overlap if `compressed` begins at least InPlaceDistance() behind `values`. `scratch` has
// kExponentScratchBytes. REQUIRES: `values` are whole groups of kExponentGroupBytes.
std::optional<uint64_t> Decompress(const KernelTable& kernels, std::span<const std::byte> compressed,
                                   std::span<std::byte> scratch, std::span<std::byte> values);

}  // namespace penstock::kernels
