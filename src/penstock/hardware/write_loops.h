// Loops that do nothing but write memory. Sizes are multiples of 64 bytes, as addresses are; read_loops.h reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// Sets every 64-bit word.
void FillMemory(std::span<std::byte> to, uint64_t word);

// REQUIRES: equal sizes that do not overlap.
void CopyMemory(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace penstock
