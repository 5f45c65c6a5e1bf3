// Chunks of weights as floats: 256 inputs of 32 outputs, decoded from a panel of codes or blocks.
//
// A chunk is a panel of floats with the bits of UnpackColumn, or one of bf16, to which they are rounded.
#pragma once

#include "penstock/kernels/cpu/gemm/block_codes-inl.h"
#include "penstock/kernels/cpu/gemm/codebook_codes-inl.h"
#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/gemm/gemm_quantised-inl.h"
#include "penstock/kernels/cpu/tables.h"
#include "penstock/tensor/block_panels.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kChunkInputs = 256;

typedef uint16_t Halves8 __attribute__((vector_size(16)));

// One input of a quad of codes, 16 outputs.
template <class V, int kByte>
[[gnu::always_inline]] inline V CodesOfInput(const Words16& quad, int offset) {
  const Ints16 codes = (Ints16)(quad >> 8 * kByte & 255) - offset;
  return ToVec<V>(__builtin_convertvector(codes, Floats16));
}

// Rounds the weights of two neighbouring inputs, 16 outputs of each, to bf16 and stores them in pairs.
template <class V>
[[gnu::always_inline]] inline void StorePairs(V even, V odd, std::byte* target) {
  BF16 rounded[2][16];
  even.StoreBf16(rounded[0]);
  odd.StoreBf16(rounded[1]);
  for (int64_t i = 0; i < 2; ++i) {
    Halves8 a, b;
    __builtin_memcpy(&a, rounded[0] + 8 * i, 16);
    __builtin_memcpy(&b, rounded[1] + 8 * i, 16);
    const Halves8 low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    const Halves8 high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    __builtin_memcpy(target + 32 * i, &low, 16);
    __builtin_memcpy(target + 32 * i + 16, &high, 16);
  }
}

// Stores the weights of 4 inputs, from `input` on, 16 outputs of each, into a panel of floats or bf16.
template <class V>
[[gnu::always_inline]] inline void StoreQuad(V a, V b, V c, V d, int64_t input, int64_t vec, bool as_bf16,
                                             std::byte* target) {
  if (as_bf16) {
    StorePairs(a, b, target + 2 * input * kPanelCols + 64 * vec);
    StorePairs(c, d, target + 2 * (input + 2) * kPanelCols + 64 * vec);
    return;
  }
  float* floats = reinterpret_cast<float*>(target) + input * kPanelCols + 16 * vec;
  a.Store(floats);
  b.Store(floats + kPanelCols);
  c.Store(floats + 2 * kPanelCols);
  d.Store(floats + 3 * kPanelCols);
}

// The partner of a last input is 0 times 0.
inline void ClearPartner(int64_t count, bool as_bf16, std::byte* target) {
  if (count % 2 == 0) return;
  for (int64_t col = 0; col < kPanelCols; ++col) {
    if (as_bf16) {
      reinterpret_cast<BF16*>(target)[count / 2 * 2 * kPanelCols + 2 * col + 1] = {0};
    } else {
      reinterpret_cast<float*>(target)[count * kPanelCols + col] = 0;
    }
  }
}

// The weights of one quad of 16 outputs as floats, an input at a time.
template <class I, WeightFormat kFormat>
struct QuadWeights {
  using V = typename I::Vec;
  using Codes = BlockCodes<I, kFormat>;
  Words16 words;
  V scale, min;

  // `group`: of 32 inputs within the block. `unpacked`: its quads, if they are unpacked together.
  [[gnu::always_inline]] QuadWeights(const std::byte* block, const typename Codes::Scales& scales, int vec, int group,
                                     int half, int i, const std::byte* unpacked)
      : scale(scales.Scale(vec, group / 4, group % 4, half)) {
    if constexpr (IsCodebookOrTernary(kFormat)) {
      __builtin_memcpy(&words, unpacked + kQuadBytes * (4 * half + i) + 64 * vec, 64);
    } else {
      const typename I::Codes codes = QuadOf<I, Codes>(block + 64 * vec, group / 4, group % 4, half, i);
      __builtin_memcpy(&words, &codes, 64);
    }
    if constexpr (Codes::kHasMin) min = scales.Min(vec, group / 4, group % 4, half);
  }
  template <int kByte>
  [[gnu::always_inline]] V Input() const {
    const V product = Mul(scale, CodesOfInput<V, kByte>(words, Codes::kOffset));
    if constexpr (Codes::kHasMin) return Add(product, min);
    return product;
  }
};
template <class I>
struct QuadWeights<I, WeightFormat::kFp8> {
  using V = typename I::Vec;
  Words16 words;
  V scale;

