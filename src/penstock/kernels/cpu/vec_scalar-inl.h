// Sixteen floats as an array: the vector that runs on every machine, and the definition that the others follow.
//
// The names of this class are the interface that the kernels (*-inl.h) are written against. All vector classes and
// kernels live in unnamed namespaces, also in headers: each unit must keep its own copy, compiled with its own flags.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

struct ScalarVec {
  // The register tiles. GEMM: rows of x times vectors of a panel. Attention: heads times pages, and heads times 16-wide
  // pieces of head_dim.
  static constexpr int kPanelRows = 2;
  static constexpr int kPanelVecs = 2;

  float lanes[16];

  static uint32_t Bits(float x) { return __builtin_bit_cast(uint32_t, x); }
  static float FromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

  static ScalarVec Set(float x) {
    ScalarVec result;
    for (float& lane : result.lanes) lane = x;
    return result;
  }
  static ScalarVec Zero() { return Set(0); }

  static ScalarVec Load(const float* source) {
    ScalarVec result;
    for (int j = 0; j < 16; ++j) result.lanes[j] = source[j];
    return result;
  }
  // Loads the first `count` < 16 lanes from memory; the others are `padding`.
  static ScalarVec LoadPartial(const float* source, int64_t count, float padding) {
    ScalarVec result = Set(padding);
    for (int64_t j = 0; j < count; ++j) result.lanes[j] = source[j];
    return result;
  }

  static float HalfToFloat(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 0x1F;
    const uint32_t mantissa = bits & 0x3FF;
    if (exponent == 0) {
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return sign != 0 ? -magnitude : magnitude;
    }
    return FromBits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13);
  }

  // Loads elements of a stored type and widens them. The source needs no alignment.
  template <Dtype kDtype>
  static ScalarVec LoadAs(const std::byte* source) {
    return LoadPartialAs<kDtype>(source, 16);
  }
  // Loads the first `count` <= 16 elements; the other lanes are zero.
  template <Dtype kDtype>
  static ScalarVec LoadPartialAs(const std::byte* source, int64_t count) {
    ScalarVec result = Zero();
    for (int64_t j = 0; j < count; ++j) {
      if constexpr (kDtype == Dtype::kF32) {
        __builtin_memcpy(&result.lanes[j], source + 4 * j, 4);
      } else {
        uint16_t bits;
        __builtin_memcpy(&bits, source + 2 * j, 2);
        result.lanes[j] = kDtype == Dtype::kF16 ? HalfToFloat(bits) : FromBits(static_cast<uint32_t>(bits) << 16);
      }
    }
    return result;
  }

  // Loads 16 pairs of bf16 and widens them.
  static void LoadPairs(const std::byte* source, ScalarVec& even, ScalarVec& odd) {
    for (int j = 0; j < 16; ++j) {
      uint32_t pair;
      __builtin_memcpy(&pair, source + 4 * j, 4);
      even.lanes[j] = FromBits(pair << 16);
      odd.lanes[j] = FromBits(pair & 0xFFFF0000u);
    }
  }
  // Loads 16 unsigned bytes as floats.
  static ScalarVec LoadCodes(const std::byte* source) {
    ScalarVec result;
    for (int j = 0; j < 16; ++j) result.lanes[j] = static_cast<float>(static_cast<uint8_t>(source[j]));
    return result;
  }
  // Loads 16 signed bytes as floats.
  static ScalarVec LoadSignedCodes(const std::byte* source) {
    ScalarVec result;
    for (int j = 0; j < 16; ++j) result.lanes[j] = static_cast<float>(static_cast<int8_t>(source[j]));
    return result;
  }
  ScalarVec Abs() const {
    ScalarVec result;
    for (int j = 0; j < 16; ++j) result.lanes[j] = FromBits(Bits(lanes[j]) & 0x7FFFFFFF);
    return result;
  }
  // Stores the lowest byte of each lane's bits.
  void StoreLowBytes(std::byte* target) const {
    for (int j = 0; j < 16; ++j) target[j] = static_cast<std::byte>(Bits(lanes[j]) & 0xFF);
  }

  void Store(float* target) const { StorePartial(target, 16); }
  void StorePartial(float* target, int64_t count) const {
    for (int64_t j = 0; j < count; ++j) target[j] = lanes[j];
  }
  // Rounds to nearest, ties to even; NaN stays NaN.
  void StoreBf16(BF16* target) const { StorePartialBf16(target, 16); }
  void StorePartialBf16(BF16* target, int64_t count) const {
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t bits = Bits(lanes[j]);
      const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
      target[j].bits = static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
  }

  // Adds in a tree: lane j + lane j+8, then +4, +2, +1.
  float ReduceAdd() const {
    ScalarVec sums = *this;
    for (int half = 8; half >= 1; half /= 2) {
      for (int j = 0; j < half; ++j) sums.lanes[j] += sums.lanes[j + half];
    }
    return sums.lanes[0];
  }
  float ReduceMax() const {
    ScalarVec maxima = *this;
    for (int half = 8; half >= 1; half /= 2) {
      for (int j = 0; j < half; ++j) {
        const float a = maxima.lanes[j], b = maxima.lanes[j + half];
        maxima.lanes[j] = a > b ? a : b;
      }
    }
    return maxima.lanes[0];
  }
};

