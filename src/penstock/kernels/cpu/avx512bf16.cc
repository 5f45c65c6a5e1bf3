#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/pairs_avx512bf16-inl.h"
#include "penstock/kernels/cpu/table-inl.h"

namespace penstock::kernels {
namespace {

inline __m512 DotInstruction(__m512 sum, __m512i x, __m512i w) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
}

}  // namespace

constinit const KernelTable kAvx512Bf16Kernels = MakeTable<Avx512Vec, Avx512Bf16Pairs<DotInstruction>>();

}  // namespace penstock::kernels
