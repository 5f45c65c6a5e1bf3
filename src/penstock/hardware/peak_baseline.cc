// Compiled for the oldest processor of the architecture, with permission to fuse a multiplication and an addition.
#include "penstock/hardware/peak_loop-inl.h"

namespace penstock {
namespace {

struct F32 {
  using Sum [[gnu::vector_size(16)]] = float;
  using Operand = Sum;
  static constexpr const char* kInstructions = "multiply and add, 128 bits";
  static constexpr int64_t kOpsPerAdd = 2 * 4;
  static Operand One() { return Operand{1, 1, 1, 1}; }
  static Sum Add(Sum sum, Operand x, Operand w) { return sum + x * w; }
};

}  // namespace

constinit const PeakLoop kBaselineF32Loop = MakePeakLoop<F32>();

}  // namespace penstock
