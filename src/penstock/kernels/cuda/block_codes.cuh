// Reads panels of block formats (tensor/block_panels.h): codes, scales and minima, for the outputs of a lane.
//
// Quads, groups and halves are counted as in kernels/cpu/gemm/block_codes-inl.h: a quad is 4 neighbouring inputs, and
// quad 4 * half + i is one of a group of 32 inputs. Group 4 * second + group is one of the 8 groups of a block of 256.
#pragma once

#include "penstock/kernels/cuda/math.cuh"
#include "penstock/tensor/block_formats.h"
#include "penstock/tensor/block_panels.h"

namespace penstock::cuda {

inline constexpr int64_t kQuadBytes = 4 * kPanelCols;  // a quad of all outputs

// The outputs that a lane reads: kCount of them, from first() on. Matrix units take four, plain products one.
template <int kCount>
struct LaneOutputs;
template <>
struct LaneOutputs<1> {
  static PENSTOCK_DEVICE int first() { return Lane(); }
};
template <>
struct LaneOutputs<4> {
  static PENSTOCK_DEVICE int first() { return Lane() / 4 * 4; }
};

// Read elements of one, two and four bytes of a lane's outputs; `row` has those of all 32 outputs.
PENSTOCK_DEVICE void ReadWords(const std::byte* row, uint32_t (&words)[1]) {
  words[0] = *reinterpret_cast<const uint32_t*>(row + 4 * LaneOutputs<1>::first());
}
PENSTOCK_DEVICE void ReadWords(const std::byte* row, uint32_t (&words)[4]) {
  const uint4 four = *reinterpret_cast<const uint4*>(row + 4 * LaneOutputs<4>::first());
  words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}
PENSTOCK_DEVICE void ReadHalves(const std::byte* row, float (&values)[1]) {
  values[0] = FromF16Bits(reinterpret_cast<const uint16_t*>(row)[LaneOutputs<1>::first()]);
}
PENSTOCK_DEVICE void ReadHalves(const std::byte* row, float (&values)[4]) {
  const uint2 four = *reinterpret_cast<const uint2*>(row + 2 * LaneOutputs<4>::first());
  values[0] = FromF16Bits(four.x & 0xFFFFu), values[1] = FromF16Bits(four.x >> 16);
  values[2] = FromF16Bits(four.y & 0xFFFFu), values[3] = FromF16Bits(four.y >> 16);
}
PENSTOCK_DEVICE void ReadBytes(const std::byte* row, uint32_t (&values)[1]) {
  values[0] = static_cast<uint32_t>(row[LaneOutputs<1>::first()]);
}
PENSTOCK_DEVICE void ReadBytes(const std::byte* row, uint32_t (&values)[4]) {
  const uint32_t four = *reinterpret_cast<const uint32_t*>(row + LaneOutputs<4>::first());
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = four >> 8 * i & 0xFFu;
}

// Selects 4 of 8 bits of each byte: the low ones for half 0, the high ones for half 1.
PENSTOCK_DEVICE uint32_t HalfOf(uint32_t codes, int half) { return codes >> 4 * half & 0x0F0F0F0Fu; }
// Moves bit `from` of each byte to bit kTo and clears the others.
template <int kTo>
PENSTOCK_DEVICE uint32_t BitAt(uint32_t codes, int from) {
  return (codes >> from & 0x01010101u) << kTo;
}

// The scale and the minimum of a group, for each output of a lane.
template <int kCount>
struct GroupScales {
  float scale[kCount];
  float min[kCount];
};

// One type for each format:
//   kGroup   the inputs that share a scale: 32 or 16
//   kOffset  a code counts as code - kOffset
//   kHasMin  every weight is code * scale + min
//   Quad(block, second, group, half, i, codes)       the codes of a quad, a word for each output
//   Scales<kCount>(block).Of(second, group, half)    the scales of a group; a group of 16 is one half of 32 inputs
template <WeightFormat kFormat>
struct BlockCodes;

// A block of 32 weights with a scale in f16, and a minimum behind it.
template <int kCount, bool kHasMin>
struct PlainScales {
  const std::byte* block;

