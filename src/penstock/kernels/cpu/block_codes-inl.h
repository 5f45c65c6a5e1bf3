// Reads panels of block formats (tensor/block_panels.h): codes, scales and minima of 16 outputs at a time.
//
// A quad is 4 neighbouring inputs. Quads are counted in groups of 32 inputs: quad 4 * half + i, half 0 or 1. `block` is
// the panel's block, moved by 64 bytes for the outputs 16 to 31, where codes are read; `vec` selects the outputs where
// scales are read.
#pragma once

#include "penstock/kernels/cpu/gemm-inl.h"
#include "penstock/tensor/block_formats.h"

namespace penstock::kernels {
namespace {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));

inline Bytes16 LoadBytes16(const std::byte* source) {
  Bytes16 bytes;
  __builtin_memcpy(&bytes, source, 16);
  return bytes;
}
template <class V>
[[gnu::always_inline]] inline V UnsignedFloats(Bytes16 bytes) {
  return V::LoadCodes(reinterpret_cast<const std::byte*>(&bytes));
}
template <class V>
[[gnu::always_inline]] inline V SignedFloats(Bytes16 bytes) {
  return V::LoadSignedCodes(reinterpret_cast<const std::byte*>(&bytes));
}
// Returns the f16 of 16 outputs.
template <class V>
[[gnu::always_inline]] inline V Halves(const std::byte* source, int vec) {
  return V::template LoadAs<Dtype::kF16>(source + 32 * vec);
}

// Selects 4 of 8 bits: the low ones for half 0, the high ones for half 1.
template <class I>
[[gnu::always_inline]] inline typename I::Codes HalfOf(typename I::Codes codes, int half) {
  return I::And(I::ShiftRight(codes, 4 * half), 15);
}
// Moves bit `from` of each byte to bit kTo and clears the others. REQUIRES: 0 <= from <= 7.
template <class I, int kTo>
[[gnu::always_inline]] inline typename I::Codes BitAt(typename I::Codes codes, int from) {
  return I::And(I::ShiftLeft(I::ShiftRight(codes, from), kTo), 1 << kTo);
}

// One type for each format:
//   kGroup   the inputs that share a scale: 32 or 16
//   kOffset  a code counts as code - kOffset; 128: codes are multiplied as signed bytes
//   kHasMin  every weight is code * scale + min
//   Quad(block, group, half, i)      the codes of a quad; `group` counts 32 inputs within the block
//   Scale(block, vec, group, half)   the scales of 16 outputs
//   Min(block, vec, group, half)     their minima
template <class I, WeightFormat kFormat>
struct BlockCodes;

template <class I>
struct BlockCodes<I, WeightFormat::kQ8_0> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 128;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int half, int i) {
    return I::Xor(I::Load(block + 64 + kQuadBytes * (4 * half + i)), 128);
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int, int) { return Halves<V>(block, vec); }
};

// The codes of kQ4_0 behind kBegin bytes.
template <class I, int64_t kBegin>
[[gnu::always_inline]] inline typename I::Codes SmallQuad(const std::byte* block, int half, int i) {
  return HalfOf<I>(I::Load(block + kBegin + kQuadBytes * i), half);
}

template <class I>
struct BlockCodes<I, WeightFormat::kQ4_0> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 8;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int half, int i) {
    return SmallQuad<I, 64>(block, half, i);
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int, int) { return Halves<V>(block, vec); }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ4_1> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int half, int i) {
    return SmallQuad<I, 128>(block, half, i);
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int, int) { return Halves<V>(block, vec); }
  [[gnu::always_inline]] static V Min(const std::byte* block, int vec, int, int) { return Halves<V>(block + 64, vec); }
};

// The codes of kQ5_0 whose fifth bits begin behind kBegin bytes.
template <class I, int64_t kBegin>
[[gnu::always_inline]] inline typename I::Codes FiveBitQuad(const std::byte* block, int half, int i) {
  return I::Or(SmallQuad<I, kBegin + kQuadBytes>(block, half, i), BitAt<I, 4>(I::Load(block + kBegin), 4 * half + i));
}

template <class I>
struct BlockCodes<I, WeightFormat::kQ5_0> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 16;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int half, int i) {
    return FiveBitQuad<I, 64>(block, half, i);
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int, int) { return Halves<V>(block, vec); }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ5_1> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int half, int i) {
    return FiveBitQuad<I, 128>(block, half, i);
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int, int) { return Halves<V>(block, vec); }
  [[gnu::always_inline]] static V Min(const std::byte* block, int vec, int, int) { return Halves<V>(block + 64, vec); }
};

