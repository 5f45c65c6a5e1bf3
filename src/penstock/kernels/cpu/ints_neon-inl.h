// Products of codes in four NEON registers by SDOT; ints_scalar-inl.h defines each function.
#pragma once

#include <arm_neon.h>

#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/vec_neon-inl.h"

namespace penstock::kernels {
namespace {

struct NeonInts {
  using Vec = NeonVec;
  static constexpr int kRows = NeonVec::kPanelRows;

  struct Codes {
    uint8x16_t a;
    uint8x16_t b;
    uint8x16_t c;
    uint8x16_t d;
  };

  int32x4_t a;
  int32x4_t b;
  int32x4_t c;
  int32x4_t d;

  template <class Op>
  [[gnu::always_inline]] static Codes Map(const Codes& x, const Op& op) {
    return {op(x.a), op(x.b), op(x.c), op(x.d)};
  }

  static NeonInts Zero() { return {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static Codes Load(const std::byte* source) {
    return {NeonVec::Bytes(source), NeonVec::Bytes(source + 16), NeonVec::Bytes(source + 32),
            NeonVec::Bytes(source + 48)};
  }
  static void Store(const Codes& codes, std::byte* target) {
    auto* bytes = reinterpret_cast<uint8_t*>(target);
    vst1q_u8(bytes, codes.a);
    vst1q_u8(bytes + 16, codes.b);
    vst1q_u8(bytes + 32, codes.c);
    vst1q_u8(bytes + 48, codes.d);
  }
  static Codes And(const Codes& codes, int mask) {
    return Map(codes, [&](uint8x16_t x) { return vandq_u8(x, vdupq_n_u8(static_cast<uint8_t>(mask))); });
  }
  static Codes Or(const Codes& x, const Codes& y) {
    return {vorrq_u8(x.a, y.a), vorrq_u8(x.b, y.b), vorrq_u8(x.c, y.c), vorrq_u8(x.d, y.d)};
  }
  static Codes ShiftRight(const Codes& codes, int count) { return ShiftLeft(codes, -count); }
  static Codes ShiftLeft(const Codes& codes, int count) {
    return Map(codes, [&](uint8x16_t x) { return vshlq_u8(x, vdupq_n_s8(static_cast<int8_t>(count))); });
  }
  static Codes FirstDigit(const Codes& codes) {
    return Map(codes, [](uint8x16_t x) {  // comparisons give 255 or 0
      return vsubq_u8(vdupq_n_u8(0), vaddq_u8(vcgeq_u8(x, vdupq_n_u8(86)), vcgeq_u8(x, vdupq_n_u8(171))));
    });
  }
  static Codes Triple(const Codes& codes) {
    return Map(codes, [](uint8x16_t x) { return vaddq_u8(x, vaddq_u8(x, x)); });
  }
  static Codes Xor(const Codes& codes, int mask) {
    return Map(codes, [&](uint8x16_t x) { return veorq_u8(x, vdupq_n_u8(static_cast<uint8_t>(mask))); });
  }
  static Codes Lookup(const uint8_t* table, const Codes& codes) {
    const uint8x16_t values = vld1q_u8(table);
    return Map(codes, [&](uint8x16_t x) { return vqtbl1q_u8(values, x); });
  }
  static Codes Subtract(const Codes& codes, int offset) {
    return Map(codes, [&](uint8x16_t x) { return vsubq_u8(x, vdupq_n_u8(static_cast<uint8_t>(offset))); });
  }
  static Codes Field(const Codes& codes, int first, int count) {
    return Map(codes, [&](uint8x16_t x) {
      const uint32x4_t low = vshlq_u32(vreinterpretq_u32_u8(x), vdupq_n_s32(-first));
      return vreinterpretq_u8_u32(vandq_u32(low, vdupq_n_u32((uint32_t{1} << count) - 1)));
    });
  }
  static Codes ShiftWordsLeft(const Codes& codes, int count) {
    return Map(codes, [&](uint8x16_t x) {
      return vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(x), vdupq_n_s32(count)));
    });
  }
  template <int kBits>
  static Codes Spread(const Codes& codes, int first) {
    Codes spread = Field(codes, first, kBits);
    for (int i = 1; i < 4; ++i) spread = Or(spread, ShiftWordsLeft(Field(codes, first + kBits * i, kBits), 8 * i));
    return spread;
  }
  static constexpr bool kHasBytePermutes = false;
  static Codes Entries(const uint32_t* book, const Codes& codes) {
    return Map(codes, [&](uint8x16_t x) {
      uint32_t words[4];
      vst1q_u32(words, vreinterpretq_u32_u8(x));
      for (uint32_t& word : words) word = book[word];
      return vreinterpretq_u8_u32(vld1q_u32(words));
    });
  }
  static Codes EvenBits(const Codes& codes) {
    const uint8x16_t odd = vld1q_u8(kOddBits);
    return Map(codes, [&](uint8x16_t x) {
      return vorrq_u8(x, vqtbl1q_u8(odd, vandq_u8(veorq_u8(x, vshrq_n_u8(x, 4)), vdupq_n_u8(15))));
    });
  }
  static Codes Negate(const Codes& codes, const Codes& signs, int first) {
    const auto negate = [&](uint8x16_t x, uint8x16_t sign) {
      const uint8x16_t low = vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(sign), vdupq_n_s32(-first)));
      const uint8x16_t places = vreinterpretq_u8_u32(uint32x4_t{0, 0x04040404, 0x08080808, 0x0C0C0C0C});
      const uint8x16_t mask = vtstq_u8(vqtbl1q_u8(low, places), vreinterpretq_u8_u32(vdupq_n_u32(0x08040201)));
      return vsubq_u8(veorq_u8(x, mask), mask);
    };
    return {negate(codes.a, signs.a), negate(codes.b, signs.b), negate(codes.c, signs.c), negate(codes.d, signs.d)};
  }
  static NeonInts Same(const std::byte* number) {
    int32_t value;
    __builtin_memcpy(&value, number, 4);
    const int32x4_t same = vdupq_n_s32(value);
    return {same, same, same, same};
  }
  static NeonInts SumOfPair(const std::byte* sums, int first, int second) {
    int16_t pair[2];
    __builtin_memcpy(pair, sums, 4);
    const int32x4_t sum = vdupq_n_s32(first * pair[0] + second * pair[1]);
    return {sum, sum, sum, sum};
  }