  PENSTOCK_DEVICE explicit PlainScales(const std::byte* start) : block(start) {}
  PENSTOCK_DEVICE GroupScales<kCount> Of(int, int, int) const {
    GroupScales<kCount> scales;
    ReadHalves(block, scales.scale);
    if constexpr (kHasMin) ReadHalves(block + 2 * kPanelCols, scales.min);
    return scales;
  }
};

template <>
struct BlockCodes<WeightFormat::kQ8_0> {
  static constexpr int kGroup = 32, kOffset = 128;
  static constexpr bool kHasMin = false;
  template <int kCount>
  using Scales = PlainScales<kCount, false>;

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int, int, int half, int i, uint32_t (&codes)[kCount]) {
    ReadWords(block + 64 + kQuadBytes * (4 * half + i), codes);
    for (int j = 0; j < kCount; ++j) codes[j] ^= 0x80808080u;
  }
};

// Reads four-bit codes: quads i of both halves share bytes.
template <int kCount>
PENSTOCK_DEVICE void SmallQuad(const std::byte* first_codes, int half, int i, uint32_t (&codes)[kCount]) {
  ReadWords(first_codes + kQuadBytes * i, codes);
  for (int j = 0; j < kCount; ++j) codes[j] = HalfOf(codes[j], half);
}

// kQ4_0 and kQ4_1.
template <int kOffsetOfCodes, bool kHasMinimum>
struct FourBitCodes {
  static constexpr int kGroup = 32, kOffset = kOffsetOfCodes;
  static constexpr bool kHasMin = kHasMinimum;
  static constexpr int64_t kBegin = kHasMin ? 128 : 64;
  template <int kCount>
  using Scales = PlainScales<kCount, kHasMin>;

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int, int, int half, int i, uint32_t (&codes)[kCount]) {
    SmallQuad(block + kBegin, half, i, codes);
  }
};
template <>
struct BlockCodes<WeightFormat::kQ4_0> : FourBitCodes<8, false> {};
template <>
struct BlockCodes<WeightFormat::kQ4_1> : FourBitCodes<0, true> {};

// kQ5_0 and kQ5_1.
template <int kOffsetOfCodes, bool kHasMinimum>
struct FiveBitCodes {
  static constexpr int kGroup = 32, kOffset = kOffsetOfCodes;
  static constexpr bool kHasMin = kHasMinimum;
  static constexpr int64_t kFifths = kHasMin ? 128 : 64;
  template <int kCount>
  using Scales = PlainScales<kCount, kHasMin>;

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int, int, int half, int i, uint32_t (&codes)[kCount]) {
    uint32_t fifths[kCount];
    ReadWords(block + kFifths, fifths);
    SmallQuad(block + kFifths + kQuadBytes, half, i, codes);
    for (int j = 0; j < kCount; ++j) codes[j] |= BitAt<4>(fifths[j], 4 * half + i);
  }
};
template <>
struct BlockCodes<WeightFormat::kQ5_0> : FiveBitCodes<16, false> {};
template <>
struct BlockCodes<WeightFormat::kQ5_1> : FiveBitCodes<0, true> {};

// The scales and minima of kQ4_K and kQ5_K, in the order of ReadKGroups.
template <int kCount>
struct KScales {
  const std::byte* codes;
  float scale[kCount], minus_min[kCount];

  PENSTOCK_DEVICE explicit KScales(const std::byte* block) : codes(block + 128) {
    ReadHalves(block, scale);
    ReadHalves(block + 64, minus_min);
    for (int j = 0; j < kCount; ++j) minus_min[j] = 0.0f - minus_min[j];
  }
  PENSTOCK_DEVICE GroupScales<kCount> Of(int second, int group, int) const {
    uint32_t of_scale[kCount], of_min[kCount], of_both[kCount];
    ReadBytes(codes + kPanelCols * group, of_scale);
    ReadBytes(codes + kPanelCols * (group + 4), of_min);
    ReadBytes(codes + kPanelCols * (group + 8), of_both);
    GroupScales<kCount> scales;
    for (int j = 0; j < kCount; ++j) {
      const uint32_t scale_code = second == 0 ? of_scale[j] & 63 : (of_both[j] & 15) | of_scale[j] >> 6 << 4;
      const uint32_t min_code = second == 0 ? of_min[j] & 63 : of_both[j] >> 4 | of_min[j] >> 6 << 4;
      scales.scale[j] = scale[j] * __int2float_rn(static_cast<int32_t>(scale_code));
      scales.min[j] = minus_min[j] * __int2float_rn(static_cast<int32_t>(min_code));
    }
    return scales;
  }
};

