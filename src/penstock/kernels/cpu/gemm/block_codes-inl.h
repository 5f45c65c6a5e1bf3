// Reads panels of block formats (tensor/block_panels.h): codes, scales and minima of 16 outputs at a time.
//
// A quad is 4 neighbouring inputs. Quads are counted in groups of 32 inputs: quad 4 * half + i, half 0 or 1. The 8
// groups of a block of 256 are counted in halves of the block: group 4 * second + group, second 0 or 1. `block` is
// the panel's block, moved by 64 bytes for the outputs 16 to 31.
#pragma once

#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/tensor/block_formats.h"
#include "penstock/tensor/block_panels.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kGroupInputs = 32;

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint8_t Bytes32 __attribute__((vector_size(32)));

// Vectors of so many bytes. GCC 12 takes no size that depends on a parameter.
template <int kBytes>
struct VectorsOf;
#define PENSTOCK_VECTORS(bytes)                                 \
  template <>                                                   \
  struct VectorsOf<bytes> {                                     \
    typedef int16_t Shorts __attribute__((vector_size(bytes))); \
    typedef int32_t Ints __attribute__((vector_size(bytes)));   \
    typedef uint32_t Words __attribute__((vector_size(bytes))); \
    typedef float Floats __attribute__((vector_size(bytes)));   \
  }
PENSTOCK_VECTORS(16);
PENSTOCK_VECTORS(32);
PENSTOCK_VECTORS(64);
#undef PENSTOCK_VECTORS

using Words16 = VectorsOf<64>::Words;
using Ints16 = VectorsOf<64>::Ints;
using Floats16 = VectorsOf<64>::Floats;

