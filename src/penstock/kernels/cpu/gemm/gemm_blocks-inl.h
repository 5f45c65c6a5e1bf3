// GEMM over panels of block formats (tensor/block_panels.h), and of all codes for rows of floats.
//
// With few rows of codes, tiles unpack the weights as they read them. Otherwise a chunk of 256 inputs of 32 outputs is
// unpacked once, and the tiles of all rows pass over it while it lies in the cache. For rows of codes it becomes codes
// of 8 bits: exact integer sums within a group of inputs that share a scale, floats across the groups (kernel_table.h).
// Codes that are signed bytes stay in the panel. For rows of floats it becomes a panel of floats (float_chunk-inl.h).
#pragma once

#include "penstock/kernels/cpu/gemm/block_codes-inl.h"
#include "penstock/kernels/cpu/gemm/block_tile-inl.h"
#include "penstock/kernels/cpu/gemm/float_chunk-inl.h"
#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/gemm/gemm_quantised-inl.h"
#include "penstock/kernels/cpu/tables.h"
#include "penstock/tensor/block_panels.h"

namespace penstock::kernels {
namespace {

// A chunk is made again for each block of rows: the more rows in a block, the less this costs.
constexpr int64_t kMaxBlockTiles = 32;

// A chunk as codes of 8 bits in the operand order of VDPBUSD, with the scales and minima of each group and output.
struct CodeChunk {
  alignas(64) std::byte codes[kChunkInputs * kPanelCols];
  alignas(64) float scales[kChunkInputs / 16][kPanelCols];
  alignas(64) float mins[kChunkInputs / 16][kPanelCols];
};

// How a tile multiplies codes: kMinima: code * scale + min; kOffset: (code - offset) * scale, with codes below 128;
// kSigned: (code - 128) * scale.
enum class CodeKind { kMinima, kOffset, kSigned };
template <class Codes>
constexpr CodeKind kKindOf = Codes::kHasMin          ? CodeKind::kMinima
                             : Codes::kOffset == 128 ? CodeKind::kSigned
                                                     : CodeKind::kOffset;

// The quads whose products Ints::DotSmallGroup adds; 0: a tile calls DotSmall or DotInt8. Codes are below 64 with an
// offset of 32, and below 32 with a smaller one.
template <class I, class Codes>
constexpr int kQuadsInSum = !I::kAddsPairs || Codes::kOffset == 128 ? 0
                            : Codes::kOffset == 32                  ? 2
                                                                    : 4;

// `kBytesOfGroup`: 0, or tiles read the codes in the panel, in blocks of one group with so many bytes.
template <class I, int kGroupSize, CodeKind kKindOfCodes, int kQuadsOfSum, int64_t kBytesOfGroup>
struct CodeSteps {
  using Ints = I;
  using Vec = typename I::Vec;
  // Sums of a group and of 128 inputs both stay in registers: 24 of 32. Tiles of 6 rows and 32 outputs load less than
  // those of 12 rows and 16 outputs, which took 1.12 to 1.21 times as long on Zen 5 with 16 and 64 rows.
  static constexpr int kRows = Vec::kPanelVecs == 2 ? I::kRows / 2 : I::kRows;
  static constexpr int kGroup = kGroupSize;
  static constexpr CodeKind kKind = kKindOfCodes;
  static constexpr int kQuads = kQuadsOfSum;
  static constexpr bool kInPlace = kBytesOfGroup > 0;
  static constexpr int64_t kGroupBytes = kInPlace ? kBytesOfGroup : kGroup * kPanelCols;
  // Signed codes are multiplied as unsigned ones, which are 128 too large.
  static constexpr bool kCorrects = kKind == CodeKind::kOffset || (kKind == CodeKind::kSigned && I::kDotsAreUnsigned);
};

// The term that each group of a row adds to all its outputs, for a chunk. kMinima: the sum of the row's codes, as a
// float. Else the start of an integer sum: -offset times that sum. If tiles compute it for their outputs, Q4_K and Q6_K
// take 1.06 to 1.12 times as long on Zen 5.
constexpr int64_t kTermBytes = kChunkInputs / 16 * 4;  // of a row

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

// Makes the terms of kInputs inputs of a row. `sums`: of each 16 codes (RowFormat::kInt8).
template <class Steps, int kInputs>
[[gnu::always_inline]] inline void MakeTermsOf(const std::byte* sums, int offset, std::byte* terms) {
  constexpr int kTermsBytes = kInputs / Steps::kGroup * 4;
  using Ints = typename VectorsOf<kTermsBytes>::Ints;
  using Floats = typename VectorsOf<kTermsBytes>::Floats;
  Ints of_groups;
  if constexpr (Steps::kGroup == kGroupInputs) {
    typename VectorsOf<kInputs / 8>::Words pairs;
    __builtin_memcpy(&pairs, sums, sizeof(pairs));
    of_groups = ((Ints)(pairs << 16) >> 16) + ((Ints)pairs >> 16);
  } else {
    typename VectorsOf<kInputs / 8>::Shorts own;
    __builtin_memcpy(&own, sums, sizeof(own));
    of_groups = __builtin_convertvector(own, Ints);
  }
  if constexpr (Steps::kKind == CodeKind::kMinima) {
    const Floats own = __builtin_convertvector(of_groups, Floats);
    __builtin_memcpy(terms, &own, sizeof(own));
  } else {
    of_groups *= -offset;
    __builtin_memcpy(terms, &of_groups, sizeof(of_groups));
  }
}
// Makes those of a chunk of `count` inputs.
template <class Steps>
[[gnu::always_inline]] inline void MakeTerms(const std::byte* sums, int64_t count, int offset, std::byte* terms) {
  if (count > kInt8Group) return MakeTermsOf<Steps, kChunkInputs>(sums, offset, terms);
  MakeTermsOf<Steps, kInt8Group>(sums, offset, terms);
}

template <class Steps, int kTileRows>
struct CodeTile {
  using I = typename Steps::Ints;
  using V = typename I::Vec;
  static constexpr int kVecs = V::kPanelVecs;
  static constexpr int kGroup = Steps::kGroup;

