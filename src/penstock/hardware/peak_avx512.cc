#include <immintrin.h>

#include "penstock/hardware/peak_loop-inl.h"

namespace penstock {
namespace {

struct F32 {
  using Sum = __m512;
  using Operand = __m512;
  static constexpr const char* kInstructions = "vfmadd231ps zmm";
  static constexpr int64_t kOpsPerAdd = 2 * 16;
  static Operand One() { return _mm512_set1_ps(1); }
  static Sum Add(Sum sum, Operand x, Operand w) { return _mm512_fmadd_ps(x, w, sum); }
};

// Multiplies unsigned by signed bytes, adds pairs to 16 bits (saturating), and pairs of these sums to 32 bits.
struct Int8 {
  using Sum = __m512i;
  using Operand = __m512i;
  static constexpr const char* kInstructions = "vpmaddubsw + vpmaddwd + vpaddd zmm";
  static constexpr int64_t kOpsPerAdd = 2 * 64;
  static Operand One() { return _mm512_set1_epi8(1); }
  static Sum Add(Sum sum, Operand x, Operand w) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(x, w), _mm512_set1_epi16(1)));
  }
};

}  // namespace

constinit const PeakLoop kAvx512F32Loop = MakePeakLoop<F32>();
constinit const PeakLoop kAvx512Int8Loop = MakePeakLoop<Int8>();

}  // namespace penstock
