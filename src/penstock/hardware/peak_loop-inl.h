// The loop behind every PeakLoop, parameterised by how it multiplies and adds.
#pragma once

#include "penstock/hardware/peak_loops.h"

namespace penstock {
namespace {

// The number of independent sums: two instructions may start in each cycle and take up to six. With two operands and a
// constant the sums still fit AVX2's 16 registers.
constexpr int kNumSums = 12;

// Hides `value` from the optimiser and keeps it in a register.
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

// Way has the types Sum and Operand, Operand One(), Sum Add(sum, x, w), kOpsPerAdd and kInstructions. The loop hides
// the operand before each addition, so that the compiler cannot compute a product only once, and the sums after the
// last.
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
