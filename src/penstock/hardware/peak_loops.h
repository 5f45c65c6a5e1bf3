// Loops that keep the arithmetic units busy and touch no memory. Each instruction set has its own translation unit.
//
// This header is compiled with the flags of every instruction set, so it includes and defines as little as possible.
// The linker might keep an inline function compiled for AVX-512 as the copy for all callers.
#pragma once

#include <cstdint>

namespace penstock {

struct PeakLoop {
  const char* instructions;  // "vpdpbusd zmm"
  int64_t ops_per_step;      // multiplications and additions
  void (*run)(int64_t num_steps);
};

extern const PeakLoop kBaselineF32Loop;
extern const PeakLoop kAvx2F32Loop;
extern const PeakLoop kAvx2Int8Loop;
extern const PeakLoop kAvxVnniInt8Loop;
extern const PeakLoop kAvx512F32Loop;
extern const PeakLoop kAvx512Int8Loop;
extern const PeakLoop kAvx512VnniInt8Loop;
extern const PeakLoop kAvx512Bf16Loop;
extern const PeakLoop kAmxInt8Loop;

}  // namespace penstock
