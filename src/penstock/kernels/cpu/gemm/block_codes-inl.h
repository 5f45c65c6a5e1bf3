// Reads panels of block formats (tensor/block_panels.h): codes, scales and minima of 16 outputs at a time.
//
// A quad is 4 neighbouring inputs. Quads are counted in groups of 32 inputs: quad 4 * half + i, half 0 or 1. The 8
// groups of a block of 256 are counted in halves of the block: group 4 * second + group, second 0 or 1. `block` is
// the panel's block, moved by 64 bytes for the outputs 16 to 31.
#pragma once

#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/tensor/block_formats.h"

namespace penstock::kernels {
namespace {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint8_t Bytes32 __attribute__((vector_size(32)));
typedef uint32_t Words16 __attribute__((vector_size(64)));
typedef int32_t Ints16 __attribute__((vector_size(64)));
typedef float Floats16 __attribute__((vector_size(64)));

inline Bytes16 LoadBytes16(const std::byte* source) {
  Bytes16 bytes;
  __builtin_memcpy(&bytes, source, 16);
  return bytes;
}
template <class V>
[[gnu::always_inline]] inline V UnsignedFloats(Bytes16 bytes) {
  return V::LoadCodes(reinterpret_cast<const std::byte*>(&bytes));
}
// Returns the f16 of 16 outputs.
template <class V>
[[gnu::always_inline]] inline V Halves(const std::byte* source, int vec) {
  return V::template LoadAs<Dtype::kF16>(source + 32 * vec);
}

// Converts E4M3 codes as ToFloat(F8E4M3) does. Subnormals are multiples of 2^-9.
[[gnu::always_inline]] inline void Fp8ToFloats(const Words16& codes, float* target) {
  const Words16 magnitude = codes & 0x7F, sign = (codes & 0x80) << 24;
  const Words16 normal = (magnitude << 20) + (120u << 23);
  const Floats16 small = __builtin_convertvector((Ints16)magnitude, Floats16) * 0x1p-9f;
  const Words16 finite = magnitude < 8 ? (Words16)small : normal;
  const Words16 bits = (magnitude == 0x7F ? Words16{} + 0x7FC00000u : finite) | sign;
  __builtin_memcpy(target, &bits, 64);
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
//   Quad(block, second, group, half, i)   the codes of a quad
//   Scales(block)                         what its scales have in common
//     .Scale(vec, second, group, half)      the scales of 16 outputs; `vec` (0 or 1) selects them
//     .Min(vec, second, group, half)        their minima
template <class I, WeightFormat kFormat>
struct BlockCodes;

// A block of 32 weights with a scale, and a minimum behind it.
template <class V>
struct PlainScales {
  const std::byte* block = nullptr;

  PlainScales() = default;
  explicit PlainScales(const std::byte* start) : block(start) {}
  [[gnu::always_inline]] V Scale(int vec, int, int, int) const { return Halves<V>(block, vec); }
  [[gnu::always_inline]] V Min(int vec, int, int, int) const { return Halves<V>(block + 64, vec); }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ8_0> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 128;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return I::Xor(I::Load(block + 64 + kQuadBytes * (4 * half + i)), 128);
  }
};

// The codes of kQ4_0 behind kBegin bytes.
template <class I, int64_t kBegin>
[[gnu::always_inline]] inline typename I::Codes SmallQuad(const std::byte* block, int half, int i) {
  return HalfOf<I>(I::Load(block + kBegin + kQuadBytes * i), half);
}

template <class I>
struct BlockCodes<I, WeightFormat::kQ4_0> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 8;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return SmallQuad<I, 64>(block, half, i);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ4_1> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return SmallQuad<I, 128>(block, half, i);
  }
};

// The codes of kQ5_0 whose fifth bits begin behind kBegin bytes.
template <class I, int64_t kBegin>
[[gnu::always_inline]] inline typename I::Codes FiveBitQuad(const std::byte* block, int half, int i) {
  return I::Or(SmallQuad<I, kBegin + kQuadBytes>(block, half, i), BitAt<I, 4>(I::Load(block + kBegin), 4 * half + i));
}

template <class I>
struct BlockCodes<I, WeightFormat::kQ5_0> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 16;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return FiveBitQuad<I, 64>(block, half, i);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ5_1> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return FiveBitQuad<I, 128>(block, half, i);
  }
};

// The scales and minima of kQ4_K and kQ5_K, in the order of ReadKGroups.
template <class V>
struct KScales {
  V scale[kVecsPerPanel];
  V minus_min[kVecsPerPanel];
  alignas(32) uint8_t scale_codes[8][kPanelCols];
  alignas(32) uint8_t min_codes[8][kPanelCols];

