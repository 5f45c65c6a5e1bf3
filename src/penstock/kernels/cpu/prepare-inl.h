// Prepares rows of activations for the GEMMs.
#pragma once

#include "penstock/kernels/cpu/rows-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// 3 * 2^22: adding it leaves an integer below 2^22 in the low bits, rounded to nearest, ties to even.
constexpr float kRoundShift = 12582912.0f;
constexpr float kMinMagnitude = 0x1p-100f;

template <class V>
inline V LoadOfGroup(const float* source, int64_t i, int64_t count) {
  if (i + 16 <= count) return V::Load(source + i);
  return i < count ? V::LoadPartial(source + i, count - i, 0) : V::Zero();
}

// How values become codes: x = code * scale, code = round(x * inverse); all codes are 0 unless is_used.
struct CodeScale {
  float scale;
  float inverse;
  bool is_used;
};

template <class V>
CodeScale CodeScaleOf(const float* source, int64_t count) {
  V largest = V::Zero(), poison = V::Zero();
  for (int64_t i = 0; i < count; i += 16) {
    const V x = LoadOfGroup<V>(source, i, count);
    largest = Max(largest, x.Abs());
    poison = Fma(x, V::Zero(), poison);  // 0, or NaN if an x is not finite
  }
  const float magnitude = largest.ReduceMax();
  if (poison.ReduceAdd() != 0) return {__builtin_nanf(""), 0, false};
  if (magnitude < kMinMagnitude) return {0, 0, false};
  return {magnitude / 127, 127 / magnitude, true};
}

// Encodes `count` <= 128 values; the codes beyond them are 0. `sums`: of each 16 codes.
template <class V>
void PrepareInt8Group(const float* source, int64_t count, std::byte* codes, Int8RowGroup* group, int16_t (&sums)[8]) {
  const CodeScale scale = CodeScaleOf<V>(source, count);
  const V inverse = V::Set(scale.inverse);
  const V shift = V::Set(kRoundShift);
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
    for (int64_t i = 64 * half; i < 64 * half + 64; i += 16) {
      const V x = scale.is_used ? LoadOfGroup<V>(source, i, count) : V::Zero();
      const V shifted = Add(Mul(x, inverse), shift);
      const float own = Sub(shifted, shift).ReduceAdd();
      sums[i / 16] = static_cast<int16_t>(own);
      sum += own;
      shifted.StoreLowBytes(codes + i);
    }
    group->code_sums[half] = sum;
  }
  group->scale = scale.scale;
  group->code_offset = -128 * static_cast<int32_t>(group->code_sums[0] + group->code_sums[1]);
}

template <class V>
void PrepareInt8Row(const PrepareRowsArgs& args, const float* source, std::byte* target) {
  const int64_t num_groups = (args.dim + kInt8Group - 1) / kInt8Group;
  std::byte* groups = target + num_groups * kInt8Group;
  std::byte* all_sums = groups + num_groups * static_cast<int64_t>(sizeof(Int8RowGroup));
  for (int64_t i = 0; i < args.count; i += kInt8Group) {
    const int64_t k = args.first + i;
    Int8RowGroup group;
    int16_t sums[8];
    PrepareInt8Group<V>(source + i, args.count - i < kInt8Group ? args.count - i : kInt8Group, target + k, &group,
                        sums);
    __builtin_memcpy(all_sums + k / kInt8Group * static_cast<int64_t>(sizeof(sums)), sums, sizeof(sums));
    __builtin_memcpy(groups + k / kInt8Group * static_cast<int64_t>(sizeof(group)), &group, sizeof(group));
  }
}

template <class V, bool kMultipliesPairs>
void PrepareBf16Row(const PrepareRowsArgs& args, const float* source, std::byte* target) {
  if constexpr (kMultipliesPairs) {
    ToBf16<V>(source, args.count, reinterpret_cast<BF16*>(target) + args.first);
  } else {
    BF16 piece[16];
    float* rounded = reinterpret_cast<float*>(target) + args.first;
    ForEachPiece(args.count, [&](int64_t i, int64_t count) {
      ToBf16<V>(source + i, count, piece);
      WidenTo<V, Dtype::kBF16>(reinterpret_cast<const std::byte*>(piece), count, rounded + i);
    });
  }
}

template <class V, bool kMultipliesPairs>
void PrepareRows(const PrepareRowsArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* source = args.source + row * args.source_stride;
    std::byte* target = args.target + row * args.target_stride_bytes;
    switch (args.format) {
      case RowFormat::kF32:
        __builtin_memcpy(target + 4 * args.first, source, static_cast<size_t>(args.count) * 4);
        break;
      case RowFormat::kBF16: PrepareBf16Row<V, kMultipliesPairs>(args, source, target); break;
      case RowFormat::kInt8: PrepareInt8Row<V>(args, source, target); break;
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
