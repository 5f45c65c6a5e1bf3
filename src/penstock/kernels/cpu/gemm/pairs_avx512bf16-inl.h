// GEMM over pairs of bf16 by VDPBF16PS. `DotPairs` is that instruction, or the two multiply-adds that it stands for;
// the tests of these tiles use the latter on machines without the instruction.
#pragma once

#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/vec_avx512-inl.h"

namespace penstock::kernels {
namespace {

// Computes what Intel documents for VDPBF16PS, except for denormals.
inline __m512 DotByMultiplyAdds(__m512 sum, __m512i x, __m512i w) {
  Avx512Vec x_even, x_odd, w_even, w_odd;
  Avx512Vec::Widen(x, x_even, x_odd);
  Avx512Vec::Widen(w, w_even, w_odd);
  return Fma(x_even, w_even, Fma(x_odd, w_odd, {sum})).lanes;
}

template <__m512 (*DotPairs)(__m512 sum, __m512i x, __m512i w)>
struct Bf16Steps {
  using Vec = Avx512Vec;
  static constexpr int kRows = Avx512Vec::kPanelRows;
  static constexpr int kVecs = Avx512Vec::kPanelVecs;
  static constexpr int64_t kStepBytes = 128;
  static constexpr int64_t kXBytes = 4;
  static constexpr int64_t kBlockInputs = 128;
  static constexpr int64_t kBlockBytes = kBlockInputs / 2 * kStepBytes;

  template <int kTileRows>
  [[gnu::always_inline]] static void Multiply(const std::byte* w, int first_vec, const RowPointers<kTileRows>& x,
                                              bool has_odd, Avx512Vec (&sums)[kTileRows][kVecs]) {
    __m512i pairs[kVecs];
    Unrolled<kVecs>([&](auto v)
                        __attribute__((always_inline)) { pairs[v] = _mm512_loadu_si512(w + 64 * (first_vec + v)); });
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      uint32_t pair = 0;
      if (has_odd) {
        __builtin_memcpy(&pair, x[r], 4);
      } else {
        __builtin_memcpy(&pair, x[r], 2);
      }
      const __m512i x_pair = _mm512_set1_epi32(static_cast<int>(pair));
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        sums[r][v].lanes = DotPairs(sums[r][v].lanes, x_pair, pairs[v]);
      });
    });
  }
};

}  // namespace
}  // namespace penstock::kernels