inline Bytes16 LoadBytes16(const std::byte* source) {
  Bytes16 bytes;
  __builtin_memcpy(&bytes, source, 16);
  return bytes;
}
template <class V>
[[gnu::always_inline]] inline V ToVec(const Floats16& floats) {
  alignas(64) float values[16];
  __builtin_memcpy(values, &floats, 64);
  return V::Load(values);
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

// Vectors as wide as the instruction set's. GCC 12 takes comparisons of wider ones apart, lane by lane: with AVX2 one
// row of MXFP4 read 5 GB/s for this reason.
template <class V>
using Lanes = VectorsOf<V::kPanelVecs == 2 ? 64 : 32>;

// Returns 16 floats. set_bits(codes, bits) computes their bits, Lanes<V>::Words, from the bytes at `source`.
template <class V, class SetBits>
[[gnu::always_inline]] inline V FloatsOfCodes(const std::byte* source, const SetBits& set_bits) {
  using L = Lanes<V>;
  alignas(64) float values[16];
  V::LoadCodes(source).Store(values);
  Unrolled<static_cast<int>(64 / sizeof(typename L::Floats))>([&](auto part) __attribute__((always_inline)) {
    typename L::Floats codes;
    float* own = values + part * (sizeof(codes) / 4);
    __builtin_memcpy(&codes, own, sizeof(codes));
    typename L::Words bits;
    set_bits((typename L::Words) __builtin_convertvector(codes, typename L::Ints), bits);
    __builtin_memcpy(own, &bits, sizeof(bits));
  });
  return V::Load(values);
}

// Sets `bits` to those of E4M3 codes as floats, as ToFloat(F8E4M3) does. Subnormals are multiples of 2^-9.
template <class L>
[[gnu::always_inline]] inline void SetBitsOfFp8(const typename L::Words& codes, typename L::Words& bits) {
  using Words = typename L::Words;
  using Ints = typename L::Ints;
  const Words magnitude = codes & 0x7F, sign = (codes & 0x80) << 24;
  const Words normal = (magnitude << 20) + (120u << 23);
  const typename L::Floats small = __builtin_convertvector((Ints)magnitude, typename L::Floats) * 0x1p-9f;
  const Words finite = (Ints)magnitude < 8 ? (Words)small : normal;
  bits = ((Ints)magnitude == 0x7F ? Words{} + 0x7FC00000u : finite) | sign;
}

// Selects 4 of 8 bits: the low ones for half 0, the high ones for half 1.
template <class I>
[[gnu::always_inline]] inline typename I::Codes HalfOf(typename I::Codes codes, int half) {
  return I::And(I::ShiftRight(codes, 4 * half), 15);
}
// Both functions read the codes of a quad in four groups that share bytes. FourNibbles finds groups 0 and 1 in the
// halves of a word's bytes, and groups 2 and 3 in the word behind it. FourPairs finds groups 0 to 3 in pairs of bits.
template <class I>
[[gnu::always_inline]] inline void FourNibbles(const std::byte* source, typename I::Codes (&codes)[4]) {
  Unrolled<4>([&](auto group) __attribute__((always_inline)) {
    codes[group] = HalfOf<I>(I::Load(source + group / 2 * kQuadBytes), group % 2);
  });
}
template <class I>
[[gnu::always_inline]] inline void FourPairs(const std::byte* source, typename I::Codes (&codes)[4]) {
  const auto pairs = I::Load(source);
  Unrolled<4>([&](auto group)
                  __attribute__((always_inline)) { codes[group] = I::And(I::ShiftRight(pairs, 2 * group), 3); });
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
//   Quads(block, second, quad, codes)     instead of Quad, if groups share bytes: quad 0 to 7 of groups 0 to 3
//   Group(block, second, group, quads)    instead of Quad, if IsCodebookOrTernary: quads 0 to 7
//   Scales(block)                         what its scales have in common
//     .Scale(vec, second, group, half)      the scales of 16 outputs; `vec` (0 or 1) selects them
//     .Min(vec, second, group, half)        their minima
template <class I, WeightFormat kFormat>
struct BlockCodes;

template <class Codes>
constexpr bool kSharesBytes = requires {
  &Codes::Quads;
};

// Returns the codes of a quad, also of groups that share bytes. If the compiler knows `group`, only that one is
// unpacked.
template <class I, class Codes>
[[gnu::always_inline]] inline typename I::Codes QuadOf(const std::byte* block, int second, int group, int half, int i) {
  if constexpr (kSharesBytes<Codes>) {
    typename I::Codes codes[4];
    Codes::Quads(block, second, 4 * half + i, codes);
    return group < 2 ? (group == 0 ? codes[0] : codes[1]) : (group == 2 ? codes[2] : codes[3]);
  } else {
    return Codes::Quad(block, second, group, half, i);
  }
}

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
  static constexpr int kGroup = 32, kOffset = 128, kMaxCode = 255;
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
  static constexpr int kGroup = 32, kOffset = 8, kMaxCode = 15;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return SmallQuad<I, 64>(block, half, i);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ4_1> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 0, kMaxCode = 15;
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
  static constexpr int kGroup = 32, kOffset = 16, kMaxCode = 31;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return FiveBitQuad<I, 64>(block, half, i);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ5_1> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 0, kMaxCode = 31;
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
  static constexpr int kGroup = 32, kOffset = 0, kMaxCode = 15;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kWords = 512;

  [[gnu::always_inline]] static void Quads(const std::byte* block, int second, int quad,
                                           typename I::Codes (&codes)[4]) {
    FourNibbles<I>(block + kWords + kQuadBytes * QuadWordsOf(WeightFormat::kQ4_K, second, quad).low, codes);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ5_K> {
  using Scales = KScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 0, kMaxCode = 31;
  static constexpr bool kHasMin = true;

  [[gnu::always_inline]] static void Quads(const std::byte* block, int second, int quad,
                                           typename I::Codes (&codes)[4]) {
    const QuadWords words = QuadWordsOf(WeightFormat::kQ5_K, second, quad);
    FourNibbles<I>(block + 512 + kQuadBytes * words.low, codes);
    const auto fifths = I::ShiftRight(I::Load(block + 512 + kQuadBytes * words.high), 4 * second);
    Unrolled<4>([&](auto group) __attribute__((always_inline)) {
      codes[group] = I::Or(codes[group], I::And(I::ShiftLeft(fifths, 4 - group), 16));
    });
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
  static constexpr int kGroup = 16, kOffset = 32, kMaxCode = 63;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kScale = 0, kScales = 2 * kPanelCols, kWords = kScales + 16 * kPanelCols;

  struct Scales : SignedScales<V, 16> {
    Scales() = default;
    [[gnu::always_inline]] explicit Scales(const std::byte* block) {
      for (int v = 0; v < kVecsPerPanel; ++v) this->scale[v] = Halves<V>(block + kScale, v);
      __builtin_memcpy(this->codes, block + kScales, sizeof(this->codes));
    }
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int half) const {
      return this->At(vec, 8 * second + 2 * group + half);
    }
  };

  [[gnu::always_inline]] static void Quads(const std::byte* block, int second, int quad,
                                           typename I::Codes (&codes)[4]) {
    const QuadWords words = QuadWordsOf(WeightFormat::kQ6_K, second, quad);
    const std::byte* low = block + kWords + kQuadBytes * words.low;
    const auto even = I::Load(low), odd = I::Load(low + kQuadBytes);
    const auto high = I::Load(block + kWords + kQuadBytes * words.high);
    codes[0] = I::Or(I::And(even, 15), I::And(I::ShiftLeft(high, 4), 48));
    codes[1] = I::Or(I::And(odd, 15), I::And(I::ShiftLeft(high, 2), 48));
    codes[2] = I::Or(HalfOf<I>(even, 1), I::And(high, 48));
    codes[3] = I::Or(HalfOf<I>(odd, 1), I::And(I::ShiftRight(high, 2), 48));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ2_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 0, kMaxCode = 3;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kScale = 0, kScales = 4 * kPanelCols, kWords = kScales + 16 * kPanelCols;

  struct Scales {
    V scale[kVecsPerPanel];
    V minus_min[kVecsPerPanel];
    alignas(32) std::byte codes[16][kPanelCols];

    Scales() = default;
    [[gnu::always_inline]] explicit Scales(const std::byte* block) {
      for (int v = 0; v < kVecsPerPanel; ++v) {
        scale[v] = Halves<V>(block + kScale, v);
        minus_min[v] = Sub(V::Zero(), Halves<V>(block + kScale + 64, v));
      }
      __builtin_memcpy(codes, block + kScales, sizeof(codes));
    }
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int half) const {
      return Mul(scale[vec], UnsignedFloats<V>(Packed(vec, second, group, half) & 15));
    }
    [[gnu::always_inline]] V Min(int vec, int second, int group, int half) const {
      return Mul(minus_min[vec], UnsignedFloats<V>(Packed(vec, second, group, half) >> 4));
    }

   private:
    [[gnu::always_inline]] Bytes16 Packed(int vec, int second, int group, int half) const {
      return LoadBytes16(codes[8 * second + 2 * group + half] + 16 * vec);
    }
  };

  [[gnu::always_inline]] static void Quads(const std::byte* block, int second, int quad,
                                           typename I::Codes (&codes)[4]) {
    FourPairs<I>(block + kWords + kQuadBytes * QuadWordsOf(WeightFormat::kQ2_K, second, quad).low, codes);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kQ3_K> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = 4, kMaxCode = 7;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kScale = 0, kScales = 2 * kPanelCols, kWords = kScales + 12 * kPanelCols;

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

  [[gnu::always_inline]] static void Quads(const std::byte* block, int second, int quad,
                                           typename I::Codes (&codes)[4]) {
    const QuadWords words = QuadWordsOf(WeightFormat::kQ3_K, second, quad);
    FourPairs<I>(block + kWords + kQuadBytes * words.low, codes);
    const auto thirds = I::ShiftRight(I::Load(block + kWords + kQuadBytes * words.high), 4 * second);
    codes[0] = I::Or(codes[0], I::And(I::ShiftLeft(thirds, 2), 4));
    codes[1] = I::Or(codes[1], I::And(I::ShiftLeft(thirds, 1), 4));
    codes[2] = I::Or(codes[2], I::And(thirds, 4));
    codes[3] = I::Or(codes[3], I::And(I::ShiftRight(thirds, 1), 4));
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
  static constexpr int kGroup = 32, kOffset = 128, kMaxCode = 255;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kIq4Values, kOffset};

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, 64>(block, half, i));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kIq4_Xs> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 128, kMaxCode = 255;
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
  static constexpr int kGroup = 32, kOffset = 16, kMaxCode = 28;
  static constexpr bool kHasMin = false;
  static constexpr NamedValues kValues{kE2M1Halves, kOffset};

  struct Scales {
    const std::byte* block = nullptr;

    Scales() = default;
    explicit Scales(const std::byte* start) : block(start) {}
    // Computes HalfPower.
    [[gnu::always_inline]] V Scale(int vec, int, int, int) const {
      using L = Lanes<V>;
      const auto set_bits =
          [](const typename L::Words& powers, typename L::Words& bits) __attribute__((always_inline)) {
        const typename L::Words subnormal = (typename L::Words{} + 0x00200000u) << powers;
        bits = (typename L::Ints)powers < 2 ? subnormal : (powers - 1) << 23;
      };
      return FloatsOfCodes<V>(block + 16 * vec, set_bits);
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int, int, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, kPanelCols>(block, half, i));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kU4> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 0, kMaxCode = 15;
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
  static constexpr int kGroup = 16, kOffset = 16, kMaxCode = 28;
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
      return Mul(scale[vec], FloatsOfCodes<V>(own, SetBitsOfFp8<Lanes<V>>));
    }
  };

  [[gnu::always_inline]] static typename I::Codes Quad(const std::byte* block, int second, int group, int half, int i) {
    return I::Lookup(kValues.bytes, SmallQuad<I, kCodes>(block + 4 * kQuadBytes * (4 * second + group), half, i));
  }
};

}  // namespace
}  // namespace penstock::kernels