  [[gnu::always_inline]] static void Run(TileRun& run) {
    const auto* chunk = reinterpret_cast<const CodeChunk*>(run.w);
    for (int first_vec = 0; first_vec < kVecsPerPanel; first_vec += kVecs) {
      float* sums = run.sums + 16 * first_vec;
      const std::byte* terms = run.terms + run.first_row * kTermBytes;
      Int8Rows<kTileRows> x(run);
      for (int64_t k = run.begin; k < run.end; k += kInt8Group) {
        asm("" : "+r"(sums));  // see Int8Tile
        // Whole groups of 32 inputs as in BlockTile, also where scales are of 16: padding must not depend on the tile.
        const int64_t in_chunk = k - run.begin, groups_left = (run.end - k + kGroupInputs - 1) / kGroupInputs;
        const int64_t rest = groups_left < 4 ? groups_left * kGroupInputs : kInt8Group;
        V parts[kTileRows][kVecs];
        Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { parts[r][v] = V::Zero(); });
        });
        const std::byte* codes = run.codes + in_chunk / kGroup * Steps::kGroupBytes + 64 * first_vec;
        const float* scales = chunk->scales[in_chunk / kGroup] + 16 * first_vec;
        for (int64_t i = 0; i < rest; i += kGroup) {
          if (i % kGroupInputs == 0) run.next_chunk.Issue<Steps::kInPlace>();
          MultiplyGroup(codes, scales, x.codes, terms, parts);
          codes += Steps::kGroupBytes;
          scales += kPanelCols;
          x.codes.Advance(kGroup);
          terms += 4;
        }
        Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
          const V x_scale = V::Set(FloatAt(x.groups[r]));
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
            float* sum = sums + r * kPanelCols + 16 * v;
            Fma(parts[r][v], x_scale, V::Load(sum)).Store(sum);
          });
        });
        x.groups.Advance(sizeof(Int8RowGroup));
      }
    }
  }

 private:
  [[gnu::always_inline]] static void DotQuads(const std::byte* codes, const RowPointers<kTileRows>& x,
                                              I (&dots)[kTileRows][kVecs]) {
    RowPointers<kTileRows> row_codes = x;
    for (int i = 0; i < kGroup / 16; ++i) {
      Unrolled<4>([&](auto u) __attribute__((always_inline)) {
        typename I::Codes own[kVecs];
        Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
          own[v] = I::Load(codes + kQuadBytes * u + 64 * v);
          if constexpr (Steps::kInPlace) own[v] = I::Xor(own[v], 128);
        });
        Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
            if constexpr (Steps::kKind == CodeKind::kSigned) {
              dots[r][v] = I::DotInt8(own[v], row_codes[r] + 4 * u, dots[r][v]);
            } else {
              dots[r][v] = I::DotSmall(own[v], row_codes[r] + 4 * u, dots[r][v]);
            }
          });
        });
      });
      codes += 4 * kQuadBytes;
      row_codes.Advance(16);
    }
  }

  [[gnu::always_inline]] static void MultiplyGroup(const std::byte* codes, const float* scales,
                                                   const RowPointers<kTileRows>& x, const std::byte* terms,
                                                   V (&parts)[kTileRows][kVecs]) {
    I dots[kTileRows][kVecs];
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      I start = I::Zero();
      if constexpr (Steps::kCorrects) start = I::Same(terms + kTermBytes * r.value);
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { dots[r][v] = start; });
    });
    if constexpr (Steps::kQuads > 0) {
      I::template DotSmallGroup<kGroup, Steps::kQuads>(codes, x, dots);
    } else {
      DotQuads(codes, x, dots);
    }
    Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
      const V scale = V::Load(scales + 16 * v);
      V min;
      if constexpr (Steps::kKind == CodeKind::kMinima) {
        min = V::Load(scales + kChunkInputs / 16 * kPanelCols + 16 * v);  // CodeChunk::mins
      }
      Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
        parts[r][v] = Fma(dots[r][v].template ToFloats<V>(), scale, parts[r][v]);
        if constexpr (Steps::kKind == CodeKind::kMinima) {
          parts[r][v] = Fma(V::Set(FloatAt(terms + kTermBytes * r.value)), min, parts[r][v]);
        }
      });
    });
  }
};