inline ScalarVec Fma(const ScalarVec& a, const ScalarVec& b, const ScalarVec& c) {
  ScalarVec result;
  for (int j = 0; j < 16; ++j) result.lanes[j] = __builtin_fmaf(a.lanes[j], b.lanes[j], c.lanes[j]);
  return result;
}
inline ScalarVec Add(const ScalarVec& a, const ScalarVec& b) {
  ScalarVec result;
  for (int j = 0; j < 16; ++j) result.lanes[j] = a.lanes[j] + b.lanes[j];
  return result;
}
inline ScalarVec Sub(const ScalarVec& a, const ScalarVec& b) {
  ScalarVec result;
  for (int j = 0; j < 16; ++j) result.lanes[j] = a.lanes[j] - b.lanes[j];
  return result;
}
inline ScalarVec Mul(const ScalarVec& a, const ScalarVec& b) {
  ScalarVec result;
  for (int j = 0; j < 16; ++j) result.lanes[j] = a.lanes[j] * b.lanes[j];
  return result;
}
inline ScalarVec Div(const ScalarVec& a, const ScalarVec& b) {
  ScalarVec result;
  for (int j = 0; j < 16; ++j) result.lanes[j] = a.lanes[j] / b.lanes[j];
  return result;
}
// Returns `b` when either is NaN, like the instructions of x86.
inline ScalarVec Max(const ScalarVec& a, const ScalarVec& b) {
  ScalarVec result;
  for (int j = 0; j < 16; ++j) result.lanes[j] = a.lanes[j] > b.lanes[j] ? a.lanes[j] : b.lanes[j];
  return result;
}
inline ScalarVec Min(const ScalarVec& a, const ScalarVec& b) {
  ScalarVec result;
  for (int j = 0; j < 16; ++j) result.lanes[j] = a.lanes[j] < b.lanes[j] ? a.lanes[j] : b.lanes[j];
  return result;
}

// Returns x * 2^n, where `shifted` is n + kExpShift as a float, whose low bits are n. Multiplies by two factors,
// because 2^n itself may be out of range. The first product is exact and the second rounds once.
inline ScalarVec ScaleByPowerOfTwo(const ScalarVec& x, const ScalarVec& shifted, float shift) {
  ScalarVec result;
  for (int j = 0; j < 16; ++j) {
    const int32_t n = static_cast<int32_t>(ScalarVec::Bits(shifted.lanes[j]) - ScalarVec::Bits(shift));
    const int32_t half = n >> 1;
    const float first = ScalarVec::FromBits(static_cast<uint32_t>(half) * 0x800000u + 0x3F800000u);
    const float second =
        ScalarVec::FromBits((static_cast<uint32_t>(n) - static_cast<uint32_t>(half)) * 0x800000u + 0x3F800000u);
    result.lanes[j] = x.lanes[j] * first * second;
  }
  return result;
}

}  // namespace
}  // namespace penstock::kernels
