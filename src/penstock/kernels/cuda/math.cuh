// The arithmetic of kernel_table.h's law of sums for the threads of a warp, with the host's bits.
#pragma once

#include "penstock/kernels/cuda/simt.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::cuda {

// Sums over the 16 lanes of each half of a warp; all lanes get the sum. The tree is the law's: lane j and j + 8 are
// added, then j and j + 4, j + 2, j + 1.
PENSTOCK_DEVICE float SumOf16Lanes(float x) {
  for (int distance = 8; distance >= 1; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

// Returns `b` if either is NaN.
PENSTOCK_DEVICE float Larger(float a, float b) { return a > b ? a : b; }
PENSTOCK_DEVICE float MaxOfWarp(float x) {
  for (int distance = 16; distance >= 1; distance /= 2) x = Larger(__shfl_xor_sync(kAllLanes, x, distance), x);
  return x;
}
PENSTOCK_DEVICE int32_t SumOfWarp(int32_t x) {
  for (int distance = 16; distance >= 1; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

// Computes exp(x) by the same steps as cpu/exp-inl.h.
PENSTOCK_DEVICE float Exp(float x) {
  constexpr float kShift = 0x1.8p23f;
  x = -104.0f > x ? -104.0f : x;
  x = 89.0f < x ? 89.0f : x;
  const float shifted = __fmaf_rn(x, 0x1.715476p+0f, kShift);
  const float n = shifted - kShift;
  float r = __fmaf_rn(n, -0x1.62e4p-1f, x);
  r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
  float sum = 1.0f / 5040;
  sum = __fmaf_rn(sum, r, 1.0f / 720);
  sum = __fmaf_rn(sum, r, 1.0f / 120);
  sum = __fmaf_rn(sum, r, 1.0f / 24);
  sum = __fmaf_rn(sum, r, 1.0f / 6);
  sum = __fmaf_rn(sum, r, 0.5f);
  sum = __fmaf_rn(sum, r, 1.0f);
  sum = __fmaf_rn(sum, r, 1.0f);
  // Multiplies by 2^n in two factors; the first product is exact.
  const int32_t exponent = static_cast<int32_t>(__float_as_uint(shifted) - __float_as_uint(kShift));
  const int32_t half = exponent >> 1;
  const float first = __uint_as_float(static_cast<uint32_t>(half) * 0x800000u + 0x3F800000u);
  const float second =
      __uint_as_float((static_cast<uint32_t>(exponent) - static_cast<uint32_t>(half)) * 0x800000u + 0x3F800000u);
  return sum * first * second;
}

PENSTOCK_DEVICE float Sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + Exp(0.0f - x)); }

PENSTOCK_DEVICE float Glu(const GluRule& rule, float gate, float up) {
  float exponent = 0.0f - gate;
  if (!rule.is_plain()) {
    if (rule.limit > 0) {
      gate = rule.limit < gate ? rule.limit : gate;
      up = -rule.limit > up ? -rule.limit : up;
      up = rule.limit < up ? rule.limit : up;
    }
    exponent = 0.0f - rule.alpha * (rule.cubic == 0 ? gate : __fmaf_rn(gate * gate * gate, rule.cubic, gate));
    up += rule.up_offset;
  }
  float activated = __fdiv_rn(gate, 1.0f + Exp(exponent));
  if (rule.output_limit > 0) {
    activated = rule.output_limit < activated ? rule.output_limit : activated;
    up = -rule.output_limit > up ? -rule.output_limit : up;
    up = rule.output_limit < up ? rule.output_limit : up;
  }
  return activated * up;
}

PENSTOCK_DEVICE float FromBf16Bits(uint32_t bits) { return __uint_as_float(bits << 16); }

// Rounds to nearest, ties to even; NaN stays NaN, as in tensor/dtype.h.
PENSTOCK_DEVICE uint32_t ToBf16Bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

// Converts an f16 to a float. Exact.
PENSTOCK_DEVICE float FromF16Bits(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude >= 0x400u) return __uint_as_float(sign | ((magnitude << 13) + 0x38000000u));
  const float tiny = static_cast<float>(magnitude) * 0x1p-24f;
  return __uint_as_float(sign | __float_as_uint(tiny));
}

PENSTOCK_DEVICE bool IsFinite(float x) { return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u; }

// How values become codes: x = code * scale, code = round(x * inverse); all codes are 0 unless is_used
// (cpu/prepare-inl.h).
struct CodeScale {
  float scale;
  float inverse;
  bool is_used;
};

// `largest`: the largest magnitude.
PENSTOCK_DEVICE CodeScale CodeScaleOf(float largest, bool all_finite) {
  if (!all_finite) return {__uint_as_float(0x7FC00000u), 0, false};
  if (largest < 0x1p-100f) return {0, 0, false};
  return {__fdiv_rn(largest, 127.0f), __fdiv_rn(127.0f, largest), true};
}

PENSTOCK_DEVICE int32_t CodeOf(float x, const CodeScale& scale) {
  if (!scale.is_used) return 0;
  const float shifted = x * scale.inverse + 12582912.0f;  // 3 * 2^22: the low bits are the rounded integer
  return static_cast<int32_t>(static_cast<int8_t>(__float_as_uint(shifted) & 0xFFu));
}

// The places of a group in a prepared row: its codes, what they have in common, and the sums of each 16 of them.
struct Int8GroupPlaces {
  std::byte* codes;
  kernels::Int8RowGroup* group;
  int16_t* sums;
};

// Stores a group of 128 inputs of a row; one warp does it. Lane i has inputs 4 i to 4 i + 3, zeros beyond the row's
// end.
PENSTOCK_DEVICE void StoreInt8Group(const float (&x)[4], const Int8GroupPlaces& places) {
  float largest = 0;
  int32_t num_infinite = 0;
  for (int i = 0; i < 4; ++i) {
    const float magnitude = __uint_as_float(__float_as_uint(x[i]) & 0x7FFFFFFFu);
    largest = Larger(magnitude, largest);
    num_infinite += IsFinite(x[i]) ? 0 : 1;
  }
  const CodeScale scale = CodeScaleOf(MaxOfWarp(largest), SumOfWarp(num_infinite) == 0);
  uint32_t word = 0;
  int32_t sum = 0;
  for (int i = 0; i < 4; ++i) {
    const int32_t code = CodeOf(x[i], scale);
    word |= (static_cast<uint32_t>(code) & 0xFFu) << 8 * i;
    sum += code;
  }
  reinterpret_cast<uint32_t*>(places.codes)[Lane()] = word;
  // Sums over four lanes, then over each half of the warp, which holds one half of the group.
  for (int distance = 1; distance <= 2; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  if (Lane() % 4 == 0) places.sums[Lane() / 4] = static_cast<int16_t>(sum);
  for (int distance = 4; distance <= 8; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  const int32_t other = __shfl_xor_sync(kAllLanes, sum, 16);
  if (Lane() == 0) {
    *places.group = {scale.scale, -128 * (sum + other), {static_cast<float>(sum), static_cast<float>(other)}};
  }
}

// Stores inputs [first, first + 128) of a row of `dim` in `format`. Lane i has inputs 4 i to 4 i + 3, zeros beyond the
// row's end. `row`: the prepared row. `first` is a multiple of 128.
PENSTOCK_DEVICE void StorePrepared(kernels::RowFormat format, const float (&x)[4], int64_t first, int64_t dim,
                                   std::byte* row) {
  const int64_t k = first + 4 * Lane();
  if (format == kernels::RowFormat::kInt8) {
    const int64_t num_groups = (dim + kInt8Group - 1) / kInt8Group;
    auto* const groups = reinterpret_cast<kernels::Int8RowGroup*>(row + num_groups * kInt8Group);
    auto* const sums = reinterpret_cast<int16_t*>(groups + num_groups);
    StoreInt8Group(x, {row + first, groups + first / kInt8Group, sums + first / 16});
  } else if (format == kernels::RowFormat::kBF16) {
    if (k >= (dim + 15) / 16 * 16) return;
    uint32_t* const pairs = reinterpret_cast<uint32_t*>(row + 2 * k);
    pairs[0] = ToBf16Bits(x[0]) | ToBf16Bits(x[1]) << 16;
    pairs[1] = ToBf16Bits(x[2]) | ToBf16Bits(x[3]) << 16;
  } else {
    for (int i = 0; i < 4; ++i) {
      if (k + i < dim) reinterpret_cast<float*>(row)[k + i] = x[i];
    }
  }
}

}  // namespace penstock::cuda