// Stores the codes of half a block whose groups share bytes.
template <class I, class Codes, bool kAsSigned>
[[gnu::always_inline]] inline void StoreHalfBlock(const std::byte* block, int second, std::byte* target) {
  for (int quad = 0; quad < 8; ++quad) {
    Unrolled<kVecsPerPanel>([&](auto v) __attribute__((always_inline)) {
      typename I::Codes codes[4];
      Codes::Quads(block + 64 * v, second, quad, codes);
      Unrolled<4>([&](auto group) __attribute__((always_inline)) {
        if constexpr (kAsSigned && Codes::kOffset != 0) codes[group] = I::Subtract(codes[group], Codes::kOffset);
        __builtin_memcpy(target + kQuadBytes * (8 * group + quad) + 64 * v, &codes[group], 64);
      });
    });
  }
}

// Makes a CodeChunk from inputs [first, first + count) of a panel; `first` is a multiple of kChunkInputs. With
// `kAsSigned` codes are signed bytes without offset. With `kInPlace` they stay in the panel.
template <class I, WeightFormat kFormat, bool kAsSigned = false, bool kInPlace = false>
void MakeCodes(const std::byte* panel, int64_t first, int64_t count, NextChunk& next_chunk, CodeChunk* chunk) {
  using Codes = BlockCodes<I, kFormat>;
  constexpr int64_t kBytes = BlockBytes(kFormat) * kPanelCols, kElements = BlockElements(kFormat);
  panel += first / kElements * kBytes;
  std::byte* codes = chunk->codes;
  typename Codes::Scales scales{};
  for (int64_t k = 0; k < count; k += kGroupInputs) {
    const std::byte* block = panel + k / kElements * kBytes;
    const int group = static_cast<int>(k % kElements / kGroupInputs), second = group / 4;
    if (group == 0) scales = typename Codes::Scales(block);
    next_chunk.Issue<kInPlace>();
    for (int half = 0; half < kGroupInputs / Codes::kGroup; ++half) {
      const int64_t idx = k / Codes::kGroup + half;
      for (int v = 0; v < kVecsPerPanel; ++v) {
        scales.Scale(v, second, group % 4, half).Store(chunk->scales[idx] + 16 * v);
        if constexpr (Codes::kHasMin) scales.Min(v, second, group % 4, half).Store(chunk->mins[idx] + 16 * v);
      }
    }
    if constexpr (kSharesBytes<Codes>) {
      if (group % 4 == 0) StoreHalfBlock<I, Codes, kAsSigned>(block, second, codes);
      codes += 8 * kQuadBytes;
    } else {
      for (int half = 0; !kInPlace && half < 2; ++half) {
        Unrolled<4>([&](auto i) __attribute__((always_inline)) {
          Unrolled<kVecsPerPanel>([&](auto v) __attribute__((always_inline)) {
            typename I::Codes quad = Codes::Quad(block + 64 * v, second, group % 4, half, i.value);
            if constexpr (kAsSigned && Codes::kOffset != 0) quad = I::Subtract(quad, Codes::kOffset);
            __builtin_memcpy(codes + kQuadBytes * i + 64 * v, &quad, 64);
          });
        });
        codes += 4 * kQuadBytes;
      }
    }
  }
}

