// Loops that read memory and add up the words that they read. Each vector width has its own translation unit.
//
// On a Cascade Lake at 2.5 GHz, eight streams of 16 bytes read 12.0 GB/s with one thread, eight streams of 64 bytes
// 12.6 GB/s. Two threads with one stream each, in the order of addresses, read 9 % less than with eight streams each.
// With alternating prefetches of half pages they read 4 % more.
//
// This header is compiled with the flags of every instruction set; see peak_loops.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// Returns the sum of all 64-bit words, modulo 2^64. REQUIRES: `num_bytes` is a multiple of 512, `from` of 64.
using ReadLoop = uint64_t (*)(const std::byte* from, size_t num_bytes);

// First the loop with eight streams, then the loop with one stream and prefetches.
extern const ReadLoop kBaselineReadLoops[2];  // 16 bytes
extern const ReadLoop kAvx2ReadLoops[2];      // 32 bytes
extern const ReadLoop kAvx512ReadLoops[2];    // 64 bytes

}  // namespace penstock
