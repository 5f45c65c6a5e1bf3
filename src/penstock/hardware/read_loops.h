// Loops that read memory and add up what they read, one unit for each width of vectors.
//
// Eight streams of 16 bytes read 12.0 GB/s with one thread of a Cascade Lake at 2.5 GHz, of 64 bytes 12.6 GB/s; with
// one stream two threads stay 6 % below what eight give.
//
// This header is compiled with the flags of every instruction set; see peak_loops.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// The sum of all 64-bit words, modulo 2^64. REQUIRES: `num_bytes` is a multiple of 512, `from` of 64.
using ReadLoop = uint64_t (*)(const std::byte* from, size_t num_bytes);

extern const ReadLoop kBaselineReadLoop;  // 16 bytes
extern const ReadLoop kAvx2ReadLoop;      // 32 bytes
extern const ReadLoop kAvx512ReadLoop;    // 64 bytes

}  // namespace penstock
