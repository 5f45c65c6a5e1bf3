// Loops that only write memory. Sizes and addresses are multiples of 64 bytes; read_loops.h reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// Sets every 64-bit word to `word`.
void FillMemory(std::span<std::byte> to, uint64_t word);

// Copies `from` to `to`. REQUIRES: equal sizes, no overlap.
void CopyMemory(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace penstock
