// Decodes compressed bf16 values with AVX-512: the planes of a group are masks of its 64 bytes.
#pragma once

#include <immintrin.h>

#include "penstock/kernels/cpu/exponents/exponents-inl.h"

namespace penstock::kernels {
namespace {

class Avx512Exponents {
 public:
  explicit Avx512Exponents(const uint8_t* exponents) {
    // The two bytes of a value hold 1 and 7 bits of its exponent.
    alignas(16) uint8_t low[16] = {}, high[16] = {};
    for (int code = 0; code < 9; ++code) {
      low[code] = static_cast<uint8_t>(exponents[code] << 7);
      high[code] = static_cast<uint8_t>(exponents[code] >> 1);
    }
    low_ = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(low)));
    high_ = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(high)));
  }

  static uint64_t Deposit(uint64_t bits, uint64_t mask) { return _pdep_u64(bits, mask); }

  void WriteGroup(const ExponentPlanes& planes, const std::byte* signs, uint16_t* target) const {
    const __m512i one = _mm512_set1_epi8(1), two = _mm512_set1_epi8(2);
    __m512i code = _mm512_maskz_mov_epi8(planes.first[0], one);
    code = _mm512_mask_add_epi8(code, planes.first[1], code, two);
    code = _mm512_mask_add_epi8(code, planes.second[0], code, one);
    code = _mm512_mask_add_epi8(code, planes.second[1], code, two);
    code = _mm512_mask_add_epi8(code, planes.third[0], code, one);
    code = _mm512_mask_add_epi8(code, planes.third[1], code, two);
    const __m512i sign = _mm512_loadu_si512(signs);
    constexpr int kOrBoth = 0xF8;  // a | (b & c)
    const __m512i low =
        _mm512_ternarylogic_epi32(_mm512_shuffle_epi8(low_, code), sign, _mm512_set1_epi8(0x7F), kOrBoth);
    const __m512i high = _mm512_ternarylogic_epi32(_mm512_shuffle_epi8(high_, code), sign,
                                                   _mm512_set1_epi8(static_cast<char>(0x80)), kOrBoth);
    _mm512_storeu_si512(target, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(target + 32, _mm512_unpackhi_epi8(low, high));
  }

 private:
  __m512i low_, high_;
};

}  // namespace
}  // namespace penstock::kernels
