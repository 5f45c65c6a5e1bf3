// Decodes compressed bf16 values with AVX2: bits of the planes of a group become bytes.
#pragma once

#include <immintrin.h>

#include "penstock/kernels/cpu/exponents/exponents-inl.h"

namespace penstock::kernels {
namespace {

class Avx2Exponents {
 public:
  explicit Avx2Exponents(const uint8_t* exponents) {
    // The two bytes of a value hold 1 and 7 bits of its exponent. Four bits choose it: the code in its last tier, and
    // the tier.
    alignas(16) uint8_t low[16] = {}, high[16] = {};
    for (int code = 0; code < 9; ++code) {
      const int place = code / 3 * 4 + code % 3;
      low[place] = static_cast<uint8_t>(exponents[code] << 7);
      high[place] = static_cast<uint8_t>(exponents[code] >> 1);
    }
    low_ = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(low)));
    high_ = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(high)));
  }

  static uint64_t Deposit(uint64_t bits, uint64_t mask) { return _pdep_u64(bits, mask); }

  void WriteGroup(const ExponentPlanes& planes, const std::byte* signs, uint16_t* target) const {
    const uint64_t in_second = planes.first[0] & planes.first[1], in_third = planes.second[0] & planes.second[1];
    const __m256i bits[4] = {
        Broadcast((planes.first[0] & ~in_second) | (planes.second[0] & ~in_third) | planes.third[0]),
        Broadcast((planes.first[1] & ~in_second) | (planes.second[1] & ~in_third) | planes.third[1]),
        Broadcast(in_second & ~in_third), Broadcast(in_third)};
    WriteHalf<0>(bits, signs, target);
    WriteHalf<1>(bits, signs + 32, target + 16);
  }

 private:
  static __m256i Broadcast(uint64_t plane) { return _mm256_set1_epi64x(static_cast<int64_t>(plane)); }

  template <int kHalf>
  void WriteHalf(const __m256i (&bits)[4], const std::byte* signs, uint16_t* target) const {
    constexpr char kByte = 4 * kHalf;
    const __m256i spread = _mm256_setr_epi8(
        kByte, kByte, kByte, kByte, kByte, kByte, kByte, kByte, kByte + 1, kByte + 1, kByte + 1, kByte + 1, kByte + 1,
        kByte + 1, kByte + 1, kByte + 1, kByte + 2, kByte + 2, kByte + 2, kByte + 2, kByte + 2, kByte + 2, kByte + 2,
        kByte + 2, kByte + 3, kByte + 3, kByte + 3, kByte + 3, kByte + 3, kByte + 3, kByte + 3, kByte + 3);
    const __m256i own_bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    __m256i code = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      const __m256i is_set =
          _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits[i], spread), own_bit), own_bit);
      code = _mm256_or_si256(code, _mm256_and_si256(is_set, _mm256_set1_epi8(static_cast<char>(1 << i))));
    }
    const __m256i sign = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(signs));
    const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i low = _mm256_or_si256(_mm256_shuffle_epi8(low_, code), _mm256_andnot_si256(top, sign));
    const __m256i high = _mm256_or_si256(_mm256_shuffle_epi8(high_, code), _mm256_and_si256(top, sign));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + 32), _mm256_unpackhi_epi8(low, high));
  }

  __m256i low_, high_;
};

}  // namespace
}  // namespace penstock::kernels
