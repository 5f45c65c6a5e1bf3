#include "kernels/emulated_avx512bf16.h"

#if defined(__AVX512F__)

#include "penstock/kernels/cpu/gemm-inl.h"
#include "penstock/kernels/cpu/pairs_avx512bf16-inl.h"

namespace penstock::kernels {
namespace {

// What VDPBF16PS is documented to do, denormals aside: the odd products first, then the even ones.
inline __m512 DotEmulated(__m512 sum, __m512i x, __m512i w) {
  const __m512 after_odd = _mm512_fmadd_ps(Avx512Pairs::Odd(x), Avx512Pairs::Odd(w), sum);
  return _mm512_fmadd_ps(Avx512Pairs::Even(x), Avx512Pairs::Even(w), after_odd);
}

}  // namespace

void EmulatedAvx512Bf16Gemm(const GemmBf16Args& args) { GemmBf16<Avx512Vec, Avx512Bf16Pairs<DotEmulated>>(args); }

}  // namespace penstock::kernels

#else

namespace penstock::kernels {

void EmulatedAvx512Bf16Gemm(const GemmBf16Args&) { __builtin_trap(); }

}  // namespace penstock::kernels

#endif