template <>
struct BlockCodes<WeightFormat::kQ4_K> {
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;
  template <int kCount>
  using Scales = KScales<kCount>;

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int second, int group, int half, int i,
                                   uint32_t (&codes)[kCount]) {
    const QuadWords words = QuadWordsOf(WeightFormat::kQ4_K, second, 4 * half + i);
    ReadWords(block + 512 + kQuadBytes * (words.low + group / 2), codes);
    for (int j = 0; j < kCount; ++j) codes[j] = HalfOf(codes[j], group % 2);
  }
};

template <>
struct BlockCodes<WeightFormat::kQ5_K> {
  static constexpr int kGroup = 32, kOffset = 0;
  static constexpr bool kHasMin = true;
  template <int kCount>
  using Scales = KScales<kCount>;

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int second, int group, int half, int i,
                                   uint32_t (&codes)[kCount]) {
    const QuadWords words = QuadWordsOf(WeightFormat::kQ5_K, second, 4 * half + i);
    uint32_t fifths[kCount];
    ReadWords(block + 512 + kQuadBytes * words.high, fifths);
    ReadWords(block + 512 + kQuadBytes * (words.low + group / 2), codes);
    for (int j = 0; j < kCount; ++j) {
      codes[j] = HalfOf(codes[j], group % 2) | BitAt<4>(fifths[j], 4 * second + group);
    }
  }
};

// Multiplies signed codes of scales by one f16.
template <int kCount>
PENSTOCK_DEVICE GroupScales<kCount> ScaledCodes(const float (&scale)[kCount], const int32_t (&codes)[kCount]) {
  GroupScales<kCount> scales;
  for (int j = 0; j < kCount; ++j) scales.scale[j] = scale[j] * __int2float_rn(codes[j]);
  return scales;
}

template <>
struct BlockCodes<WeightFormat::kQ6_K> {
  static constexpr int kGroup = 16, kOffset = 32;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kScale = 0, kScales = 2 * kPanelCols, kWords = kScales + 16 * kPanelCols;

  template <int kCount>
  struct Scales {
    const std::byte* codes;
    float scale[kCount];

    PENSTOCK_DEVICE explicit Scales(const std::byte* block) : codes(block + kScales) {
      ReadHalves(block + kScale, scale);
    }
    PENSTOCK_DEVICE GroupScales<kCount> Of(int second, int group, int half) const {
      uint32_t bytes[kCount];
      ReadBytes(codes + kPanelCols * (8 * second + 2 * group + half), bytes);
      int32_t signed_codes[kCount];
      for (int j = 0; j < kCount; ++j) signed_codes[j] = static_cast<int8_t>(bytes[j]);
      return ScaledCodes(scale, signed_codes);
    }
  };

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int second, int group, int half, int i,
                                   uint32_t (&codes)[kCount]) {
    const QuadWords words = QuadWordsOf(WeightFormat::kQ6_K, second, 4 * half + i);
    uint32_t high[kCount];
    ReadWords(block + kWords + kQuadBytes * words.high, high);
    ReadWords(block + kWords + kQuadBytes * (words.low + group % 2), codes);
    for (int j = 0; j < kCount; ++j) {
      codes[j] = HalfOf(codes[j], group / 2) | (high[j] >> 2 * group & 0x03030303u) << 4;
    }
  }
};

template <>
struct BlockCodes<WeightFormat::kQ2_K> {
  static constexpr int kGroup = 16, kOffset = 0;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kScale = 0, kScales = 4 * kPanelCols, kWords = kScales + 16 * kPanelCols;

  template <int kCount>
  struct Scales {
    const std::byte* block;
    float scale[kCount], minus_min[kCount];