  KScales() = default;
  [[gnu::always_inline]] explicit KScales(const std::byte* block) {
    for (int v = 0; v < kVecsPerPanel; ++v) {
      scale[v] = Halves<V>(block, v);
      minus_min[v] = Sub(V::Zero(), Halves<V>(block + 64, v));
    }
    for (int i = 0; i < 4; ++i) {
      Bytes32 low, middle, high;
      __builtin_memcpy(&low, block + 128 + kPanelCols * i, kPanelCols);
      __builtin_memcpy(&middle, block + 128 + kPanelCols * (i + 4), kPanelCols);
      __builtin_memcpy(&high, block + 128 + kPanelCols * (i + 8), kPanelCols);
      const Bytes32 codes[] = {low & 63, (high & 15) | low >> 6 << 4, middle & 63, high >> 4 | middle >> 6 << 4};
      __builtin_memcpy(scale_codes[i], &codes[0], kPanelCols);
      __builtin_memcpy(scale_codes[i + 4], &codes[1], kPanelCols);
      __builtin_memcpy(min_codes[i], &codes[2], kPanelCols);
      __builtin_memcpy(min_codes[i + 4], &codes[3], kPanelCols);
    }
  }
  [[gnu::always_inline]] V Scale(int vec, int second, int group, int) const {
    return Mul(scale[vec], CodesOf(scale_codes, vec, second, group));
  }
  [[gnu::always_inline]] V Min(int vec, int second, int group, int) const {
    return Mul(minus_min[vec], CodesOf(min_codes, vec, second, group));
  }

