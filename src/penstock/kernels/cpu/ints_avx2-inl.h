// Products of codes with VPMADDUBSW; ints_scalar-inl.h defines each function.
#pragma once

#include <immintrin.h>

#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/vec_avx2-inl.h"

namespace penstock::kernels {
namespace {

struct Avx2Ints {
  using Vec = Avx2Vec;
  static constexpr int kRows = Avx2Vec::kPanelRows;

  struct Codes {
    __m256i low;
    __m256i high;
  };
  __m256i low;
  __m256i high;

  static Avx2Ints Zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Codes Load(const std::byte* source) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + 32))};
  }
  static Codes And(const Codes& codes, int mask) {
    const __m256i bytes = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(codes.low, bytes), _mm256_and_si256(codes.high, bytes)};
  }
  static Codes Or(const Codes& a, const Codes& b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
  }
  static Codes ShiftRight(const Codes& codes, int count) {
    return {_mm256_srli_epi16(codes.low, count), _mm256_srli_epi16(codes.high, count)};
  }
  static Codes ShiftLeft(const Codes& codes, int count) {
    return {_mm256_slli_epi16(codes.low, count), _mm256_slli_epi16(codes.high, count)};
  }
  static Codes FirstDigit(const Codes& codes) { return {FirstDigitOf(codes.low), FirstDigitOf(codes.high)}; }
  static Codes Triple(const Codes& codes) {
    return {_mm256_add_epi8(codes.low, _mm256_add_epi8(codes.low, codes.low)),
            _mm256_add_epi8(codes.high, _mm256_add_epi8(codes.high, codes.high))};
  }
  static Codes Xor(const Codes& codes, int mask) {
    const __m256i bytes = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_xor_si256(codes.low, bytes), _mm256_xor_si256(codes.high, bytes)};
  }
  static Codes Lookup(const uint8_t* table, const Codes& codes) {
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(values, codes.low), _mm256_shuffle_epi8(values, codes.high)};
  }
  static Avx2Ints Same(const std::byte* number) {
    const __m256i same = Four(number);
    return {same, same};
  }
  static Avx2Ints SumOfPair(const std::byte* sums, int first, int second) {
    const __m256i sum = _mm256_madd_epi16(Four(sums), _mm256_set1_epi32((first & 0xFFFF) | second * 0x10000));
    return {sum, sum};
  }

  static constexpr bool kDotsAreUnsigned = false;
  static Avx2Ints StartInt8(const std::byte*) { return Zero(); }
  // Multiplies |w| by x with the sign of w moved to x: two products of at most 128 * 127 never saturate 16 bits.
  static __m256i DotSigned(__m256i codes, __m256i x, __m256i sum) {
    const __m256i w = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static __m256i DotUnsigned(__m256i codes, __m256i x, __m256i sum) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
  }
  static __m256i Four(const std::byte* x) {
    int32_t four;
    __builtin_memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
  }
  static Avx2Ints DotInt8(const Codes& codes, const std::byte* x, const Avx2Ints& sum) {
    return {DotSigned(codes.low, Four(x), sum.low), DotSigned(codes.high, Four(x), sum.high)};
  }
  static Avx2Ints DotSmall(const Codes& codes, const std::byte* x, const Avx2Ints& sum) {
    return {DotUnsigned(codes.low, Four(x), sum.low), DotUnsigned(codes.high, Four(x), sum.high)};
  }

  template <class V>
  V ToFloats() const {
    return {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
  }

  static constexpr bool kAddsPairs = true;
  // Adds to the sums of a tile's rows what DotSmall would add for the quads of kInputs inputs. Products of kQuads quads
  // are added in 16 bits: 4 * 2 * 31 * 127 and 2 * 2 * 63 * 127 are below 2^15. Lanes 0..7 of all rows come first, so
  // sums and codes stay in 16 registers. The same order of signed codes took 1.2 to 1.7 times as long as DotInt8.
  template <int kInputs, int kQuads, int kRows, class Rows>
  [[gnu::always_inline]] static void DotSmallGroup(const std::byte* codes, const Rows& x, Avx2Ints (&sums)[kRows][1]) {
    DotSmallHalf<kInputs, kQuads>(codes, x, &Avx2Ints::low, sums);
    DotSmallHalf<kInputs, kQuads>(codes + 32, x, &Avx2Ints::high, sums);
  }

 private:
  template <int kInputs, int kQuads, int kRows, class Rows>
  [[gnu::always_inline]] static void DotSmallHalf(const std::byte* codes, const Rows& x, __m256i Avx2Ints::*half,
                                                  Avx2Ints (&sums)[kRows][1]) {
    Unrolled<kInputs / 4 / kQuads>([&](auto step) __attribute__((always_inline)) {
      __m256i own[kQuads];
      Unrolled<kQuads>([&](auto i) __attribute__((always_inline)) {
        own[i] =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + kQuadBytes * (kQuads * step.value + i.value)));
      });
      Unrolled<kRows>([&](auto row) __attribute__((always_inline)) {
        const std::byte* fours = x[row] + 4 * kQuads * step.value;
        __m256i pairs = _mm256_maddubs_epi16(own[0], FourInOrder(fours));
        Unrolled<kQuads - 1>([&](auto i) __attribute__((always_inline)) {
          pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(own[i + 1], FourInOrder(fours + 4 * (i.value + 1))));
        });
        __m256i& sum = sums[row][0].*half;
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      });
    });
  }
  // GCC would load the inputs of all rows at once, and keep them on the stack for lanes 8..15.
  [[gnu::always_inline]] static __m256i FourInOrder(const std::byte* x) {
    __m256i four;
    asm volatile("vpbroadcastd %1, %0" : "=x"(four) : "m"(*reinterpret_cast<const int32_t*>(x)));
    return four;
  }
  static __m256i FirstDigitOf(__m256i codes) {
    const __m256i one = _mm256_set1_epi8(1);
    const __m256i from_one = _mm256_min_epu8(_mm256_subs_epu8(codes, _mm256_set1_epi8(85)), one);
    const __m256i from_two = _mm256_min_epu8(_mm256_subs_epu8(codes, _mm256_set1_epi8(static_cast<char>(170))), one);
    return _mm256_add_epi8(from_one, from_two);
  }
};

}  // namespace
}  // namespace penstock::kernels