  [[gnu::always_inline]] QuadWeights(const std::byte* block, const std::byte*, int vec, int group, int half, int i,
                                     const std::byte*)
      : scale(V::template LoadAs<Dtype::kF32>(block + 64 * vec)) {
    __builtin_memcpy(&words, block + kQuadBytes * (1 + 8 * group + 4 * half + i) + 64 * vec, 64);
  }
  template <int kByte>
  [[gnu::always_inline]] V Input() const {
    using Words = typename Lanes<V>::Words;
    alignas(64) float values[16];
    Unrolled<static_cast<int>(64 / sizeof(Words))>([&](auto part) __attribute__((always_inline)) {
      Words codes, bits;
      __builtin_memcpy(&codes, reinterpret_cast<const std::byte*>(&words) + part * sizeof(Words), sizeof(Words));
      SetBitsOfFp8<Lanes<V>>(codes >> 8 * kByte & 255, bits);
      __builtin_memcpy(values + part * (sizeof(Words) / 4), &bits, sizeof(Words));
    });
    return Mul(V::Load(values), scale);
  }
};

// The type of what QuadWeights knows of a block's scales: nothing for kFp8.
template <class I, WeightFormat kFormat>
struct ScalesOfBlock {
  using Type = typename BlockCodes<I, kFormat>::Scales;
};
template <class I>
struct ScalesOfBlock<I, WeightFormat::kFp8> {
  using Type = const std::byte*;
};
template <class I, WeightFormat kFormat>
using ScalesOf = typename ScalesOfBlock<I, kFormat>::Type;

// Makes whole groups of a kF32 or kBF16 panel from inputs [first, first + count) of a panel of blocks. `first` is a
// multiple of kChunkInputs, `count` at most kChunkInputs.
template <class I, WeightFormat kFormat>
void MakeChunk(const std::byte* panel, int64_t first, int64_t count, bool as_bf16, std::byte* target) {
  using V = typename I::Vec;
  constexpr int64_t kBytes = BlockBytes(kFormat) * kPanelCols, kElements = BlockElements(kFormat);
  panel += first / kElements * kBytes;
  ScalesOf<I, kFormat> scales{};
  const int64_t chunk_bytes = kChunkInputs / kElements * kBytes;
  for (int64_t k = 0; k < count; k += kGroupInputs) {
    const std::byte* block = panel + k / kElements * kBytes;
    const int group = static_cast<int>(k % kElements / kGroupInputs);
    if (group == 0) scales = ScalesOf<I, kFormat>(block);
    // Prefetches this group's share of the next chunk; a prefetch beyond the last chunk does no harm.
    for (int64_t i = 0; i < chunk_bytes * kGroupInputs / kChunkInputs; i += 64) {
      __builtin_prefetch(panel + chunk_bytes + k * chunk_bytes / kChunkInputs + i);
    }
    alignas(64) [[maybe_unused]] std::byte unpacked[IsCodebookOrTernary(kFormat) ? 8 * kQuadBytes : 1];
    if constexpr (IsCodebookOrTernary(kFormat)) StoreGroup<I, BlockCodes<I, kFormat>, false>(block, group, unpacked);
    for (int quad = 0; quad < 8; ++quad) {
      for (int vec = 0; vec < kVecsPerPanel; ++vec) {
        const QuadWeights<I, kFormat> weights(block, scales, vec, group, quad / 4, quad % 4, unpacked);
        const V a = weights.template Input<0>(), b = weights.template Input<1>(), c = weights.template Input<2>(),
                d = weights.template Input<3>();
        StoreQuad(a, b, c, d, k + 4 * quad, vec, as_bf16, target);
      }
    }
  }
  ClearPartner(count, as_bf16, target);
}

