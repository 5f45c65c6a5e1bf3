// Products of codes in zmm registers, with VPDPBUSD if the machine has VNNI; ints_scalar-inl.h defines each function.
#pragma once

#include <immintrin.h>

#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/vec_avx512-inl.h"

namespace penstock::kernels {
namespace {

// An aggregate without base classes, because GCC 12 keeps other classes in memory.
template <bool kVnni>
struct Avx512IntsOf {
  using Vec = Avx512Vec;
  using Codes = __m512i;
  static constexpr int kRows = Avx512Vec::kPanelRows;

  __m512i lanes;

  static Avx512IntsOf Zero() { return {_mm512_setzero_si512()}; }
  static Codes Load(const std::byte* source) { return _mm512_loadu_si512(source); }
  static void Store(Codes codes, std::byte* target) { _mm512_storeu_si512(target, codes); }
  static Codes And(Codes codes, int mask) { return _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(mask))); }
  static Codes Or(Codes a, Codes b) { return _mm512_or_si512(a, b); }
  static Codes ShiftRight(Codes codes, int count) { return _mm512_srli_epi16(codes, static_cast<unsigned>(count)); }
  static Codes ShiftLeft(Codes codes, int count) { return _mm512_slli_epi16(codes, static_cast<unsigned>(count)); }
  static Codes FirstDigit(Codes codes) {
    const __mmask64 is_one = _mm512_cmpge_epu8_mask(codes, _mm512_set1_epi8(86));
    const __mmask64 is_two = _mm512_cmpge_epu8_mask(codes, _mm512_set1_epi8(static_cast<char>(171)));
    return _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(is_one, _mm512_set1_epi8(1)), is_two, _mm512_set1_epi8(2));
  }
  static Codes Subtract(Codes codes, int offset) {
    return _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(offset)));
  }
  static Codes Triple(Codes codes) { return _mm512_add_epi8(codes, _mm512_add_epi8(codes, codes)); }
  static __m512i Four(const std::byte* x) {
    int32_t four;
    __builtin_memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
  }
  static Codes Xor(Codes codes, int mask) { return _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(mask))); }
  static Codes Lookup(const uint8_t* table, Codes codes) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), codes);
  }
  static Codes Field(Codes codes, int first, int count) {
    return _mm512_and_si512(_mm512_srli_epi32(codes, static_cast<unsigned>(first)),
                            _mm512_set1_epi32((1 << count) - 1));
  }
  static Codes ShiftWordsLeft(Codes codes, int count) { return _mm512_slli_epi32(codes, static_cast<unsigned>(count)); }
  static Codes Entries(const uint32_t* book, Codes codes) { return _mm512_i32gather_epi32(codes, book, 4); }
#ifdef __AVX512VBMI__
  template <int kBits>
  static Codes Spread(Codes codes, int first) {
    const __m512i bits = _mm512_add_epi8(_mm512_set1_epi64(kPlaces<kBits>), _mm512_set1_epi8(static_cast<char>(first)));
    return And(_mm512_multishift_epi64_epi8(bits, codes), (1 << kBits) - 1);
  }
  static constexpr bool kHasBytePermutes = true;
  // `planes`: byte i of all entries in plane i.
  template <size_t kSize>
  static void LookupFours(const uint8_t (&planes)[4][kSize], Codes low, Codes high, Codes* quads) {
    // Byte n of four outputs become neighbours.
    const __m512i order = _mm512_set4_epi32(0x0F0B0703, 0x0E0A0602, 0x0D090501, 0x0C080400);
    const Numbers numbers(_mm512_shuffle_epi8(low, order), _mm512_shuffle_epi8(high, order));
    const __m512i a = numbers.template In<kSize>(planes[0]), b = numbers.template In<kSize>(planes[1]);
    const __m512i c = numbers.template In<kSize>(planes[2]), d = numbers.template In<kSize>(planes[3]);
    const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
    const __m512i ab_2 = _mm512_unpackhi_epi8(a, b), cd_2 = _mm512_unpackhi_epi8(c, d);
    quads[0] = _mm512_unpacklo_epi16(ab, cd);
    quads[1] = _mm512_unpackhi_epi16(ab, cd);
    quads[2] = _mm512_unpacklo_epi16(ab_2, cd_2);
    quads[3] = _mm512_unpackhi_epi16(ab_2, cd_2);
  }
  // `planes`: four numbers of 2 bits of all entries in a plane.
  template <size_t kSize>
  static void LookupEights(const uint8_t (&planes)[2][kSize], const uint8_t* values, Codes low, Codes high,
                           Codes (&quads)[8]) {
    const Numbers numbers(low, high);
    const __m512i first = numbers.template In<kSize>(planes[0]), second = numbers.template In<kSize>(planes[1]);
    Unrolled<4>([&](auto n) __attribute__((always_inline)) {
      quads[2 * n] = Lookup(values, Spread<2>(first, 8 * n));
      quads[2 * n + 1] = Lookup(values, Spread<2>(second, 8 * n));
    });
  }
