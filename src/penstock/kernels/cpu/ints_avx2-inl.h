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
  static void Store(const Codes& codes, std::byte* target) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), codes.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + 32), codes.high);
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
  static Codes Subtract(const Codes& codes, int offset) {
    const __m256i bytes = _mm256_set1_epi8(static_cast<char>(offset));
    return {_mm256_sub_epi8(codes.low, bytes), _mm256_sub_epi8(codes.high, bytes)};
  }
  static Codes Field(const Codes& codes, int first, int count) {
    const __m256i mask = _mm256_set1_epi32((1 << count) - 1);
    return {_mm256_and_si256(_mm256_srli_epi32(codes.low, first), mask),
            _mm256_and_si256(_mm256_srli_epi32(codes.high, first), mask)};
  }
  static Codes ShiftWordsLeft(const Codes& codes, int count) {
    return {_mm256_slli_epi32(codes.low, count), _mm256_slli_epi32(codes.high, count)};
  }
  template <int kBits>
  static Codes Spread(const Codes& codes, int first) {
    return {SpreadOf<kBits>(codes.low, first), SpreadOf<kBits>(codes.high, first)};
  }
  static Codes Entries(const uint32_t* book, const Codes& codes) {
    const auto* words = reinterpret_cast<const int*>(book);
    return {_mm256_i32gather_epi32(words, codes.low, 4), _mm256_i32gather_epi32(words, codes.high, 4)};
  }
  static constexpr bool kHasBytePermutes = false;
  static Codes EvenBits(const Codes& codes) {
    const Codes shifted = ShiftRight(codes, 4);
    const Codes folded = {_mm256_xor_si256(codes.low, shifted.low), _mm256_xor_si256(codes.high, shifted.high)};
    return Or(codes, Lookup(kOddBits, And(folded, 15)));
  }
  static Codes Negate(const Codes& codes, const Codes& signs, int first) {
    return {NegateOf(codes.low, signs.low, first), NegateOf(codes.high, signs.high, first)};
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

  // Parts signed codes, 128 too large, into their absolute values and a mask of those below 0. DotSplit multiplies
  // absolute values by x, or by ~x = -x - 1 where the mask is set. So a sum must start at the sum of these absolute
  // values, which is added to `start`. VPSIGNB, which negates x, competes with the products for their ports: tiles take
  // 1.3 times as long with it.
  static void StoreSplit(const Codes& codes, std::byte* values, std::byte* below_zero, Avx2Ints& start) {
    const __m256i zero = _mm256_setzero_si256(), ones = _mm256_set1_epi8(1);
    const Codes own = Xor(codes, 0x80);
    const Codes mask = {_mm256_cmpgt_epi8(zero, own.low), _mm256_cmpgt_epi8(zero, own.high)};
    const Codes absolute = {_mm256_abs_epi8(own.low), _mm256_abs_epi8(own.high)};
    start.low = DotUnsigned(_mm256_and_si256(absolute.low, mask.low), ones, start.low);
    start.high = DotUnsigned(_mm256_and_si256(absolute.high, mask.high), ones, start.high);
    Store(absolute, values);
    Store(mask, below_zero);
  }
  // Two products of at most 128 * 128 do not overflow 16 bits: values of 128 belong to codes below 0, for which ~x is
  // at most 126.
  static Avx2Ints DotSplit(const Codes& values, const Codes& below_zero, const std::byte* x, Avx2Ints sum) {
    const __m256i four = Four(x);
    AddSplit(values.low, below_zero.low, four, sum.low);
    AddSplit(values.high, below_zero.high, four, sum.high);
    return sum;
  }
  static Avx2Ints LoadSums(const std::byte* source) {
    const Codes sums = Load(source);
    return {sums.low, sums.high};
  }
  static void StoreSums(const Avx2Ints& sums, std::byte* target) { Store(Codes{sums.low, sums.high}, target); }

  // Sums of products of neighbouring codes, in 16 bits. Asm statements, because GCC 12 would compute all products
  // first, and keep them on the stack: a tile of 4 rows then takes 1.45 times as long.
  struct Pairs {
    __m256i low;
    __m256i high;

    static Pairs Zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    void Start(const Codes& codes, const std::byte* x) {
      const __m256i four = Four(x);
      asm("vpmaddubsw %2, %1, %0" : "=x"(low) : "x"(codes.low), "x"(four));
      asm("vpmaddubsw %2, %1, %0" : "=x"(high) : "x"(codes.high), "x"(four));
    }
    void Add(const Codes& codes, const std::byte* x) {
      const __m256i four = Four(x);
      Add(codes.low, four, low);
      Add(codes.high, four, high);
    }
    Avx2Ints AddedTo(const Avx2Ints& sum) const {
      const __m256i ones = _mm256_set1_epi16(1);
      return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(low, ones)),
              _mm256_add_epi32(sum.high, _mm256_madd_epi16(high, ones))};
    }

   private:
    static void Add(__m256i codes, __m256i x, __m256i& sum) {
      __m256i product;
      asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(codes), "x"(x));
    }
  };
  static constexpr bool kAddsPairs = true;

 private:
  template <int kBits>
  static __m256i SpreadOf(__m256i codes, int first) {
    return Part<kBits, 8>(Part<2 * kBits, 16>(_mm256_srli_epi32(codes, first)));
  }
  // Parts fields of 2 kBits bits, which begin every 2 kPlace bits, in two: the second one begins kPlace bits later.
  template <int kBits, int kPlace>
  static __m256i Part(__m256i fields) {
    constexpr int kMask = ((1 << kBits) - 1) * (kPlace == 8 ? 0x10001 : 1);
    const __m256i second = _mm256_slli_epi32(fields, kPlace - kBits);
    return _mm256_or_si256(_mm256_and_si256(fields, _mm256_set1_epi32(kMask)),
                           _mm256_and_si256(second, _mm256_set1_epi32(kMask << kPlace)));
  }
  static __m256i NegateOf(__m256i codes, __m256i signs, int first) {
    const __m256i bits = _mm256_set1_epi32(0x08040201);
    const __m256i places = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C));
    const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_srli_epi32(signs, first), places), bits);
    const __m256i mask = _mm256_cmpeq_epi8(own, bits);
    return _mm256_sub_epi8(_mm256_xor_si256(codes, mask), mask);
  }
  // One statement, because GCC 12 would compute all products first, and keep them on the stack.
  static void AddSplit(__m256i values, __m256i below_zero, __m256i x, __m256i& sum) {
    __m256i product;
    asm("vpxor %4, %3, %1\n\tvpmaddubsw %1, %2, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sum), "=&x"(product)
        : "x"(values), "x"(below_zero), "x"(x), "x"(_mm256_set1_epi16(1)));
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