// MakeChunk for kInt8.
template <class I>
void MakeInt8Chunk(const std::byte* panel, int64_t first, int64_t count, bool as_bf16, std::byte* target) {
  using V = typename I::Vec;
  const std::byte* block = panel + first / kInt8Group * kInt8BlockBytes;
  for (int64_t begin = 0; begin < count; begin += kInt8Group) {
    for (int vec = 0; vec < kVecsPerPanel; ++vec) {
      const V scale = V::template LoadAs<Dtype::kBF16>(block + kInt8Group * kPanelCols + 32 * vec);
      for (int64_t k = 0; k < kInt8Group; k += 4) {
        Words16 quad;
        __builtin_memcpy(&quad, block + k * kPanelCols + 64 * vec, 64);
        StoreQuad(Mul(CodesOfInput<V, 0>(quad, 128), scale), Mul(CodesOfInput<V, 1>(quad, 128), scale),
                  Mul(CodesOfInput<V, 2>(quad, 128), scale), Mul(CodesOfInput<V, 3>(quad, 128), scale), begin + k, vec,
                  as_bf16, target);
      }
    }
    block += kInt8BlockBytes;
  }
  ClearPartner(count, as_bf16, target);
}

// MakeChunk for HQQ, whose blocks have as many inputs as a chunk.
template <class I, WeightFormat kFormat>
void MakeHqqChunk(const std::byte* panel, int64_t first, int64_t count, bool as_bf16, std::byte* target) {
  using V = typename I::Vec;
  static_assert(kHqqBlock == kChunkInputs);
  constexpr int64_t kGroupBytes = HqqGroupBytes(kFormat);
  const std::byte* header = panel + first / kHqqBlock * (kHqqHeaderBytes + kHqqBlock / 64 * kGroupBytes);
  const auto meta = [header](int64_t codes_at, int64_t step_at) __attribute__((always_inline)) {
    return Fma(V::LoadCodes(header + codes_at), V::Set(FloatAt(header + step_at)),
               V::Set(FloatAt(header + step_at + 4)));
  };
  for (int64_t begin = 0; begin < count; begin += 64) {
    const std::byte* group = header + kHqqHeaderBytes + begin / 64 * kGroupBytes;
    for (int vec = 0; vec < kVecsPerPanel; ++vec) {
      const int64_t place = begin / 64 * kPanelCols + 16 * vec;
      const V scale = meta(64 + place, 0);
      const V zero = kFormat == WeightFormat::kTernary ? V::Set(1) : meta(192 + place, 8);
      const auto weight = [&](const V& code) __attribute__((always_inline)) { return Mul(Sub(code, zero), scale); };
      HqqCodes<I, kFormat, 1>::ForEachQuad(
          header + 64 * vec, static_cast<int>(begin / 64), group + 64 * vec, [] {},
          [&](const auto& codes, int64_t offset) __attribute__((always_inline)) {
            Words16 quad;
            __builtin_memcpy(&quad, &codes[0], 64);
            StoreQuad(weight(CodesOfInput<V, 0>(quad, 0)), weight(CodesOfInput<V, 1>(quad, 0)),
                      weight(CodesOfInput<V, 2>(quad, 0)), weight(CodesOfInput<V, 3>(quad, 0)), begin + offset, vec,
                      as_bf16, target);
          });
    }
  }
  ClearPartner(count, as_bf16, target);
}

template <class I>
MakeChunkFunction MakeChunkOf(WeightFormat format) {
  switch (format) {
#define PENSTOCK_BLOCK_FORMAT(format, ...) \
  case WeightFormat::k##format:            \
    return MakeChunk<I, WeightFormat::k##format>;
#include "penstock/tensor/weight_formats.def"
    case WeightFormat::kInt8: return MakeInt8Chunk<I>;
    case WeightFormat::kHqq4: return MakeHqqChunk<I, WeightFormat::kHqq4>;
    case WeightFormat::kHqq3: return MakeHqqChunk<I, WeightFormat::kHqq3>;
    case WeightFormat::kHqq2: return MakeHqqChunk<I, WeightFormat::kHqq2>;
    case WeightFormat::kTernary: return MakeHqqChunk<I, WeightFormat::kTernary>;
    default: return nullptr;
  }
}

}  // namespace
}  // namespace penstock::kernels
