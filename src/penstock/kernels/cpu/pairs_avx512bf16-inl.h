// The bf16 dot product by VDPBF16PS. `DotPairs` is that instruction, or, in the tests of these tiles on machines
// without it, the two multiply-adds that it stands for.
#pragma once

#include "penstock/kernels/cpu/vec_avx512-inl.h"

namespace penstock::kernels {
namespace {

template <__m512 (*DotPairs)(__m512 sum, __m512i x, __m512i w)>
struct Avx512Bf16Pairs {
  // Nothing is unpacked, so the tile of the f32 GEMM fits.
  static constexpr int kTileRows = 6;
  static constexpr int kTileCols = 4;
  static constexpr int kVectorCols = 8;

  __m512i lanes;

  static Avx512Bf16Pairs Load(const std::byte* source) { return {_mm512_loadu_si512(source)}; }
  static Avx512Bf16Pairs LoadPartial(const std::byte* source, int64_t count) {
    return {Avx512Pairs::LoadPartial(source, count).lanes};
  }
  static Avx512Vec Dot(Avx512Bf16Pairs x, Avx512Bf16Pairs w, Avx512Vec sum) {
    return {DotPairs(sum.lanes, x.lanes, w.lanes)};
  }
};

}  // namespace
}  // namespace penstock::kernels
