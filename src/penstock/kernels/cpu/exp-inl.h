// The only exponential function: softmax, SwiGLU and attention all use it, with the same multiply-adds on every
// machine.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// 1.5 * 2^23: a float of this size has no fraction bits, so adding it rounds to an integer in the low bits.
constexpr float kExpShift = 0x1.8p23f;

// exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2. For such r, the Taylor polynomial of degree 7 is
// within r^8 / 8! < 2^-27 of exp(r). ln 2 is split into a head and a rest. The head has 15 bits, so that n * head is
// exact.
template <class V>
V Exp(V x) {
  // Outside this range the result is 0 or infinity anyway. The order of the operands lets NaN through.
  x = Min(V::Set(89.0f), Max(V::Set(-104.0f), x));
  const V shifted = Fma(x, V::Set(0x1.715476p+0f), V::Set(kExpShift));
  const V n = Sub(shifted, V::Set(kExpShift));
  V r = Fma(n, V::Set(-0x1.62e4p-1f), x);
  r = Fma(n, V::Set(-0x1.7f7d1cp-20f), r);
  V sum = V::Set(1.0f / 5040);
  sum = Fma(sum, r, V::Set(1.0f / 720));
  sum = Fma(sum, r, V::Set(1.0f / 120));
  sum = Fma(sum, r, V::Set(1.0f / 24));
  sum = Fma(sum, r, V::Set(1.0f / 6));
  sum = Fma(sum, r, V::Set(0.5f));
  sum = Fma(sum, r, V::Set(1.0f));
  sum = Fma(sum, r, V::Set(1.0f));
  return ScaleByPowerOfTwo(sum, shifted, kExpShift);
}

template <class V>
void ExpOf(const float* source, int64_t count, float* target) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) Exp(V::Load(source + i)).Store(target + i);
  if (i < count) Exp(V::LoadPartial(source + i, count - i, 0)).StorePartial(target + i, count - i);
}

constexpr float kMinusInfinity = -__builtin_inff();

// values = exp(scale * values - max(scale * values)). Calls meanwhile() for each 16 values.
template <class V, class Meanwhile>
void ExpMinusMax(float* values, int64_t count, float scale, const Meanwhile& meanwhile) {
  const V factor = V::Set(scale);
  V maxima = V::Set(kMinusInfinity);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const V scaled = Mul(V::Load(values + i), factor);
    scaled.Store(values + i);
    maxima = Max(maxima, scaled);
  }
  if (i < count) {
    const V scaled = Mul(V::LoadPartial(values + i, count - i, 0), factor);
    scaled.StorePartial(values + i, count - i);
    maxima = Max(maxima, V::LoadPartial(values + i, count - i, kMinusInfinity));
  }
  const V max = V::Set(maxima.ReduceMax());
  for (i = 0; i + 16 <= count; i += 16) {
    Exp(Sub(V::Load(values + i), max)).Store(values + i);
    meanwhile();
  }
  if (i < count) Exp(Sub(V::LoadPartial(values + i, count - i, 0), max)).StorePartial(values + i, count - i);
}

template <class V>
float SumOf(const float* values, int64_t count) {
  V sums = V::Zero();
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) sums = Add(sums, V::Load(values + i));
  if (i < count) sums = Add(sums, V::LoadPartial(values + i, count - i, 0));
  return sums.ReduceAdd();
}

}  // namespace
}  // namespace penstock::kernels