// The scales and minima of kQ4_K and kQ5_K, in the order of ReadKGroups.
template <class V>
struct KScales {
  [[gnu::always_inline]] static Bytes16 Packed(const std::byte* block, int vec, int i) {
    return LoadBytes16(block + 128 + kPanelCols * i + 16 * vec);
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int group) {
    const Bytes16 codes = group < 4 ? Packed(block, vec, group) & 63
                                    : (Packed(block, vec, group + 4) & 15) | Packed(block, vec, group - 4) >> 6 << 4;
    return Mul(Halves<V>(block, vec), UnsignedFloats<V>(codes));
  }
  [[gnu::always_inline]] static V Min(const std::byte* block, int vec, int group) {
    const Bytes16 codes = group < 4 ? Packed(block, vec, group + 4) & 63
                                    : Packed(block, vec, group + 4) >> 4 | Packed(block, vec, group) >> 6 << 4;
    return Sub(V::Zero(), Mul(Halves<V>(block + 64, vec), UnsignedFloats<V>(codes)));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ4_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int group, int half, int i) {
    return HalfOf<I>(I::Load(block + 512 + kQuadBytes * (group / 2 * 8 + 4 * half + i)), group % 2);
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int group, int) {
    return KScales<V>::Scale(block, vec, group);
  }
  [[gnu::always_inline]] static V Min(const std::byte* block, int vec, int group, int) {
    return KScales<V>::Min(block, vec, group);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ5_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int group, int half, int i) {
    const int64_t quad = 4 * half + i;
    return I::Or(HalfOf<I>(I::Load(block + 512 + 8 * kQuadBytes + kQuadBytes * (group / 2 * 8 + quad)), group % 2),
                 BitAt<I, 4>(I::Load(block + 512 + kQuadBytes * quad), group));
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int group, int) {
    return KScales<V>::Scale(block, vec, group);
  }
  [[gnu::always_inline]] static V Min(const std::byte* block, int vec, int group, int) {
    return KScales<V>::Min(block, vec, group);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ6_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 32;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kHigh = 32 * kQuadBytes, kScales = 48 * kQuadBytes, kScale = kScales + 16 * kPanelCols;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int group, int half, int i) {
    const int64_t quad = 4 * half + i, of_four = group % 4;
    const auto low = I::Load(block + kQuadBytes * (group / 4 * 16 + of_four % 2 * 8 + quad));
    const auto high = I::Load(block + kHigh + kQuadBytes * (group / 4 * 8 + quad));
    const auto bits = I::And(I::ShiftRight(high, static_cast<int>(2 * of_four)), 3);
    return I::Or(HalfOf<I>(low, static_cast<int>(of_four / 2)), I::ShiftLeft(bits, 4));
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int group, int half) {
    return Mul(Halves<V>(block + kScale, vec),
               V::LoadSignedCodes(block + kScales + kPanelCols * (2 * group + half) + 16 * vec));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ2_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 0;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kCodes = 16 * kPanelCols, kScale = kCodes + 16 * kQuadBytes;

  [[gnu::always_inline]] static Bytes16 Packed(const std::byte* block, int vec, int group, int half) {
    return LoadBytes16(block + kPanelCols * (2 * group + half) + 16 * vec);
  }
  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int group, int half, int i) {
    const auto four = I::Load(block + kCodes + kQuadBytes * (group / 4 * 8 + 4 * half + i));
    return I::And(I::ShiftRight(four, group % 4 * 2), 3);
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int group, int half) {
    return Mul(Halves<V>(block + kScale, vec), UnsignedFloats<V>(Packed(block, vec, group, half) & 15));
  }
  [[gnu::always_inline]] static V Min(const std::byte* block, int vec, int group, int half) {
    const V codes = UnsignedFloats<V>(Packed(block, vec, group, half) >> 4);
    return Sub(V::Zero(), Mul(Halves<V>(block + kScale + 64, vec), codes));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ3_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 4;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kLow = 8 * kQuadBytes, kScales = 24 * kQuadBytes, kScale = kScales + 12 * kPanelCols;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int group, int half, int i) {
    const int64_t quad = 4 * half + i;
    const auto four = I::Load(block + kLow + kQuadBytes * (group / 4 * 8 + quad));
    return I::Or(I::And(I::ShiftRight(four, group % 4 * 2), 3), BitAt<I, 2>(I::Load(block + kQuadBytes * quad), group));
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int group, int half) {
    const int scale = 2 * group + half;
    const auto packed = [&](int i) { return LoadBytes16(block + kScales + kPanelCols * i + 16 * vec); };
    const Bytes16 low = packed(scale % 8) >> static_cast<uint8_t>(scale / 8 * 4) & 15;
    const Bytes16 high = packed(8 + scale % 4) >> static_cast<uint8_t>(scale / 4 * 2) & 3;
    return Mul(Halves<V>(block + kScale, vec), SignedFloats<V>((low | high << 4) - 32));
  }
};

// The values that four-bit codes name, with kOffset added.
struct NamedValues {
  uint8_t bytes[16];

  constexpr NamedValues(const int8_t (&values)[16], int offset) : bytes{} {
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(values[i] + offset);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kIq4_Nl> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 128;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kIq4Values, kOffset};

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, 64>(block, half, i));
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int, int) { return Halves<V>(block, vec); }
};

template <class I>
struct BlockCodes<I, WeightFormat::kIq4_Xs> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 128;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kIq4Values, kOffset};

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int group, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, 256>(block + 4 * kQuadBytes * group, half, i));
  }
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int group, int) {
    const auto packed = [&](int i) { return LoadBytes16(block + 64 + kPanelCols * i + 16 * vec); };
    const Bytes16 high = packed(group / 4) >> static_cast<uint8_t>(group % 4 * 2) & 3;
    const Bytes16 low = packed(2 + group / 2) >> static_cast<uint8_t>(group % 2 * 4) & 15;
    return Mul(Halves<V>(block, vec), SignedFloats<V>((low | high << 4) - 32));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kMxfp4> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 16;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kE2M1Halves, kOffset};

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, kPanelCols>(block, half, i));
  }
  // Computes HalfPower.
  [[gnu::always_inline]] static V Scale(const std::byte* block, int vec, int, int) {
    typedef uint32_t Words16 __attribute__((vector_size(64)));
    const Words16 powers = __builtin_convertvector(LoadBytes16(block + 16 * vec), Words16);
    const Words16 bits = powers < 2 ? 0x00200000u << powers : (powers - 1) << 23;
    alignas(64) float scales[16];
    __builtin_memcpy(scales, &bits, 64);
    return V::Load(scales);
  }
};

}  // namespace
}  // namespace penstock::kernels
