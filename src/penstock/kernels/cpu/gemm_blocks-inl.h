// GEMM over rows of block formats (tensor/block_formats.h). A chunk of 256 inputs of 32 outputs becomes a panel of
// floats, or of bf16 for kBF16 rows. The tiles of float weights pass over the panel while it lies in the cache.
//
// Codes are first reordered as bytes into a panel's order. Only then do they become numbers, 16 outputs at a time, each
// with its own scale. Operations and bits are those of DequantiseBlocks.
#pragma once

#include "penstock/kernels/cpu/gemm-inl.h"
#include "penstock/kernels/cpu/tables.h"
#include "penstock/tensor/block_formats.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kChunkInputs = 256;
constexpr int64_t kGroupInputs = 32;
constexpr int64_t kChunkGroups = kChunkInputs / kGroupInputs;
// A chunk is made again for each block of rows: the more rows in a block, the less this costs.
constexpr int64_t kMaxBlockTiles = 32;

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Halves8 __attribute__((vector_size(16)));
typedef uint16_t Halves16 __attribute__((vector_size(32)));

// A chunk as read from the rows: codes as bytes, and the parts of each group's and output's scale. A scale covers 32
// inputs, or 16 (kQ6_K, kQ2_K, kQ3_K).
struct RawChunk {
  alignas(64) uint8_t codes[kChunkGroups][kPanelCols][kGroupInputs];
  alignas(64) uint8_t scale_codes[2 * kChunkGroups][kPanelCols];
  alignas(64) uint8_t min_codes[2 * kChunkGroups][kPanelCols];
  alignas(64) uint16_t scales16[kChunkGroups][kPanelCols];  // f16
  alignas(64) uint16_t mins16[kChunkGroups][kPanelCols];    // f16
  alignas(64) float scales[kChunkGroups][kPanelCols];
};

template <typename T>
inline T Load(const std::byte* source) {
  T value;
  __builtin_memcpy(&value, source, sizeof(value));
  return value;
}

// Returns the low or high halves of 16 bytes, as 16 bytes.
inline Bytes16 LowHalves(Bytes16 both) { return both & 15; }
inline Bytes16 HighHalves(Bytes16 both) { return both >> 4; }
inline void Put(Bytes16 codes, uint8_t* target) { __builtin_memcpy(target, &codes, 16); }

// Each of these functions reads the `num_groups` groups of a chunk of one row into the chunk's column `col`.
inline void ReadQ8_0(const std::byte* row, int64_t num_groups, int64_t col, RawChunk& chunk) {
  for (int64_t g = 0; g < num_groups; ++g, row += BlockBytes(WeightFormat::kQ8_0)) {
    chunk.scales16[g][col] = Load<uint16_t>(row);
    __builtin_memcpy(chunk.codes[g][col], row + 2, kGroupInputs);
  }
}

inline void ReadQ4_0(const std::byte* row, int64_t num_groups, int64_t col, RawChunk& chunk) {
  for (int64_t g = 0; g < num_groups; ++g, row += BlockBytes(WeightFormat::kQ4_0)) {
    chunk.scales16[g][col] = Load<uint16_t>(row);
    const auto both = Load<Bytes16>(row + 2);
    Put(LowHalves(both) - 8, chunk.codes[g][col]);
    Put(HighHalves(both) - 8, chunk.codes[g][col] + 16);
  }
}

inline void ReadQ4_1(const std::byte* row, int64_t num_groups, int64_t col, RawChunk& chunk) {
  for (int64_t g = 0; g < num_groups; ++g, row += BlockBytes(WeightFormat::kQ4_1)) {
    chunk.scales16[g][col] = Load<uint16_t>(row);
    chunk.mins16[g][col] = Load<uint16_t>(row + 2);
    const auto both = Load<Bytes16>(row + 4);
    Put(LowHalves(both), chunk.codes[g][col]);
    Put(HighHalves(both), chunk.codes[g][col] + 16);
  }
}