#else
  template <int kBits>
  static Codes Spread(Codes codes, int first) {
    const __m512i pairs = Part<2 * kBits, 16>(_mm512_srli_epi32(codes, static_cast<unsigned>(first)));
    return Part<kBits, 8>(pairs);
  }
  static constexpr bool kHasBytePermutes = false;
#endif
  static Codes EvenBits(Codes codes) {
    const __m512i folded = _mm512_xor_si512(codes, _mm512_srli_epi16(codes, 4));
    return _mm512_or_si512(codes, Lookup(kOddBits, And(folded, 15)));
  }
  static Codes Negate(Codes codes, Codes signs, int first) {
    const __m512i low = _mm512_srli_epi32(signs, static_cast<unsigned>(first));
    const __m512i bytes = _mm512_shuffle_epi8(low, _mm512_set4_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0));
    return _mm512_mask_sub_epi8(codes, _mm512_test_epi8_mask(bytes, _mm512_set1_epi32(0x08040201)),
                                _mm512_setzero_si512(), codes);
  }
  static Avx512IntsOf Same(const std::byte* number) { return {Four(number)}; }
  static Avx512IntsOf SumOfPair(const std::byte* sums, int first, int second) {
    return {_mm512_madd_epi16(Four(sums), _mm512_set1_epi32((first & 0xFFFF) | second * 0x10000))};
  }

  static constexpr bool kDotsAreUnsigned = kVnni;
  static Avx512IntsOf StartInt8(const std::byte* code_offset) {
    if constexpr (kVnni) return {Four(code_offset)};
    return Zero();
  }
  // Without VNNI this works as in ints_avx2-inl.h, but AVX-512 has no VPSIGNB.
  static Avx512IntsOf DotInt8(Codes codes, const std::byte* x, Avx512IntsOf sum) {
    if constexpr (kVnni) return DotSmall(codes, x, sum);
    const __m512i w = _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
    const __m512i four = Four(x);
    const __m512i signed_x = _mm512_mask_sub_epi8(four, _mm512_movepi8_mask(w), _mm512_setzero_si512(), four);
    return {AddPairs(_mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x), sum.lanes)};
  }
  static Avx512IntsOf DotSmall(Codes codes, const std::byte* x, Avx512IntsOf sum) {
    if constexpr (kVnni) {
      // An intrinsic exists, but GCC 12 copies the sum before and after it.
      asm("vpdpbusd %2, %1, %0" : "+v"(sum.lanes) : "v"(codes), "v"(Four(x)));
      return sum;
    }
    return {AddPairs(_mm512_maddubs_epi16(codes, Four(x)), sum.lanes)};
  }
  static constexpr bool kAddsPairs = false;
  template <class V>
  V ToFloats() const {
    return {_mm512_cvtepi32_ps(lanes)};
  }

 private:
#ifndef __AVX512VBMI__
  // Parts fields of 2 kBits bits, which begin every 2 kPlace bits, in two: the second one begins kPlace bits later.
  template <int kBits, int kPlace>
  static __m512i Part(__m512i fields) {
    constexpr int kMask = ((1 << kBits) - 1) * (kPlace == 8 ? 0x10001 : 1);
    const __m512i second = _mm512_slli_epi32(fields, kPlace - kBits);
    return _mm512_or_si512(_mm512_and_si512(fields, _mm512_set1_epi32(kMask)),
                           _mm512_and_si512(second, _mm512_set1_epi32(kMask << kPlace)));
  }
#else
  // VPMULTISHIFTQB's places of four fields in both words of 64 bits.
  template <int kBits>
  static constexpr int64_t kPlaces = (int64_t{kBits} << 8 | int64_t{2 * kBits} << 16 | int64_t{3 * kBits} << 24) *
                                         0x100000001 +
                                     0x2020202000000000;

  // Entries named by bytes, with their further bits in the bytes of another vector.
  struct Numbers {
    __m512i low;
    __m512i high;

    Numbers(__m512i low_bits, __m512i high_bits) : low(low_bits), high(high_bits) {}
    template <size_t kSize>
    __m512i In(const uint8_t* plane) const {
      if constexpr (kSize == 128) {
        return _mm512_permutex2var_epi8(_mm512_load_si512(plane), low, _mm512_load_si512(plane + 64));
      } else {
        const __m512i below = In<kSize / 2>(plane), above = In<kSize / 2>(plane + kSize / 2);
        const __m512i bit = _mm512_set1_epi8(static_cast<char>(kSize == 256 ? 128 : kSize / 512));
        return _mm512_mask_mov_epi8(below, _mm512_test_epi8_mask(kSize == 256 ? low : high, bit), above);
      }
    }
  };
#endif

  static __m512i AddPairs(__m512i pairs, __m512i sum) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
};

}  // namespace
}  // namespace penstock::kernels
