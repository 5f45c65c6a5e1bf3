#include <immintrin.h>

#include "penstock/hardware/peak_loop-inl.h"

namespace penstock {
namespace {

struct Bf16 {
  using Sum = __m512;
  using Operand = __m512i;
  static constexpr const char* kInstructions = "vdpbf16ps zmm";
  static constexpr int64_t kOpsPerAdd = 2 * 32;
  static Operand One() { return _mm512_set1_epi16(0x3F80); }
  static Sum Add(Sum sum, Operand x, Operand w) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
};

}  // namespace

constinit const PeakLoop kAvx512Bf16Loop = MakePeakLoop<Bf16>();

}  // namespace penstock
