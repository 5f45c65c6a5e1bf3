// The loop behind every PeakLoop, for one way to multiply and add.
#pragma once

#include "penstock/hardware/peak_loops.h"

namespace penstock {
namespace {

// Sums that do not wait for each other: two instructions may start in each cycle and take up to six. With two operands
// and a constant they still fit AVX2's 16 registers.
constexpr int kNumSums = 12;

// The compiler knows nothing about `value` after this, and has to have it in a register.
template <class Vec>
inline void Forget(Vec& value) {
#if defined(__x86_64__)
  asm volatile("" : "+x"(value));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

// Way has the types Sum and Operand, Operand One(), Sum Add(sum, x, w), kOpsPerAdd and kInstructions. The operand is
// forgotten before each addition, so that no product is computed once for all, and the sums after the last.
template <class Way>
void RunSums(int64_t num_steps) {
  typename Way::Sum sums[kNumSums] = {};
  typename Way::Operand x = Way::One();
  typename Way::Operand w = Way::One();
  Forget(w);
  for (int64_t step = 0; step < num_steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kNumSums; ++i) {
      Forget(x);
      sums[i] = Way::Add(sums[i], x, w);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kNumSums; ++i) Forget(sums[i]);
}

template <class Way>
constexpr PeakLoop MakePeakLoop() {
  return {.instructions = Way::kInstructions, .ops_per_step = kNumSums * Way::kOpsPerAdd, .run = RunSums<Way>};
}

}  // namespace
}  // namespace penstock