 private:
  [[gnu::always_inline]] static V CodesOf(const uint8_t (&codes)[8][kPanelCols], int vec, int second, int group) {
    return V::LoadCodes(reinterpret_cast<const std::byte*>(codes[4 * second + group] + 16 * vec));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ4_K> {
  using Scales = KScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int second, int group, int half, int i) {
    return HalfOf<I>(I::Load(block + 512 + kQuadBytes * (16 * second + group / 2 * 8 + 4 * half + i)), group % 2);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ5_K> {
  using Scales = KScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kFifths = 512, kLow = kFifths + 8 * kQuadBytes;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int second, int group, int half, int i) {
    const int64_t quad = 4 * half + i;
    return I::Or(HalfOf<I>(I::Load(block + kLow + kQuadBytes * (16 * second + group / 2 * 8 + quad)), group % 2),
                 BitAt<I, 4>(I::Load(block + kFifths + kQuadBytes * quad), 4 * second + group));
  }
};

// Scales of 16 inputs, or of 32: signed codes times one f16.
template <class V, int kNumScales>
struct SignedScales {
  V scale[kVecsPerPanel];
  alignas(32) uint8_t codes[kNumScales][kPanelCols];

  [[gnu::always_inline]] V At(int vec, int idx) const {
    return Mul(scale[vec], V::LoadSignedCodes(reinterpret_cast<const std::byte*>(codes[idx] + 16 * vec)));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ6_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 32;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kHigh = 32 * kQuadBytes, kScales = 48 * kQuadBytes, kScale = kScales + 16 * kPanelCols;

  struct Scales {
    const std::byte* codes = nullptr;
    V scale[kVecsPerPanel];

    Scales() = default;
    [[gnu::always_inline]] explicit Scales(const std::byte* block) : codes(block + kScales) {
      for (int v = 0; v < kVecsPerPanel; ++v) scale[v] = Halves<V>(block + kScale, v);
    }
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int half) const {
      return Mul(scale[vec], V::LoadSignedCodes(codes + kPanelCols * (8 * second + 2 * group + half) + 16 * vec));
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int second, int group, int half, int i) {
    const int64_t quad = 4 * half + i;
    const auto low = I::Load(block + kQuadBytes * (16 * second + group % 2 * 8 + quad));
    const auto high = I::Load(block + kHigh + kQuadBytes * (8 * second + quad));
    return I::Or(HalfOf<I>(low, group / 2), I::ShiftLeft(I::And(I::ShiftRight(high, 2 * group), 3), 4));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ2_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 0;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kCodes = 16 * kPanelCols, kScale = kCodes + 16 * kQuadBytes;

  struct Scales {
    const std::byte* block = nullptr;
    V scale[kVecsPerPanel];
    V minus_min[kVecsPerPanel];

    Scales() = default;
    [[gnu::always_inline]] explicit Scales(const std::byte* start) : block(start) {
      for (int v = 0; v < kVecsPerPanel; ++v) {
        scale[v] = Halves<V>(block + kScale, v);
        minus_min[v] = Sub(V::Zero(), Halves<V>(block + kScale + 64, v));
      }
    }
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int half) const {
      return Mul(scale[vec], UnsignedFloats<V>(Packed(vec, second, group, half) & 15));
    }
    [[gnu::always_inline]] V Min(int vec, int second, int group, int half) const {
      return Mul(minus_min[vec], UnsignedFloats<V>(Packed(vec, second, group, half) >> 4));
    }

   private:
    [[gnu::always_inline]] Bytes16 Packed(int vec, int second, int group, int half) const {
      return LoadBytes16(block + kPanelCols * (8 * second + 2 * group + half) + 16 * vec);
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int second, int group, int half, int i) {
    const auto four = I::Load(block + kCodes + kQuadBytes * (8 * second + 4 * half + i));
    return I::And(I::ShiftRight(four, 2 * group), 3);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ3_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 4;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kLow = 8 * kQuadBytes, kScales = 24 * kQuadBytes, kScale = kScales + 12 * kPanelCols;

  struct Scales : SignedScales<V, 16> {
    Scales() = default;
    [[gnu::always_inline]] explicit Scales(const std::byte* block) {
      for (int v = 0; v < kVecsPerPanel; ++v) this->scale[v] = Halves<V>(block + kScale, v);
      for (int i = 0; i < 16; ++i) {
        Bytes32 low, high;
        __builtin_memcpy(&low, block + kScales + kPanelCols * (i % 8), kPanelCols);
        __builtin_memcpy(&high, block + kScales + kPanelCols * (8 + i % 4), kPanelCols);
        low = low >> static_cast<uint8_t>(i / 8 * 4) & 15;
        high = high >> static_cast<uint8_t>(i / 4 * 2) & 3;
        const Bytes32 code = (low | high << 4) - 32;
        __builtin_memcpy(this->codes[i], &code, kPanelCols);
      }
    }
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int half) const {
      return this->At(vec, 8 * second + 2 * group + half);
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int second, int group, int half, int i) {
    const int64_t quad = 4 * half + i;
    const auto four = I::Load(block + kLow + kQuadBytes * (8 * second + quad));
    return I::Or(I::And(I::ShiftRight(four, 2 * group), 3),
                 BitAt<I, 2>(I::Load(block + kQuadBytes * quad), 4 * second + group));
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
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 128;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kIq4Values, kOffset};

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, 64>(block, half, i));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kIq4_Xs> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 128;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kIq4Values, kOffset};

  struct Scales : SignedScales<V, 8> {
    Scales() = default;
    [[gnu::always_inline]] explicit Scales(const std::byte* block) {
      for (int v = 0; v < kVecsPerPanel; ++v) this->scale[v] = Halves<V>(block, v);
      for (int i = 0; i < 8; ++i) {
        Bytes32 low, high;
        __builtin_memcpy(&high, block + 64 + kPanelCols * (i / 4), kPanelCols);
        __builtin_memcpy(&low, block + 64 + kPanelCols * (2 + i / 2), kPanelCols);
        low = low >> static_cast<uint8_t>(i % 2 * 4) & 15;
        high = high >> static_cast<uint8_t>(i % 4 * 2) & 3;
        const Bytes32 code = (low | high << 4) - 32;
        __builtin_memcpy(this->codes[i], &code, kPanelCols);
      }
    }
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int) const {
      return this->At(vec, 4 * second + group);
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int second, int group, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, 256>(block + 4 * kQuadBytes * (4 * second + group), half, i));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kMxfp4> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 16;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kE2M1Halves, kOffset};

  struct Scales {
    const std::byte* block = nullptr;

    Scales() = default;
    explicit Scales(const std::byte* start) : block(start) {}
    // Computes HalfPower.
    [[gnu::always_inline]] V Scale(int vec, int, int, int) const {
      const Words16 powers = __builtin_convertvector(LoadBytes16(block + 16 * vec), Words16);
      const Words16 subnormal = (Words16{} + 0x00200000u) << powers, normal = (powers - 1) << 23;
      const Words16 bits = powers < 2 ? subnormal : normal;
      alignas(64) float scales[16];
      __builtin_memcpy(scales, &bits, 64);
      return V::Load(scales);
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, kPanelCols>(block, half, i));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kU4> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kZeros = 2 * kPanelCols;

  struct Scales {
    const std::byte* block = nullptr;

    Scales() = default;
    explicit Scales(const std::byte* start) : block(start) {}
    [[gnu::always_inline]] V Scale(int vec, int, int, int) const { return Halves<V>(block, vec); }
    [[gnu::always_inline]] V Min(int vec, int, int, int) const {
      return Mul(Sub(V::Zero(), Halves<V>(block, vec)), V::LoadCodes(block + kZeros + 16 * vec));
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return SmallQuad<I, kZeros + kPanelCols>(block, half, i);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kNvfp4> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 16;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kE2M1Halves, kOffset};
  static constexpr int64_t kScales = 4 * kPanelCols, kCodes = kScales + 16 * kPanelCols;

  struct Scales {
    const std::byte* codes = nullptr;
    V scale[kVecsPerPanel];

    Scales() = default;
    [[gnu::always_inline]] explicit Scales(const std::byte* block) : codes(block + kScales) {
      for (int v = 0; v < kVecsPerPanel; ++v) {
        scale[v] = Mul(V::template LoadAs<Dtype::kF32>(block + 64 * v), V::Set(0.5f));
      }
    }
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int half) const {
      const std::byte* own = codes + kPanelCols * (8 * second + 2 * group + half) + 16 * vec;
      alignas(64) float values[16];
      Fp8ToFloats(__builtin_convertvector(LoadBytes16(own), Words16), values);
      return Mul(scale[vec], V::Load(values));
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int second, int group, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, kCodes>(block + 4 * kQuadBytes * (4 * second + group), half, i));
  }
};

}  // namespace
}  // namespace penstock::kernels
