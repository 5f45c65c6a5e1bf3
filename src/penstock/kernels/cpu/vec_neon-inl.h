// Sixteen floats in four NEON registers; vec_scalar-inl.h defines each function.
#pragma once

#include <arm_neon.h>

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

struct NeonVec {
  // 24 accumulators leave 8 registers for x and w.
  static constexpr int kPanelRows = 6;
  static constexpr int kPanelVecs = 1;

  float32x4_t a;  // lanes 0..3
  float32x4_t b;  // lanes 4..7
  float32x4_t c;  // lanes 8..11
  float32x4_t d;  // lanes 12..15

  // Makes a vector from `make` of 0, 1, 2 and 3.
  template <class Make>
  [[gnu::always_inline]] static NeonVec Quarters(const Make& make) {
    return {make(0), make(1), make(2), make(3)};
  }
  template <class Op>
  [[gnu::always_inline]] static NeonVec Map(const NeonVec& x, const Op& op) {
    return {op(x.a), op(x.b), op(x.c), op(x.d)};
  }
  template <class Op>
  [[gnu::always_inline]] static NeonVec Map(const NeonVec& x, const NeonVec& y, const Op& op) {
    return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};
  }

  static NeonVec Set(float x) {
    return Quarters([&](int) { return vdupq_n_f32(x); });
  }
  static NeonVec Zero() { return Set(0); }

  static NeonVec Load(const float* source) {
    return Quarters([&](int i) { return vld1q_f32(source + 4 * i); });
  }
  static NeonVec LoadPartial(const float* source, int64_t count, float padding) {
    float padded[16];
    Set(padding).Store(padded);
    __builtin_memcpy(padded, source, static_cast<size_t>(count) * sizeof(float));
    return Load(padded);
  }

  static uint8x16_t Bytes(const std::byte* source) { return vld1q_u8(reinterpret_cast<const uint8_t*>(source)); }
  template <Dtype kDtype>
  static float32x4_t Widen(uint16x4_t halves) {
    if constexpr (kDtype == Dtype::kF16) return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
  }
  template <Dtype kDtype>
  static NeonVec LoadAs(const std::byte* source) {
    if constexpr (kDtype == Dtype::kF32) {
      return Quarters([&](int i) { return vreinterpretq_f32_u8(Bytes(source + 16 * i)); });
    } else {
      const uint16x8_t low = vreinterpretq_u16_u8(Bytes(source)), high = vreinterpretq_u16_u8(Bytes(source + 16));
      return {Widen<kDtype>(vget_low_u16(low)), Widen<kDtype>(vget_high_u16(low)), Widen<kDtype>(vget_low_u16(high)),
              Widen<kDtype>(vget_high_u16(high))};
    }
  }
  template <Dtype kDtype>
  static NeonVec LoadPartialAs(const std::byte* source, int64_t count) {
    alignas(64) std::byte padded[64] = {};
    __builtin_memcpy(padded, source, static_cast<size_t>(count) * (kDtype == Dtype::kF32 ? 4 : 2));
    return LoadAs<kDtype>(padded);
  }

  static void LoadPairs(const std::byte* source, NeonVec& even, NeonVec& odd) {
    const auto pairs = [&](int i) { return vreinterpretq_u32_u8(Bytes(source + 16 * i)); };
    even = Quarters([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs(i), 16)); });
    odd = Quarters([&](int i) { return vreinterpretq_f32_u32(vandq_u32(pairs(i), vdupq_n_u32(0xFFFF0000u))); });
  }
  static NeonVec LoadCodes(const std::byte* source) {
    const uint8x16_t codes = Bytes(source);
    const uint16x8_t low = vmovl_u8(vget_low_u8(codes)), high = vmovl_u8(vget_high_u8(codes));
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))};
  }
  static NeonVec LoadSignedCodes(const std::byte* source) {
    const int8x16_t codes = vreinterpretq_s8_u8(Bytes(source));
    const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_s8(vget_high_s8(codes));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
  }
  NeonVec Abs() const {
    return Map(*this, [](float32x4_t x) { return vabsq_f32(x); });
  }
  // Returns the low half of each lane's bits.
  static uint16x8_t LowHalves(float32x4_t first, float32x4_t second) {
    return vcombine_u16(vmovn_u32(vreinterpretq_u32_f32(first)), vmovn_u32(vreinterpretq_u32_f32(second)));
  }
  void StoreLowBytes(std::byte* target) const {
    const uint8x16_t bytes = vcombine_u8(vmovn_u16(LowHalves(a, b)), vmovn_u16(LowHalves(c, d)));
    vst1q_u8(reinterpret_cast<uint8_t*>(target), bytes);
  }

  void Store(float* target) const {
    vst1q_f32(target, a);
    vst1q_f32(target + 4, b);
    vst1q_f32(target + 8, c);
    vst1q_f32(target + 12, d);
  }
  void StorePartial(float* target, int64_t count) const {
    float all[16];
    Store(all);
    __builtin_memcpy(target, all, static_cast<size_t>(count) * sizeof(float));
  }

  static float32x4_t RoundToBf16(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t lowest = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), lowest);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vreinterpretq_f32_u32(vshrq_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
  }
  void StoreBf16(BF16* target) const {
    auto* halves = reinterpret_cast<uint16_t*>(target);
    vst1q_u16(halves, LowHalves(RoundToBf16(a), RoundToBf16(b)));
    vst1q_u16(halves + 8, LowHalves(RoundToBf16(c), RoundToBf16(d)));
  }
  void StorePartialBf16(BF16* target, int64_t count) const {
    BF16 all[16];
    StoreBf16(all);
    __builtin_memcpy(target, all, static_cast<size_t>(count) * sizeof(BF16));
  }

  float ReduceAdd() const {
    const float32x4_t four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  float ReduceMax() const;
};

