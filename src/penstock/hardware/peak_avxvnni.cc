#include <immintrin.h>

#include "penstock/hardware/peak_loop-inl.h"

namespace penstock {
namespace {

struct Int8 {
  using Sum = __m256i;
  using Operand = __m256i;
  static constexpr const char* kInstructions = "vpdpbusd ymm";
  static constexpr int64_t kOpsPerAdd = 2 * 32;
  static Operand One() { return _mm256_set1_epi8(1); }
  static Sum Add(Sum sum, Operand x, Operand w) { return _mm256_dpbusd_avx_epi32(sum, x, w); }
};

}  // namespace

constinit const PeakLoop kAvxVnniInt8Loop = MakePeakLoop<Int8>();

}  // namespace penstock
