// Sixteen floats in two ymm registers; vec_scalar-inl.h defines each function.
#pragma once

#include <immintrin.h>

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// Returns a mask whose first `count` of 8 lanes are all ones; `count` may be below 0 or above 8.
inline __m256i FirstLanes8(int64_t count) {
  const __m256i lane_idx = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane_idx);
}

struct Avx2Vec {
  // 12 registers of accumulators leave 4 for x and w.
#ifdef PENSTOCK_SMALL_TILES
  static constexpr int kPanelRows = 3;
#else
  static constexpr int kPanelRows = 6;
#endif
  static constexpr int kPanelVecs = 1;

  __m256 low;   // lanes 0..7
  __m256 high;  // lanes 8..15

  static Avx2Vec Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Avx2Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

  static Avx2Vec Load(const float* source) { return {_mm256_loadu_ps(source), _mm256_loadu_ps(source + 8)}; }
  static Avx2Vec LoadPartial(const float* source, int64_t count, float padding) {
    const __m256 pad = _mm256_set1_ps(padding);
    const __m256i low_mask = FirstLanes8(count), high_mask = FirstLanes8(count - 8);
    return {_mm256_blendv_ps(pad, _mm256_maskload_ps(source, low_mask), _mm256_castsi256_ps(low_mask)),
            _mm256_blendv_ps(pad, _mm256_maskload_ps(source + 8, high_mask), _mm256_castsi256_ps(high_mask))};
  }

  template <Dtype kDtype>
  static __m256 Widen(__m128i halves) {
    if constexpr (kDtype == Dtype::kF16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  template <Dtype kDtype>
  static Avx2Vec LoadAs(const std::byte* source) {
    if constexpr (kDtype == Dtype::kF32) {
      return {_mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source))),
              _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + 32)))};
    } else {
      return {Widen<kDtype>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))),
              Widen<kDtype>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 16)))};
    }
  }
  template <Dtype kDtype>
  static Avx2Vec LoadPartialAs(const std::byte* source, int64_t count) {
    alignas(64) std::byte padded[64] = {};
    __builtin_memcpy(padded, source, static_cast<size_t>(count) * (kDtype == Dtype::kF32 ? 4 : 2));
    return LoadAs<kDtype>(padded);
  }

  static void LoadPairs(const std::byte* source, Avx2Vec& even, Avx2Vec& odd) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + 32));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(second, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(first, upper)), _mm256_castsi256_ps(_mm256_and_si256(second, upper))};
  }
  static Avx2Vec LoadCodes(const std::byte* source) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
  }
  static Avx2Vec LoadSignedCodes(const std::byte* source) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
  }
  Avx2Vec Abs() const {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, low), _mm256_andnot_ps(sign, high)};
  }
  void StoreLowBytes(std::byte* target) const {
    const __m256i mask = _mm256_set1_epi32(0xFF);
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(_mm256_castps_si256(low), mask),
                                              _mm256_and_si256(_mm256_castps_si256(high), mask));
    const __m256i in_order = _mm256_permute4x64_epi64(words, 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                     _mm_packus_epi16(_mm256_castsi256_si128(in_order), _mm256_extracti128_si256(in_order, 1)));
  }

  void Store(float* target) const {
    _mm256_storeu_ps(target, low);
    _mm256_storeu_ps(target + 8, high);
  }
  void StorePartial(float* target, int64_t count) const {
    _mm256_maskstore_ps(target, FirstLanes8(count), low);
    _mm256_maskstore_ps(target + 8, FirstLanes8(count - 8), high);
  }

  static __m256i RoundToBf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), lowest);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  }
  void StoreBf16(BF16* target) const {
    const __m256i packed = _mm256_packus_epi32(RoundToBf16(low), RoundToBf16(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm256_permute4x64_epi64(packed, 0xD8));
  }
  void StorePartialBf16(BF16* target, int64_t count) const {
    BF16 all[16];
    StoreBf16(all);
    __builtin_memcpy(target, all, static_cast<size_t>(count) * sizeof(BF16));
  }

  float ReduceAdd() const {
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  float ReduceMax() const {
    const __m256 eight = _mm256_max_ps(low, high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

inline Avx2Vec Fma(Avx2Vec a, Avx2Vec b, Avx2Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Avx2Vec Add(Avx2Vec a, Avx2Vec b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Avx2Vec Sub(Avx2Vec a, Avx2Vec b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Avx2Vec Mul(Avx2Vec a, Avx2Vec b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Avx2Vec Div(Avx2Vec a, Avx2Vec b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Avx2Vec Max(Avx2Vec a, Avx2Vec b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Avx2Vec Min(Avx2Vec a, Avx2Vec b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }

inline __m256 ScaleByPowerOfTwo8(__m256 x, __m256 shifted, float shift) {
  const __m256i one = _mm256_set1_epi32(0x3F800000);
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(shift)));
  const __m256i half = _mm256_srai_epi32(n, 1);
  const __m256i first = _mm256_add_epi32(_mm256_slli_epi32(half, 23), one);
  const __m256i second = _mm256_add_epi32(_mm256_slli_epi32(_mm256_sub_epi32(n, half), 23), one);
  return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
inline Avx2Vec ScaleByPowerOfTwo(Avx2Vec x, Avx2Vec shifted, float shift) {
  return {ScaleByPowerOfTwo8(x.low, shifted.low, shift), ScaleByPowerOfTwo8(x.high, shifted.high, shift)};
}

}  // namespace
}  // namespace penstock::kernels