// Returns 16 bytes: byte i is 16 if bit i of the two bytes is set, otherwise 0.
inline Bytes16 FifthBits(const std::byte* bits) {
  const auto a = static_cast<uint8_t>(bits[0]), b = static_cast<uint8_t>(bits[1]);
  const Bytes16 bytes = {a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
  constexpr Bytes16 kBits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return (Bytes16)((bytes & kBits) != 0) & 16;
}

inline void ReadQ5_0(const std::byte* row, int64_t num_groups, int64_t col, RawChunk& chunk) {
  for (int64_t g = 0; g < num_groups; ++g, row += BlockBytes(WeightFormat::kQ5_0)) {
    chunk.scales16[g][col] = Load<uint16_t>(row);
    const auto both = Load<Bytes16>(row + 6);
    Put((LowHalves(both) | FifthBits(row + 2)) - 16, chunk.codes[g][col]);
    Put((HighHalves(both) | FifthBits(row + 4)) - 16, chunk.codes[g][col] + 16);
  }
}

inline void ReadQ5_1(const std::byte* row, int64_t num_groups, int64_t col, RawChunk& chunk) {
  for (int64_t g = 0; g < num_groups; ++g, row += BlockBytes(WeightFormat::kQ5_1)) {
    chunk.scales16[g][col] = Load<uint16_t>(row);
    chunk.mins16[g][col] = Load<uint16_t>(row + 2);
    const auto both = Load<Bytes16>(row + 8);
    Put(LowHalves(both) | FifthBits(row + 4), chunk.codes[g][col]);
    Put(HighHalves(both) | FifthBits(row + 6), chunk.codes[g][col] + 16);
  }
}

inline void ReadMxfp4(const std::byte* row, int64_t num_groups, int64_t col, RawChunk& chunk) {
  Bytes16 halves;
  __builtin_memcpy(&halves, kE2M1Halves, 16);
  for (int64_t g = 0; g < num_groups; ++g, row += BlockBytes(WeightFormat::kMxfp4)) {
    const auto power = static_cast<uint32_t>(row[0]);
    const uint32_t bits = power < 2 ? 0x00200000u << power : (power - 1) << 23;  // HalfPower
    __builtin_memcpy(&chunk.scales[g][col], &bits, 4);
    const auto both = Load<Bytes16>(row + 1);
    Put(__builtin_shuffle(halves, LowHalves(both)), chunk.codes[g][col]);
    Put(__builtin_shuffle(halves, HighHalves(both)), chunk.codes[g][col] + 16);
  }
}

inline void ReadFp8(const std::byte* row, int64_t num_groups, int64_t col, RawChunk& chunk) {
  for (int64_t g = 0; g < num_groups; ++g) {
    const std::byte* block = row + g / 4 * BlockBytes(WeightFormat::kFp8);
    chunk.scales[g][col] = Load<float>(block);
    __builtin_memcpy(chunk.codes[g][col], block + 4 + g % 4 * kGroupInputs, kGroupInputs);
  }
}

// Reads the scales and minima of kQ4_K and kQ5_K in the order of ReadKGroups.
inline void ReadKScales(const std::byte* block, int64_t col, RawChunk& chunk) {
  chunk.scales16[0][col] = Load<uint16_t>(block);
  chunk.mins16[0][col] = Load<uint16_t>(block + 2);
  const auto* packed = reinterpret_cast<const uint8_t*>(block) + 4;
  for (int64_t i = 0; i < 4; ++i) {
    chunk.scale_codes[i][col] = packed[i] & 63;
    chunk.min_codes[i][col] = packed[i + 4] & 63;
    chunk.scale_codes[i + 4][col] = static_cast<uint8_t>((packed[i + 8] & 15) | packed[i] >> 6 << 4);
    chunk.min_codes[i + 4][col] = static_cast<uint8_t>(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
  }
}

inline void ReadQ4_K(const std::byte* row, int64_t /*num_groups*/, int64_t col, RawChunk& chunk) {
  ReadKScales(row, col, chunk);
  for (int64_t i = 0; i < 8; ++i) {  // 16 bytes: 16 weights of each of two groups
    const auto both = Load<Bytes16>(row + 16 + 16 * i);
    Put(LowHalves(both), chunk.codes[i / 2 * 2][col] + i % 2 * 16);
    Put(HighHalves(both), chunk.codes[i / 2 * 2 + 1][col] + i % 2 * 16);
  }
}

inline void ReadQ5_K(const std::byte* row, int64_t /*num_groups*/, int64_t col, RawChunk& chunk) {
  ReadKScales(row, col, chunk);
  for (int64_t i = 0; i < 8; ++i) {
    const auto both = Load<Bytes16>(row + 48 + 16 * i);
    const Bytes16 fifths = Load<Bytes16>(row + 16 + i % 2 * 16) >> static_cast<uint8_t>(i / 2 * 2);
    Put(LowHalves(both) | (fifths & 1) << 4, chunk.codes[i / 2 * 2][col] + i % 2 * 16);
    Put(HighHalves(both) | (fifths & 2) << 3, chunk.codes[i / 2 * 2 + 1][col] + i % 2 * 16);
  }
}

inline void ReadQ6_K(const std::byte* row, int64_t /*num_groups*/, int64_t col, RawChunk& chunk) {
  chunk.scales16[0][col] = Load<uint16_t>(row + 208);
  for (int64_t i = 0; i < 16; ++i) chunk.scale_codes[i][col] = static_cast<uint8_t>(row[192 + i]);
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t i = 0; i < 2; ++i) {  // 16 weights of each of four groups
      const auto first = Load<Bytes16>(row + 64 * half + 16 * i), second = Load<Bytes16>(row + 64 * half + 32 + 16 * i);
      const auto high = Load<Bytes16>(row + 128 + 32 * half + 16 * i);
      uint8_t(*codes)[kPanelCols][kGroupInputs] = chunk.codes + 4 * half;
      Put((LowHalves(first) | (high & 3) << 4) - 32, codes[0][col] + 16 * i);
      Put((LowHalves(second) | (high >> 2 & 3) << 4) - 32, codes[1][col] + 16 * i);
      Put((HighHalves(first) | (high >> 4 & 3) << 4) - 32, codes[2][col] + 16 * i);
      Put((HighHalves(second) | high >> 6 << 4) - 32, codes[3][col] + 16 * i);
    }
  }
}

