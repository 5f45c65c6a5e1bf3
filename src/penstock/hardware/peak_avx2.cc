#include <immintrin.h>

#include "penstock/hardware/peak_loop-inl.h"

namespace penstock {
namespace {

struct F32 {
  using Sum = __m256;
  using Operand = __m256;
  static constexpr const char* kInstructions = "vfmadd231ps ymm";
  static constexpr int64_t kOpsPerAdd = 2 * 8;
  static Operand One() { return _mm256_set1_ps(1); }
  static Sum Add(Sum sum, Operand x, Operand w) { return _mm256_fmadd_ps(x, w, sum); }
};

// Multiplies unsigned by signed bytes, adds pairs to 16 bits (saturating), and pairs of these sums to 32 bits.
struct Int8 {
  using Sum = __m256i;
  using Operand = __m256i;
  static constexpr const char* kInstructions = "vpmaddubsw + vpmaddwd + vpaddd ymm";
  static constexpr int64_t kOpsPerAdd = 2 * 32;
  static Operand One() { return _mm256_set1_epi8(1); }
  static Sum Add(Sum sum, Operand x, Operand w) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), _mm256_set1_epi16(1)));
  }
};

}  // namespace

constinit const PeakLoop kAvx2F32Loop = MakePeakLoop<F32>();
constinit const PeakLoop kAvx2Int8Loop = MakePeakLoop<Int8>();

}  // namespace penstock
