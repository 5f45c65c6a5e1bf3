#include "kernels/emulated_avx512bf16.h"

#if defined(__AVX512F__)

#include "penstock/kernels/cpu/gemm/pairs_avx512bf16-inl.h"
#include "penstock/kernels/cpu/prepare-inl.h"

namespace penstock::kernels {

void EmulatedAvx512Bf16Gemm(const GemmArgs& args) { RunGemm<Bf16Steps<DotByMultiplyAdds>, FloatTile>(args); }
void EmulatedAvx512Bf16Rows(const PrepareRowsArgs& args) { PrepareRows<Avx512Vec, true>(args); }

}  // namespace penstock::kernels

#else

namespace penstock::kernels {

void EmulatedAvx512Bf16Gemm(const GemmArgs&) { __builtin_trap(); }
void EmulatedAvx512Bf16Rows(const PrepareRowsArgs&) { __builtin_trap(); }

}  // namespace penstock::kernels

#endif
