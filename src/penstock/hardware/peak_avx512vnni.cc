#include <immintrin.h>

#include "penstock/hardware/peak_loop-inl.h"

namespace penstock {
namespace {

struct Int8 {
  using Sum = __m512i;
  using Operand = __m512i;
  static constexpr const char* kInstructions = "vpdpbusd zmm";
  static constexpr int64_t kOpsPerAdd = 2 * 64;
  static Operand One() { return _mm512_set1_epi8(1); }
  static Sum Add(Sum sum, Operand x, Operand w) { return _mm512_dpbusd_epi32(sum, x, w); }
};

}  // namespace

constinit const PeakLoop kAvx512VnniInt8Loop = MakePeakLoop<Int8>();

}  // namespace penstock