// RunChunksGemm has the same loop. One loop for both took 64 rows of Q4_K from 1677 to 1862 us and of Q6_K from 1742 to
// 2121. `chunk_bytes`: of kChunkInputs in the panel. `codes_begin`: of a block, if tiles read its codes there.
template <class Steps>
void RunCodesGemm(const GemmArgs& args, void (*make_codes)(const std::byte*, int64_t, int64_t, NextChunk&, CodeChunk*),
                  int64_t chunk_bytes, int offset, int64_t codes_begin) {
  CodeChunk chunk;
  constexpr bool kHasTerms = Steps::kCorrects || Steps::kKind == CodeKind::kMinima;
  constexpr int64_t kMaxTilesOfBlock = kMaxBlockTiles * Steps::Ints::kRows / Steps::kRows;
  alignas(64) std::byte terms[kHasTerms ? kMaxTilesOfBlock * Steps::kRows * kTermBytes : 1];
  const int64_t num_row_groups = (args.inner_dim + kInt8Group - 1) / kInt8Group;
  const std::byte* const code_sums =
      args.x + num_row_groups * (kInt8Group + static_cast<int64_t>(sizeof(Int8RowGroup)));
  ForEachPanel<Steps, kMaxTilesOfBlock>(args, [&](const TileBlock& block, int64_t panel, float* sums) {
    __builtin_memset(sums, 0, static_cast<size_t>(block.num_rows() * kPanelCols) * sizeof(float));
    for (int64_t first = 0; first < args.inner_dim; first += kChunkInputs) {
      const int64_t inputs_left = args.inner_dim - first;
      const int64_t count = inputs_left < kChunkInputs ? inputs_left : kChunkInputs;
      const std::byte* own = args.w + panel * args.panel_bytes + first / kChunkInputs * chunk_bytes;
      NextChunk next_chunk = NextChunk::For(own + chunk_bytes, chunk_bytes, 8 * (1 + block.num_tiles));
      make_codes(args.w + panel * args.panel_bytes, first, count, next_chunk, &chunk);
      for (int64_t row = 0; kHasTerms && row < block.num_rows(); ++row) {
        MakeTerms<Steps>(code_sums + (block.first_row + row) * args.x_stride_bytes + first / 8, count, offset,
                         terms + row * kTermBytes);
      }
      TileRun run = {.x = args.x + block.first_row * args.x_stride_bytes,
                     .x_stride_bytes = args.x_stride_bytes,
                     .w = reinterpret_cast<const std::byte*>(&chunk),
                     .inner_dim = args.inner_dim,
                     .begin = first,
                     .end = first + count,
                     .sums = sums,
                     .prefetch = {.ahead = 0, .lines = 1, .is_near = true},
                     .terms = terms,
                     .codes = Steps::kInPlace ? own + codes_begin : chunk.codes,
                     .next_chunk = next_chunk};
      RunTiles<Steps, CodeTile, Steps::kRows>(block.num_larger, block.min_rows + 1, run);
      RunTiles<Steps, CodeTile, Steps::kRows>(block.num_tiles - block.num_larger, block.min_rows, run);
    }
    StorePanel<typename Steps::Vec>(args, block.first_row, block.num_rows(), panel, sums);
  });
}

