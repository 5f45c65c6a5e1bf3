// Products of codes in zmm registers, with VPDPBUSD if the machine has VNNI; ints_scalar-inl.h defines each function.
#pragma once

#include <immintrin.h>

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
  static __m512i AddPairs(__m512i pairs, __m512i sum) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
};

}  // namespace
}  // namespace penstock::kernels