inline void ReadQ2_K(const std::byte* row, int64_t /*num_groups*/, int64_t col, RawChunk& chunk) {
  chunk.scales16[0][col] = Load<uint16_t>(row + 80);
  chunk.mins16[0][col] = Load<uint16_t>(row + 82);
  for (int64_t i = 0; i < 16; ++i) {
    const auto both = static_cast<uint8_t>(row[i]);
    chunk.scale_codes[i][col] = both & 15;
    chunk.min_codes[i][col] = both >> 4;
  }
  for (int64_t i = 0; i < 4; ++i) {  // 16 weights of each of four groups
    const auto four = Load<Bytes16>(row + 16 + 16 * i);
    for (int64_t j = 0; j < 4; ++j) {
      Put(four >> static_cast<uint8_t>(2 * j) & 3, chunk.codes[i / 2 * 4 + j][col] + i % 2 * 16);
    }
  }
}

inline void ReadQ3_K(const std::byte* row, int64_t /*num_groups*/, int64_t col, RawChunk& chunk) {
  chunk.scales16[0][col] = Load<uint16_t>(row + 108);
  for (int64_t i = 0; i < 16; ++i) {
    const auto low = static_cast<uint8_t>(static_cast<uint8_t>(row[96 + i % 8]) >> (i / 8 * 4) & 15);
    const auto high = static_cast<uint8_t>(static_cast<uint8_t>(row[104 + i % 4]) >> (i / 4 * 2) & 3);
    chunk.scale_codes[i][col] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  for (int64_t i = 0; i < 4; ++i) {
    const auto four = Load<Bytes16>(row + 32 + 16 * i), high = Load<Bytes16>(row + i % 2 * 16);
    for (int64_t j = 0; j < 4; ++j) {
      const int64_t group = i / 2 * 4 + j;
      const Bytes16 third = (high >> static_cast<uint8_t>(group) & 1) << 2;
      Put(((four >> static_cast<uint8_t>(2 * j) & 3) | third) - 4, chunk.codes[group][col] + i % 2 * 16);
    }
  }
}

// Reads 32 codes that name values.
inline void PutIq4Values(const std::byte* source, uint8_t* codes) {
  Bytes16 values;
  __builtin_memcpy(&values, kIq4Values, 16);
  const auto both = Load<Bytes16>(source);
  Put(__builtin_shuffle(values, LowHalves(both)), codes);
  Put(__builtin_shuffle(values, HighHalves(both)), codes + 16);
}

inline void ReadIq4_Nl(const std::byte* row, int64_t num_groups, int64_t col, RawChunk& chunk) {
  for (int64_t g = 0; g < num_groups; ++g, row += BlockBytes(WeightFormat::kIq4_Nl)) {
    chunk.scales16[g][col] = Load<uint16_t>(row);
    PutIq4Values(row + 2, chunk.codes[g][col]);
  }
}

inline void ReadIq4_Xs(const std::byte* row, int64_t /*num_groups*/, int64_t col, RawChunk& chunk) {
  chunk.scales16[0][col] = Load<uint16_t>(row);
  for (int64_t g = 0; g < kChunkGroups; ++g) {
    const auto high = static_cast<uint8_t>(static_cast<uint8_t>(row[2 + g / 4]) >> (g % 4 * 2) & 3);
    const auto low = static_cast<uint8_t>(static_cast<uint8_t>(row[4 + g / 2]) >> (g % 2 * 4) & 15);
    chunk.scale_codes[g][col] = static_cast<uint8_t>((low | high << 4) - 32);
    PutIq4Values(row + 8 + 16 * g, chunk.codes[g][col]);
  }
}

// Transposes source [16][..], rows 32 bytes apart, into target [16][..], 32 bytes apart.
inline void Transpose16(const uint8_t* source, uint8_t* target) {
  Bytes16 rows[16], next[16];
  Unrolled<16>([&](auto i) __attribute__((always_inline)) { __builtin_memcpy(&rows[i], source + 32 * i, 16); });
  // Merges the upper eight rows with the lower eight, byte by byte, four times.
  Unrolled<4>([&](auto) __attribute__((always_inline)) {
    Unrolled<8>([&](auto i) __attribute__((always_inline)) {
      next[2 * i] =
          __builtin_shuffle(rows[i], rows[i + 8], Bytes16{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + 8],
                                          Bytes16{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
    });
    Unrolled<16>([&](auto i) __attribute__((always_inline)) { rows[i] = next[i]; });
  });
  Unrolled<16>([&](auto i) __attribute__((always_inline)) { __builtin_memcpy(target + 32 * i, &rows[i], 16); });
}

// Converts 16 E4M3 codes as ToFloat(F8E4M3) does. Moved to the bit positions of f16 they are 2^-8 times their value;
// this holds for subnormals, too.
template <class V>
[[gnu::always_inline]] inline V Fp8ToFloats(const uint8_t* codes) {
  const Halves16 wide = __builtin_convertvector(Load<Bytes16>(reinterpret_cast<const std::byte*>(codes)), Halves16);
  const Halves16 magnitude = wide & 0x7F;
  const auto is_nan = (Halves16)(magnitude == 0x7F);
  const Halves16 halves = (wide & 0x80) << 8 | magnitude << 7 | (is_nan & 0x7E00);
  std::byte bytes[32];
  __builtin_memcpy(bytes, &halves, 32);
  return Mul(V::template LoadAs<Dtype::kF16>(bytes), V::Set(256));
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
    const Halves8 low = __builtin_shuffle(a, b, Halves8{0, 8, 1, 9, 2, 10, 3, 11});
    const Halves8 high = __builtin_shuffle(a, b, Halves8{4, 12, 5, 13, 6, 14, 7, 15});
    __builtin_memcpy(target + 32 * i, &low, 16);
    __builtin_memcpy(target + 32 * i + 16, &high, 16);
  }
}

// Makes 16 weights of input k of group g from the bytes of all 32 outputs; `vec` (0 or 1) selects 16 of them.
template <class V, WeightFormat kFormat>
struct GroupNumbers {
  // Half the inputs of a group share these numbers in some formats; in the others the first half's count for both.
  static constexpr bool kHasHalves =
      kFormat == WeightFormat::kQ6_K || kFormat == WeightFormat::kQ2_K || kFormat == WeightFormat::kQ3_K;
  V scales[2][kVecsPerPanel];
  V mins[2][kVecsPerPanel];

  GroupNumbers(const RawChunk& chunk, int64_t g) {
    for (int64_t v = 0; v < kVecsPerPanel; ++v) {
      const auto halves = [&](const uint16_t* row) {
        return V::template LoadAs<Dtype::kF16>(reinterpret_cast<const std::byte*>(row + 16 * v));
      };
      const auto codes = [&](const uint8_t* row) { return reinterpret_cast<const std::byte*>(row + 16 * v); };
      if constexpr (kFormat == WeightFormat::kFp8 || kFormat == WeightFormat::kMxfp4) {
        scales[0][v] = V::Load(chunk.scales[g] + 16 * v);
      } else if constexpr (kFormat == WeightFormat::kQ8_0 || kFormat == WeightFormat::kQ4_0 ||
                           kFormat == WeightFormat::kQ5_0 || kFormat == WeightFormat::kIq4_Nl) {
        scales[0][v] = halves(chunk.scales16[g]);
      } else if constexpr (kFormat == WeightFormat::kQ4_1 || kFormat == WeightFormat::kQ5_1) {
        scales[0][v] = halves(chunk.scales16[g]);
        mins[0][v] = halves(chunk.mins16[g]);
      } else if constexpr (kFormat == WeightFormat::kQ2_K) {
        for (int64_t half = 0; half < 2; ++half) {
          scales[half][v] = Mul(halves(chunk.scales16[0]), V::LoadCodes(codes(chunk.scale_codes[2 * g + half])));
          mins[half][v] = Mul(halves(chunk.mins16[0]), V::LoadCodes(codes(chunk.min_codes[2 * g + half])));
        }
      } else if constexpr (kHasHalves) {
        for (int64_t half = 0; half < 2; ++half) {
          scales[half][v] = Mul(halves(chunk.scales16[0]), V::LoadSignedCodes(codes(chunk.scale_codes[2 * g + half])));
        }
      } else if constexpr (kFormat == WeightFormat::kIq4_Xs) {
        scales[0][v] = Mul(halves(chunk.scales16[0]), V::LoadSignedCodes(codes(chunk.scale_codes[g])));
      } else {
        scales[0][v] = Mul(halves(chunk.scales16[0]), V::LoadCodes(codes(chunk.scale_codes[g])));
        mins[0][v] = Mul(halves(chunk.mins16[0]), V::LoadCodes(codes(chunk.min_codes[g])));
      }
    }
  }

  [[gnu::always_inline]] V Weights(const uint8_t* bytes, int64_t k, int64_t v) const {
    const auto* codes = reinterpret_cast<const std::byte*>(bytes + 16 * v);
    const int64_t half = kHasHalves && k >= 16 ? 1 : 0;
    if constexpr (kFormat == WeightFormat::kFp8) {
      return Mul(Fp8ToFloats<V>(bytes + 16 * v), scales[0][v]);
    } else if constexpr (kFormat == WeightFormat::kQ4_K || kFormat == WeightFormat::kQ5_K ||
                         kFormat == WeightFormat::kQ2_K) {
      return Sub(Mul(scales[half][v], V::LoadCodes(codes)), mins[half][v]);
    } else if constexpr (kFormat == WeightFormat::kQ4_1 || kFormat == WeightFormat::kQ5_1) {
      return Add(Mul(scales[0][v], V::LoadCodes(codes)), mins[0][v]);
    } else {
      return Mul(scales[half][v], V::LoadSignedCodes(codes));
    }
  }
};

// Makes whole groups of a kF32 or kBF16 panel from inputs [first, first + count) of the panel's outputs. `first` is a
// multiple of kChunkInputs, `count` at most kChunkInputs.
template <class V, WeightFormat kFormat>
void MakeChunk(const std::byte* rows, int64_t row_bytes, int64_t num_cols, int64_t first, int64_t count, bool as_bf16,
               std::byte* target) {
  RawChunk chunk;
  if (num_cols < kPanelCols) __builtin_memset(&chunk, 0, sizeof(chunk));
  constexpr int64_t kBytes = BlockBytes(kFormat), kElements = BlockElements(kFormat);
  constexpr int64_t kRowChunkBytes = kChunkInputs / kElements * kBytes;
  const int64_t num_groups = (count + kGroupInputs - 1) / kGroupInputs;
  for (int64_t col = 0; col < num_cols; ++col) {
    const std::byte* row = rows + col * row_bytes + first / kElements * kBytes;
    // Prefetches the next chunk of this output; a prefetch beyond the last chunk does no harm.
    for (int64_t i = 0; i < kRowChunkBytes; i += 64) __builtin_prefetch(row + kRowChunkBytes + i);
#define PENSTOCK_BLOCK_FORMAT(format, ...) \
  if constexpr (kFormat == WeightFormat::k##format) Read##format(row, num_groups, col, chunk);
#include "penstock/tensor/weight_formats.def"
  }
  alignas(64) uint8_t bytes[kGroupInputs][kPanelCols];
  for (int64_t g = 0; g < num_groups; ++g) {
    for (int64_t half = 0; half < 4; ++half) {
      Transpose16(&chunk.codes[g][half / 2 * 16][half % 2 * 16], &bytes[half % 2 * 16][half / 2 * 16]);
    }
    const GroupNumbers<V, kFormat> numbers(chunk, g);
    for (int64_t k = 0; k < kGroupInputs; k += 2) {
      const int64_t input = g * kGroupInputs + k;
      for (int64_t v = 0; v < kVecsPerPanel; ++v) {
        const V even = numbers.Weights(bytes[k], k, v), odd = numbers.Weights(bytes[k + 1], k + 1, v);
        if (as_bf16) {
          StorePairs(even, odd, target + 2 * input * kPanelCols + 64 * v);
        } else {
          even.Store(reinterpret_cast<float*>(target) + input * kPanelCols + 16 * v);
          odd.Store(reinterpret_cast<float*>(target) + (input + 1) * kPanelCols + 16 * v);
        }
      }
    }
  }
  // The partner of a last input is 0 times 0.
  if (count % 2 == 0) return;
  for (int64_t col = 0; col < kPanelCols; ++col) {
    if (as_bf16) {
      reinterpret_cast<BF16*>(target)[count / 2 * 2 * kPanelCols + 2 * col + 1] = {0};
    } else {
      reinterpret_cast<float*>(target)[count * kPanelCols + col] = 0;
    }
  }
}

template <class V>
MakeChunkFunction MakeChunkOf(WeightFormat format) {
  switch (format) {
#define PENSTOCK_BLOCK_FORMAT(format, ...) \
  case WeightFormat::k##format:            \
    return MakeChunk<V, WeightFormat::k##format>;
#include "penstock/tensor/weight_formats.def"
    default: return nullptr;
  }
}

template <class Steps>
void RunBlocksGemm(const GemmArgs& args, MakeChunkFunction make_chunk, bool as_bf16) {
  alignas(64) std::byte weights[kChunkInputs * kPanelCols * sizeof(float)];
  const int64_t row_bytes = args.panel_bytes / kPanelCols;
  ForEachPanel<Steps, kMaxBlockTiles>(args, [&](const TileBlock& block, int64_t panel, float* sums) {
    const int64_t cols_left = args.num_cols - panel * kPanelCols;
    const int64_t num_cols = cols_left < kPanelCols ? cols_left : kPanelCols;
    __builtin_memset(sums, 0, static_cast<size_t>(block.num_rows() * kPanelCols) * sizeof(float));
    for (int64_t first = 0; first < args.inner_dim; first += kChunkInputs) {
      const int64_t inputs_left = args.inner_dim - first;
      const int64_t count = inputs_left < kChunkInputs ? inputs_left : kChunkInputs;
      make_chunk(args.w + panel * args.panel_bytes, row_bytes, num_cols, first, count, as_bf16, weights);
      TileRun run = {.x = args.x + block.first_row * args.x_stride_bytes,
                     .x_stride_bytes = args.x_stride_bytes,
                     .w = weights,
                     .inner_dim = args.inner_dim,
                     .begin = first,
                     .end = first + count,
                     .sums = sums,
                     .prefetch = {.ahead = 0, .lines = 1, .is_near = true}};  // the panel is in the cache already
      run.prefetch.StartAt(run.w);
      RunTiles<Steps, FloatTile, Steps::kRows>(block.num_larger, block.min_rows + 1, run);
      RunTiles<Steps, FloatTile, Steps::kRows>(block.num_tiles - block.num_larger, block.min_rows, run);
    }
    StorePanel<typename Steps::Vec>(args, block.first_row, block.num_rows(), panel, sums);
  });
}

template <class V>
void GemmOfBlocks(const GemmArgs& args, MakeChunkFunction make_chunk) {
  if (args.x_format == RowFormat::kBF16) {
    return RunBlocksGemm<FloatSteps<V, WeightFormat::kBF16>>(args, make_chunk, true);
  }
  RunBlocksGemm<FloatSteps<V, WeightFormat::kF32>>(args, make_chunk, false);
}

}  // namespace
}  // namespace penstock::kernels