// More rows read chunks. With AVX-512, chunks pay earlier if codes stay in place or take many operations to unpack.
// Time of 8 rows with chunks on Zen 4: q8_0 0.74, q3_k 0.78, nvfp4 0.84, q6_k 0.86, q2_k and q5_k 0.95, q4_k 1.09,
// other formats 1.1 to 1.25. With AVX2 they take as long, and q8_0 1.1 times.
template <class I, WeightFormat kFormat, bool kInPlace>
constexpr int64_t kMaxFewRows = I::Vec::kPanelVecs == 1 ? kFewRows
                                : kInPlace || kFormat == WeightFormat::kQ3_K || kFormat == WeightFormat::kNvfp4 ? 4
                                : HasQuadWords(kFormat) && kFormat != WeightFormat::kQ4_K                       ? 6
                                                                                          : kFewRows;

template <class I, WeightFormat kFormat>
void RunBlockCodesGemm(const GemmArgs& args) {
  if constexpr (kFormat != WeightFormat::kFp8) {
    using Codes = BlockCodes<I, kFormat>;
    constexpr bool kInPlace = kFormat == WeightFormat::kQ8_0;
    if (args.num_rows <= kMaxFewRows<I, kFormat, kInPlace>) return RunGemm<BlockSteps<I, kFormat>, BlockTile>(args);
    constexpr int64_t kBytesOfBlock = BlockBytes(kFormat) * kPanelCols;
    using Steps = CodeSteps<I, Codes::kGroup, kKindOf<Codes>, kQuadsInSum<I, Codes>, kInPlace ? kBytesOfBlock : 0>;
    RunCodesGemm<Steps>(args, MakeCodes<I, kFormat, false, kInPlace>,
                        kChunkInputs / BlockElements(kFormat) * kBytesOfBlock, Codes::kOffset,
                        kBytesOfBlock - kGroupInputs * kPanelCols);
  }
}

// REQUIRES: kInt8 rows and a block format that they go with.
template <class I>
void GemmOfBlockCodes(const GemmArgs& args) {
  switch (args.w_format) {
#define PENSTOCK_SLOW_BLOCK_FORMAT(...)
#define PENSTOCK_BLOCK_FORMAT(format, ...) \
  case WeightFormat::k##format:            \
    return RunBlockCodesGemm<I, WeightFormat::k##format>(args);
#include "penstock/tensor/weight_formats.def"
    default: return;
  }
}

// REQUIRES: kInt8 rows. Does not ask the table of formats, which units with instruction set flags would export.
template <class I>
void GemmOfRowCodes(const GemmArgs& args) {
  switch (args.w_format) {
    case WeightFormat::kInt8:
    case WeightFormat::kHqq4:
    case WeightFormat::kHqq3:
    case WeightFormat::kHqq2:
    case WeightFormat::kTernary: return GemmOfCodes<I>(args);
    default: return GemmOfBlockCodes<I>(args);
  }
}

template <class Steps>
void RunChunksGemm(const GemmArgs& args, MakeChunkFunction make_chunk, bool as_bf16) {
  alignas(64) std::byte weights[kChunkInputs * kPanelCols * sizeof(float)];
  ForEachPanel<Steps, kMaxBlockTiles>(args, [&](const TileBlock& block, int64_t panel, float* sums) {
    __builtin_memset(sums, 0, static_cast<size_t>(block.num_rows() * kPanelCols) * sizeof(float));
    for (int64_t first = 0; first < args.inner_dim; first += kChunkInputs) {
      const int64_t inputs_left = args.inner_dim - first;
      const int64_t count = inputs_left < kChunkInputs ? inputs_left : kChunkInputs;
      make_chunk(args.w + panel * args.panel_bytes, first, count, as_bf16, weights);
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

// REQUIRES: rows of floats, and codes or blocks.
template <class V>
void GemmOfChunks(const GemmArgs& args, MakeChunkFunction make_chunk) {
  if (args.x_format == RowFormat::kBF16) {
    return RunChunksGemm<FloatSteps<V, WeightFormat::kBF16>>(args, make_chunk, true);
  }
  RunChunksGemm<FloatSteps<V, WeightFormat::kF32>>(args, make_chunk, false);
}

}  // namespace
}  // namespace penstock::kernels