    PENSTOCK_DEVICE explicit Scales(const std::byte* start) : block(start) {
      ReadHalves(block + kScale, scale);
      ReadHalves(block + kScale + 64, minus_min);
      for (int j = 0; j < kCount; ++j) minus_min[j] = 0.0f - minus_min[j];
    }
    PENSTOCK_DEVICE GroupScales<kCount> Of(int second, int group, int half) const {
      uint32_t both[kCount];
      ReadBytes(block + kScales + kPanelCols * (8 * second + 2 * group + half), both);
      GroupScales<kCount> scales;
      for (int j = 0; j < kCount; ++j) {
        scales.scale[j] = scale[j] * __int2float_rn(static_cast<int32_t>(both[j] & 15));
        scales.min[j] = minus_min[j] * __int2float_rn(static_cast<int32_t>(both[j] >> 4));
      }
      return scales;
    }
  };

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int second, int group, int half, int i,
                                   uint32_t (&codes)[kCount]) {
    ReadWords(block + kWords + kQuadBytes * QuadWordsOf(WeightFormat::kQ2_K, second, 4 * half + i).low, codes);
    for (int j = 0; j < kCount; ++j) codes[j] = codes[j] >> 2 * group & 0x03030303u;
  }
};

// Reads codes of six bits, less 32: four bits of one byte, from `low_shift` on, and two of another.
template <int kCount>
PENSTOCK_DEVICE void SixBitCodes(const std::byte* low_row, int low_shift, const std::byte* high_row, int high_shift,
                                 int32_t (&codes)[kCount]) {
  uint32_t low[kCount], high[kCount];
  ReadBytes(low_row, low);
  ReadBytes(high_row, high);
  for (int j = 0; j < kCount; ++j) {
    codes[j] = static_cast<int32_t>((low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4) - 32;
  }
}

template <>
struct BlockCodes<WeightFormat::kQ3_K> {
  static constexpr int kGroup = 16, kOffset = 4;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kScale = 0, kScales = 2 * kPanelCols, kWords = kScales + 12 * kPanelCols;

  template <int kCount>
  struct Scales {
    const std::byte* packed;
    float scale[kCount];

    PENSTOCK_DEVICE explicit Scales(const std::byte* block) : packed(block + kScales) {
      ReadHalves(block + kScale, scale);
    }
    PENSTOCK_DEVICE GroupScales<kCount> Of(int second, int group, int half) const {
      const int i = 8 * second + 2 * group + half;
      int32_t codes[kCount];
      SixBitCodes(packed + kPanelCols * (i % 8), i / 8 * 4, packed + kPanelCols * (8 + i % 4), i / 4 * 2, codes);
      return ScaledCodes(scale, codes);
    }
  };

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int second, int group, int half, int i,
                                   uint32_t (&codes)[kCount]) {
    const QuadWords words = QuadWordsOf(WeightFormat::kQ3_K, second, 4 * half + i);
    uint32_t high[kCount];
    ReadWords(block + kWords + kQuadBytes * words.high, high);
    ReadWords(block + kWords + kQuadBytes * words.low, codes);
    for (int j = 0; j < kCount; ++j) {
      codes[j] = (codes[j] >> 2 * group & 0x03030303u) | BitAt<2>(high[j], 4 * second + group);
    }
  }
};

// The values that four-bit codes name, plus `offset`, four to a word.
struct NamedValues {
  uint32_t words[4];

  constexpr NamedValues(const int8_t (&values)[16], int offset) : words{} {
    for (int i = 0; i < 16; ++i) words[i / 4] |= (static_cast<uint32_t>(values[i] + offset) & 0xFFu) << 8 * (i % 4);
  }
};
inline constexpr int kIq4Offset = 128, kMxfp4Offset = 16;

