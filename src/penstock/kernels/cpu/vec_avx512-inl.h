// Sixteen floats in one zmm register; vec_scalar-inl.h defines each function.
#pragma once

#include <immintrin.h>

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

inline __mmask16 FirstLanes16(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

struct Avx512Vec {
  // 24 accumulators, 4 of w and one or two of x: 30 of 32 registers. Sanitizers take minutes to compile such tiles.
#ifdef PENSTOCK_SMALL_TILES
  static constexpr int kPanelRows = 3;
#else
  static constexpr int kPanelRows = 12;
#endif
  static constexpr int kPanelVecs = 2;

  __m512 lanes;

  static Avx512Vec Set(float x) { return {_mm512_set1_ps(x)}; }
  static Avx512Vec Zero() { return {_mm512_setzero_ps()}; }

  static Avx512Vec Load(const float* source) { return {_mm512_loadu_ps(source)}; }
  static Avx512Vec LoadPartial(const float* source, int64_t count, float padding) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(padding), FirstLanes16(count), source)};
  }

  template <Dtype kDtype>
  static Avx512Vec Widen(__m256i halves) {
    if constexpr (kDtype == Dtype::kF16) return {_mm512_cvtph_ps(halves)};
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
  template <Dtype kDtype>
  static Avx512Vec LoadAs(const std::byte* source) {
    if constexpr (kDtype == Dtype::kF32)
      return {_mm512_loadu_ps(source)};
    else
      return Widen<kDtype>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
  }
  template <Dtype kDtype>
  static Avx512Vec LoadPartialAs(const std::byte* source, int64_t count) {
    const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1u);
    if constexpr (kDtype == Dtype::kF32)
      return {_mm512_maskz_loadu_ps(mask, source)};
    else
      return Widen<kDtype>(_mm256_maskz_loadu_epi16(mask, source));
  }

  static void LoadPairs(const std::byte* source, Avx512Vec& even, Avx512Vec& odd) {
    Widen(_mm512_loadu_si512(source), even, odd);
  }
  static void Widen(__m512i pairs, Avx512Vec& even, Avx512Vec& odd) {
    even.lanes = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd.lanes = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static Avx512Vec LoadCodes(const std::byte* source) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))))};
  }
  static Avx512Vec LoadSignedCodes(const std::byte* source) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))))};
  }
  Avx512Vec Abs() const { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), lanes)}; }
  void StoreLowBytes(std::byte* target) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm512_cvtepi32_epi8(_mm512_castps_si512(lanes)));
  }

  void Store(float* target) const { _mm512_storeu_ps(target, lanes); }
  void StorePartial(float* target, int64_t count) const { _mm512_mask_storeu_ps(target, FirstLanes16(count), lanes); }

  __m256i RoundToBf16() const {
    const __m512i bits = _mm512_castps_si512(lanes);
    const __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), lowest);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(lanes, lanes, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
  }
  void StoreBf16(BF16* target) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), RoundToBf16()); }
  void StorePartialBf16(BF16* target, int64_t count) const {
    _mm256_mask_storeu_epi16(target, FirstLanes16(count), RoundToBf16());
  }

  float ReduceAdd() const {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  float ReduceMax() const {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

inline Avx512Vec Fma(Avx512Vec a, Avx512Vec b, Avx512Vec c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
inline Avx512Vec Add(Avx512Vec a, Avx512Vec b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
inline Avx512Vec Sub(Avx512Vec a, Avx512Vec b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
inline Avx512Vec Mul(Avx512Vec a, Avx512Vec b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
inline Avx512Vec Div(Avx512Vec a, Avx512Vec b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
inline Avx512Vec Max(Avx512Vec a, Avx512Vec b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
inline Avx512Vec Min(Avx512Vec a, Avx512Vec b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }

inline Avx512Vec ScaleByPowerOfTwo(Avx512Vec x, Avx512Vec shifted, float shift) {
  const __m512i one = _mm512_set1_epi32(0x3F800000);
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(shifted.lanes), _mm512_castps_si512(_mm512_set1_ps(shift)));
  const __m512i half = _mm512_srai_epi32(n, 1);
  const __m512i first = _mm512_add_epi32(_mm512_slli_epi32(half, 23), one);
  const __m512i second = _mm512_add_epi32(_mm512_slli_epi32(_mm512_sub_epi32(n, half), 23), one);
  return {_mm512_mul_ps(_mm512_mul_ps(x.lanes, _mm512_castsi512_ps(first)), _mm512_castsi512_ps(second))};
}

}  // namespace
}  // namespace penstock::kernels