  static constexpr bool kDotsAreUnsigned = false;
  static NeonInts StartInt8(const std::byte*) { return Zero(); }
  static NeonInts DotInt8(const Codes& codes, const std::byte* x, const NeonInts& sum) {
    return DotSmall(Map(codes, [](uint8x16_t w) { return veorq_u8(w, vdupq_n_u8(0x80)); }), x, sum);
  }
  static NeonInts DotSmall(const Codes& codes, const std::byte* x, const NeonInts& sum) {
    int32_t four;
    __builtin_memcpy(&four, x, 4);
    const int8x16_t row = vreinterpretq_s8_s32(vdupq_n_s32(four));
    return {vdotq_s32(sum.a, vreinterpretq_s8_u8(codes.a), row), vdotq_s32(sum.b, vreinterpretq_s8_u8(codes.b), row),
            vdotq_s32(sum.c, vreinterpretq_s8_u8(codes.c), row), vdotq_s32(sum.d, vreinterpretq_s8_u8(codes.d), row)};
  }

  static constexpr bool kAddsPairs = false;
  template <class V>
  V ToFloats() const {
    return {vcvtq_f32_s32(a), vcvtq_f32_s32(b), vcvtq_f32_s32(c), vcvtq_f32_s32(d)};
  }
};

}  // namespace
}  // namespace penstock::kernels