inline NeonVec Fma(const NeonVec& x, const NeonVec& y, const NeonVec& sum) {
  return {vfmaq_f32(sum.a, x.a, y.a), vfmaq_f32(sum.b, x.b, y.b), vfmaq_f32(sum.c, x.c, y.c),
          vfmaq_f32(sum.d, x.d, y.d)};
}
inline NeonVec Add(const NeonVec& x, const NeonVec& y) {
  return NeonVec::Map(x, y, [](float32x4_t p, float32x4_t q) { return vaddq_f32(p, q); });
}
inline NeonVec Sub(const NeonVec& x, const NeonVec& y) {
  return NeonVec::Map(x, y, [](float32x4_t p, float32x4_t q) { return vsubq_f32(p, q); });
}
inline NeonVec Mul(const NeonVec& x, const NeonVec& y) {
  return NeonVec::Map(x, y, [](float32x4_t p, float32x4_t q) { return vmulq_f32(p, q); });
}
inline NeonVec Div(const NeonVec& x, const NeonVec& y) {
  return NeonVec::Map(x, y, [](float32x4_t p, float32x4_t q) { return vdivq_f32(p, q); });
}
// NEON's own maximum returns NaN when either operand is NaN.
inline NeonVec Max(const NeonVec& x, const NeonVec& y) {
  return NeonVec::Map(x, y, [](float32x4_t p, float32x4_t q) { return vbslq_f32(vcgtq_f32(p, q), p, q); });
}
inline NeonVec Min(const NeonVec& x, const NeonVec& y) {
  return NeonVec::Map(x, y, [](float32x4_t p, float32x4_t q) { return vbslq_f32(vcltq_f32(p, q), p, q); });
}

inline float NeonVec::ReduceMax() const {
  float lanes[16];
  Store(lanes);
  for (int half = 8; half >= 1; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] = lanes[j] > lanes[j + half] ? lanes[j] : lanes[j + half];
  }
  return lanes[0];
}

inline NeonVec ScaleByPowerOfTwo(const NeonVec& x, const NeonVec& shifted, float shift) {
  return NeonVec::Map(x, shifted, [&](float32x4_t value, float32x4_t exponent) {
    const int32x4_t one = vdupq_n_s32(0x3F800000);
    const int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(exponent), vreinterpretq_s32_f32(vdupq_n_f32(shift)));
    const int32x4_t half = vshrq_n_s32(n, 1);
    const int32x4_t first = vaddq_s32(vshlq_n_s32(half, 23), one);
    const int32x4_t second = vaddq_s32(vshlq_n_s32(vsubq_s32(n, half), 23), one);
    return vmulq_f32(vmulq_f32(value, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
  });
}

}  // namespace
}  // namespace penstock::kernels