// Returns the values of four codes, one in each byte. The values are immediate operands.
template <bool kIsMxfp4>
PENSTOCK_DEVICE uint32_t ValuesOf(uint32_t codes) {
  constexpr NamedValues kValues =
      kIsMxfp4 ? NamedValues(kE2M1Halves, kMxfp4Offset) : NamedValues(kIq4Values, kIq4Offset);
  constexpr uint32_t kWords[4] = {kValues.words[0], kValues.words[1], kValues.words[2], kValues.words[3]};
  const uint32_t nibbles = (codes & 0xFu) | (codes >> 4 & 0xF0u) | (codes >> 8 & 0xF00u) | (codes >> 12 & 0xF000u);
  const uint32_t below = PickBytes(kWords[0], kWords[1], nibbles & 0x7777u);
  const uint32_t above = PickBytes(kWords[2], kWords[3], nibbles & 0x7777u);
  const uint32_t is_above = (codes >> 3 & 0x01010101u) * 0xFFu;
  return (below & ~is_above) | (above & is_above);
}

template <>
struct BlockCodes<WeightFormat::kIq4_Nl> {
  static constexpr int kGroup = 32, kOffset = kIq4Offset;
  static constexpr bool kHasMin = false;
  template <int kCount>
  using Scales = PlainScales<kCount, false>;

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int, int, int half, int i, uint32_t (&codes)[kCount]) {
    SmallQuad(block + 64, half, i, codes);
    for (int j = 0; j < kCount; ++j) codes[j] = ValuesOf<false>(codes[j]);
  }
};

template <>
struct BlockCodes<WeightFormat::kIq4_Xs> {
  static constexpr int kGroup = 32, kOffset = kIq4Offset;
  static constexpr bool kHasMin = false;

  template <int kCount>
  struct Scales {
    const std::byte* packed;
    float scale[kCount];

    PENSTOCK_DEVICE explicit Scales(const std::byte* block) : packed(block + 64) { ReadHalves(block, scale); }
    PENSTOCK_DEVICE GroupScales<kCount> Of(int second, int group, int) const {
      const int i = 4 * second + group;
      int32_t codes[kCount];
      SixBitCodes(packed + kPanelCols * (2 + i / 2), i % 2 * 4, packed + kPanelCols * (i / 4), i % 4 * 2, codes);
      return ScaledCodes(scale, codes);
    }
  };

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int second, int group, int half, int i,
                                   uint32_t (&codes)[kCount]) {
    SmallQuad(block + 256 + 4 * kQuadBytes * (4 * second + group), half, i, codes);
    for (int j = 0; j < kCount; ++j) codes[j] = ValuesOf<false>(codes[j]);
  }
};

template <>
struct BlockCodes<WeightFormat::kMxfp4> {
  static constexpr int kGroup = 32, kOffset = kMxfp4Offset;
  static constexpr bool kHasMin = false;

  template <int kCount>
  struct Scales {
    const std::byte* block;

    PENSTOCK_DEVICE explicit Scales(const std::byte* start) : block(start) {}
    // Computes HalfPower (tensor/block_formats.h).
    PENSTOCK_DEVICE GroupScales<kCount> Of(int, int, int) const {
      uint32_t powers[kCount];
      ReadBytes(block, powers);
      GroupScales<kCount> scales;
      for (int j = 0; j < kCount; ++j) {
        scales.scale[j] = __uint_as_float(powers[j] < 2 ? 0x00200000u << powers[j] : (powers[j] - 1) << 23);
      }
      return scales;
    }
  };

  template <int kCount>
  static PENSTOCK_DEVICE void Quad(const std::byte* block, int, int, int half, int i, uint32_t (&codes)[kCount]) {
    SmallQuad(block + kPanelCols, half, i, codes);
    for (int j = 0; j < kCount; ++j) codes[j] = ValuesOf<true>(codes[j]);
  }
};

// Converts an E4M3 code as ToFloat(F8E4M3) does. Subnormals are multiples of 2^-9.
PENSTOCK_DEVICE float FromFp8(uint32_t code) {
  const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return __uint_as_float(sign | 0x7FC00000u);
  if (magnitude >= 8) return __uint_as_float(sign | ((magnitude << 20) + (120u << 23)));
  return __uint_as_float(sign | __float_as_uint(__int2float_rn(static_cast<int32_t>(magnitude)) * 0x1p-9f));
}

}  // namespace penstock::cuda
