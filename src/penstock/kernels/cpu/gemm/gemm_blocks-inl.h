// GEMM over panels of block formats (tensor/block_panels.h), and of all codes for rows of floats.
//
// With few rows of codes, tiles unpack the weights as they read them. Otherwise a chunk of 256 inputs of 32 outputs is
// unpacked once, and the tiles of all rows pass over it while it lies in the cache. For rows of codes it becomes codes
// of 8 bits: exact integer sums within a group of inputs that share a scale, floats across the groups (kernel_table.h).
// Codes that take few operations to unpack stay in the panel, and only their scales are unpacked once. For rows of
// floats it becomes a panel of floats (float_chunk-inl.h).
#pragma once

#include "penstock/kernels/cpu/gemm/block_codes-inl.h"
#include "penstock/kernels/cpu/gemm/block_tile-inl.h"
#include "penstock/kernels/cpu/gemm/codebook_codes-inl.h"
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
  alignas(64) float mins[kChunkInputs / 16][kPanelCols];        // or, with kSplitsSigns, where integer sums start
  alignas(64) std::byte below_zero[kChunkInputs * kPanelCols];  // with kSplitsSigns; then `codes` are absolute values
};
constexpr int64_t kBelowZero = offsetof(CodeChunk, below_zero) - offsetof(CodeChunk, codes);

// How a tile multiplies codes: kMinima: code * scale + min; kOffset: (code - offset) * scale, with codes below 128;
// kSigned: (code - 128) * scale.
enum class CodeKind { kMinima, kOffset, kSigned };
template <class Codes>
constexpr CodeKind kKindOf = Codes::kHasMin          ? CodeKind::kMinima
                             : Codes::kOffset == 128 ? CodeKind::kSigned
                                                     : CodeKind::kOffset;

// Whether signed codes are multiplied by Ints::DotSplit.
template <class I, class Codes>
constexpr bool kSplitsSigns = Codes::kOffset == 128 && I::kAddsPairs;

// The quads whose products Ints::Pairs adds in 16 bits; 0: a tile calls DotSmall, DotInt8 or DotSplit.
template <class I, class Codes>
constexpr int kQuadsInSum = I::kAddsPairs ? QuadsInPairs(Codes::kMaxCode, Codes::kGroup) : 0;

// Whether tiles unpack codes as they read them in the panel. With AVX-512 one or two operations for 64 codes run beside
// the products, while stores of unpacked codes hold them up. On Zen 4 16 rows take 0.87 (q4_0) to 0.92 (mxfp4) of the
// time, and 64 rows 0.95 to 1.00. The codes of q5_0 and q5_1, with a fifth bit, lose 5 to 7 % with 64 rows.
template <class I, WeightFormat kFormat>
constexpr bool kUnpacksInTiles =
    !I::kAddsPairs && (kFormat == WeightFormat::kQ8_0 ||
                       I::Vec::kPanelVecs == 2 && (kFormat == WeightFormat::kQ4_0 || kFormat == WeightFormat::kQ4_1 ||
                                                   kFormat == WeightFormat::kU4 || kFormat == WeightFormat::kMxfp4 ||
                                                   kFormat == WeightFormat::kIq4_Nl ||
                                                   kFormat == WeightFormat::kIq4_Xs || kFormat == WeightFormat::kQ4_K));

// The groups that tiles unpack at a time: two of Q4_K share their bytes. The second may lie behind the last input: its
// block has scales for it, and rows are padded with zeros.
template <WeightFormat kFormat>
constexpr int kGroupsAtOnce = kFormat == WeightFormat::kQ4_K ? 2 : 1;

// `kFormat`: the format of codes that tiles unpack, or kF32 if they read codes of 8 bits.
template <class I, int kGroupSize, CodeKind kKindOfCodes, int kQuadsOfSum, WeightFormat kFormat>
struct CodeSteps {
  using Ints = I;
  using Vec = typename I::Vec;
  // With AVX-512 the sums of a group, of 128 inputs and of a chunk stay in registers: 24 of 32. A store of 64 bytes
  // costs as much as a product there. Tiles of 6 rows, which store their sums every 128 inputs, take 1.03 times as long
  // on Zen 4.
  static constexpr int kRows = I::kAddsPairs ? kRowsOfPairs : Vec::kPanelVecs == 2 ? 4 : I::kRows;
  static constexpr bool kKeepsSums = Vec::kPanelVecs == 2;
  static constexpr int kGroup = kGroupSize;
  static constexpr CodeKind kKind = kKindOfCodes;
  static constexpr int kQuads = kQuadsOfSum;
  static constexpr WeightFormat kWeights = kFormat;
  static constexpr bool kInPlace = kFormat != WeightFormat::kF32;
  static constexpr bool kSplits = I::kAddsPairs && kKind == CodeKind::kSigned;
  // Signed codes are multiplied as unsigned ones, which are 128 too large.
  static constexpr bool kCorrects = kKind == CodeKind::kOffset || (kKind == CodeKind::kSigned && I::kDotsAreUnsigned);
};

// The term that each group of a row adds to all its outputs, for a chunk. kMinima: the sum of the row's codes, as a
// float. Else the start of an integer sum: -offset times that sum. If tiles compute it for their outputs, Q4_K and Q6_K
// take 1.06 to 1.12 times as long on Zen 5.
constexpr int64_t kTermBytes = kChunkInputs / 16 * 4;  // of a row

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
  static constexpr int kAtOnce = kGroupsAtOnce<Steps::kWeights>;
  // From one group's codes to the next one's. IQ4_XS has eight groups in a block.
  static constexpr int64_t kGroupBytes = !Steps::kInPlace ? kGroup * kPanelCols
                                         : BlockElements(Steps::kWeights) == kGroup
                                             ? BlockBytes(Steps::kWeights) * kPanelCols
                                             : 4 * kQuadBytes;

  [[gnu::always_inline]] static void Run(TileRun& run) {
    const auto* chunk = reinterpret_cast<const CodeChunk*>(run.w);
    for (int first_vec = 0; first_vec < kVecsPerPanel; first_vec += kVecs) {
      float* stored = run.sums + 16 * first_vec;
      const std::byte* terms = run.terms + run.first_row * kTermBytes;
      Int8Rows<kTileRows> x(run);
      V sums[kTileRows][kVecs];
      if constexpr (Steps::kKeepsSums) LoadSums(stored, sums);
      for (int64_t k = run.begin; k < run.end; k += kInt8Group) {
        if constexpr (!Steps::kKeepsSums) asm("" : "+r"(stored));  // see Int8Tile
        // Whole groups of 32 inputs as in BlockTile, also where scales are of 16: padding must not depend on the tile.
        const int64_t in_chunk = k - run.begin, groups_left = (run.end - k + kGroupInputs - 1) / kGroupInputs;
        const int64_t rest = groups_left < 4 ? groups_left * kGroupInputs : kInt8Group;
        V parts[kTileRows][kVecs];
        Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { parts[r][v] = V::Zero(); });
        });
        const float* scales = chunk->scales[in_chunk / kGroup] + 16 * first_vec;
        const std::byte* codes = run.codes + 64 * first_vec + in_chunk / kGroup * kGroupBytes;
        for (int64_t i = 0; i < rest; i += kAtOnce * kGroup) {
          if constexpr (kAtOnce == 2) codes = WordsOfTwo(run.codes + 64 * first_vec, in_chunk + i);
          Unrolled<kAtOnce>([&](auto own) __attribute__((always_inline)) {
            if ((i + own * kGroup) % kGroupInputs == 0) run.next_chunk.Issue<Steps::kWeights == WeightFormat::kQ8_0>();
            // Else GCC would keep words that groups share in registers, and sums in memory.
            if constexpr (kAtOnce > 1) asm("" : "+r"(codes));
            MultiplyGroup<own>(codes, scales, x.codes, terms, parts);
            if constexpr (kAtOnce == 1) codes += kGroupBytes;
            scales += kPanelCols;
            x.codes.Advance(kGroup);
            terms += 4;
          });
        }
        Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
          const V x_scale = V::Set(FloatAt(x.groups[r]));
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
            float* sum = stored + r * kPanelCols + 16 * v;
            if constexpr (Steps::kKeepsSums) {
              sums[r][v] = Fma(parts[r][v], x_scale, sums[r][v]);
            } else {
              Fma(parts[r][v], x_scale, V::Load(sum)).Store(sum);
            }
          });
        });
        x.groups.Advance(sizeof(Int8RowGroup));
      }
      if constexpr (Steps::kKeepsSums) StoreSums(sums, stored);
    }
  }

 private:
  [[gnu::always_inline]] static void LoadSums(const float* stored, V (&sums)[kTileRows][kVecs]) {
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v)
                          __attribute__((always_inline)) { sums[r][v] = V::Load(stored + r * kPanelCols + 16 * v); });
    });
  }
  [[gnu::always_inline]] static void StoreSums(const V (&sums)[kTileRows][kVecs], float* stored) {
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v)
                          __attribute__((always_inline)) { sums[r][v].Store(stored + r * kPanelCols + 16 * v); });
    });
  }

  // Returns the first word of the two groups that begin at `input` of a chunk.
  [[gnu::always_inline]] static const std::byte* WordsOfTwo(const std::byte* chunk, int64_t input) {
    const int64_t word = input / kInt8Group * QuadWordsOf(Steps::kWeights, 1, 0).low + input / (2 * kGroup) % 2;
    return chunk + BlockCodes<I, Steps::kWeights>::kWords + kQuadBytes * word;
  }

  template <int kOwn, int kQuad>
  [[gnu::always_inline]] static typename I::Codes QuadOfSixteen(const std::byte* codes, int sixteen) {
    if constexpr (kAtOnce == 2) {
      return HalfOf<I>(I::Load(codes + kAtOnce * kQuadBytes * (4 * sixteen + kQuad)), kOwn);
    } else if constexpr (Steps::kInPlace) {
      return BlockCodes<I, Steps::kWeights>::Quad(codes, 0, 0, sixteen, kQuad);
    } else {
      return I::Load(codes + kQuadBytes * (4 * sixteen + kQuad));
    }
  }

  template <int kOwn>
  [[gnu::always_inline]] static void DotQuads(const std::byte* codes, const RowPointers<kTileRows>& x,
                                              I (&dots)[kTileRows][kVecs]) {
    RowPointers<kTileRows> row_codes = x;
    for (int sixteen = 0; sixteen < kGroup / 16; ++sixteen) {
      Unrolled<4>([&](auto u) __attribute__((always_inline)) {
        typename I::Codes own[kVecs];
        Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
          own[v] = QuadOfSixteen<kOwn, u>(codes + 64 * v, sixteen);
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
      row_codes.Advance(16);
    }
  }

  // `starts`: of the integer sums (CodeChunk::mins).
  [[gnu::always_inline]] static void DotSplitQuads(const std::byte* codes, const float* starts,
                                                   const RowPointers<kTileRows>& x, I (&dots)[kTileRows][kVecs]) {
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      dots[r][0] = I::LoadSums(reinterpret_cast<const std::byte*>(starts));
    });
    Unrolled<kGroup / 4>([&](auto i) __attribute__((always_inline)) {
      const auto values = I::Load(codes + kQuadBytes * i), below_zero = I::Load(codes + kBelowZero + kQuadBytes * i);
      Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
        dots[r][0] = I::DotSplit(values, below_zero, x[r] + 4 * i, dots[r][0]);
      });
    });
  }

  [[gnu::always_inline]] static void AddPairs(const std::byte* codes, const RowPointers<kTileRows>& x,
                                              I (&dots)[kTileRows][kVecs]) {
    constexpr int kQuads = Steps::kQuads;
    Unrolled<kGroup / 4 / kQuads>([&](auto step) __attribute__((always_inline)) {
      typename I::Pairs pairs[kTileRows];
      Unrolled<kQuads>([&](auto i) __attribute__((always_inline)) {
        const auto own = I::Load(codes + kQuadBytes * (kQuads * step + i));
        Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
          const std::byte* four = x[r] + 4 * (kQuads * step + i);
          i == 0 ? pairs[r].Start(own, four) : pairs[r].Add(own, four);
        });
      });
      Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) { dots[r][0] = pairs[r].AddedTo(dots[r][0]); });
    });
  }

  // `kOwn`: which of the groups that lie together.
  template <int kOwn>
  [[gnu::always_inline]] static void MultiplyGroup(const std::byte* codes, const float* scales,
                                                   const RowPointers<kTileRows>& x, const std::byte* terms,
                                                   V (&parts)[kTileRows][kVecs]) {
    I dots[kTileRows][kVecs];
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      I start = I::Zero();
      if constexpr (Steps::kCorrects) start = I::Same(terms + kTermBytes * r.value);
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { dots[r][v] = start; });
    });
    if constexpr (Steps::kSplits) {
      DotSplitQuads(codes, scales + kChunkInputs / 16 * kPanelCols, x, dots);
    } else if constexpr (Steps::kQuads > 0) {
      AddPairs(codes, x, dots);
    } else {
      DotQuads<kOwn>(codes, x, dots);
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
        I::Store(codes[group], target + kQuadBytes * (8 * group + quad) + 64 * v);
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
  constexpr int64_t kStep = kInPlace ? kGroupsAtOnce<kFormat> * kGroupInputs : kGroupInputs;
  for (int64_t k = 0; k < (count + kStep - 1) / kStep * kStep; k += kGroupInputs) {
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
    if constexpr (kInPlace) {
      continue;
    } else if constexpr (kSharesBytes<Codes>) {
      if (group % 4 == 0) StoreHalfBlock<I, Codes, kAsSigned>(block, second, codes);
      codes += 8 * kQuadBytes;
    } else if constexpr (IsCodebookOrTernary(kFormat)) {
      StoreGroup<I, Codes, kAsSigned>(block, group, codes);
      codes += 8 * kQuadBytes;
    } else {
      [[maybe_unused]] I starts[kVecsPerPanel] = {I::Zero(), I::Zero()};
      for (int half = 0; half < 2; ++half) {
        Unrolled<4>([&](auto i) __attribute__((always_inline)) {
          Unrolled<kVecsPerPanel>([&](auto v) __attribute__((always_inline)) {
            typename I::Codes quad = Codes::Quad(block + 64 * v, second, group % 4, half, i.value);
            if constexpr (kAsSigned && Codes::kOffset != 0) quad = I::Subtract(quad, Codes::kOffset);
            std::byte* const target = codes + kQuadBytes * i + 64 * v;
            if constexpr (kSplitsSigns<I, Codes>) {
              I::StoreSplit(quad, target, target + kBelowZero, starts[v]);
            } else {
              I::Store(quad, target);
            }
          });
        });
        codes += 4 * kQuadBytes;
      }
      if constexpr (kSplitsSigns<I, Codes>) {
        for (int v = 0; v < kVecsPerPanel; ++v) {
          I::StoreSums(starts[v], reinterpret_cast<std::byte*>(chunk->mins[k / kGroupInputs] + 16 * v));
        }
      }
    }
  }
}

// RunChunksGemm has the same loop. One loop for both took 64 rows of Q4_K from 1677 to 1862 us and of Q6_K from 1742 to
// 2121. `chunk_bytes`: of kChunkInputs in the panel.
template <class Steps>
void RunCodesGemm(const GemmArgs& args, void (*make_codes)(const std::byte*, int64_t, int64_t, NextChunk&, CodeChunk*),
                  int64_t chunk_bytes, int offset) {
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
                     .codes = Steps::kInPlace ? own : chunk.codes,
                     .next_chunk = next_chunk};
      RunTiles<Steps, CodeTile, Steps::kRows>(block.num_larger, block.min_rows + 1, run);
      RunTiles<Steps, CodeTile, Steps::kRows>(block.num_tiles - block.num_larger, block.min_rows, run);
    }
    StorePanel<typename Steps::Vec>(args, block.first_row, block.num_rows(), panel, sums);
  });
}

// More rows read chunks, which pay earlier if codes take many operations to unpack, or with AVX-512 if they stay in
// place. Time of 8 rows with chunks on Zen 4: with AVX-512 q8_0 0.74, nvfp4 0.82, q4_k 0.90, q3_k 0.91, q5_k 0.95,
// other formats 1.02 to 1.14; with AVX2 q8_0, q4_0 and q4_1 1.02 to 1.07, other formats 0.63 (nvfp4) to 0.95 (q4_k).
template <class I>
constexpr int64_t MaxFewRows(WeightFormat format) {
  using enum WeightFormat;
  constexpr int64_t kOneTile = kFewRows / 2;
  const bool is_simple = format == kQ8_0 || format == kQ4_0 || format == kQ4_1 || format == kU4;
  if (I::kAddsPairs) return is_simple ? kFewRows : kOneTile;
  if (I::Vec::kPanelVecs == 1) return kFewRows;
  if (format == kQ8_0 || format == kQ3_K || format == kQ4_K || format == kNvfp4) return kOneTile;
  return format == kQ5_K ? 6 : kFewRows;
}

template <class I, WeightFormat kFormat>
void RunBlockCodesGemm(const GemmArgs& args) {
  if constexpr (kFormat != WeightFormat::kFp8) {
    using Codes = BlockCodes<I, kFormat>;
    constexpr bool kInPlace = kUnpacksInTiles<I, kFormat>;
    if constexpr (!IsCodebookOrTernary(kFormat)) {
      if (args.num_rows <= MaxFewRows<I>(kFormat)) {
        if constexpr (kUnpacksOnceForFewRows<I, kFormat>) {
          if (args.num_rows <= kFewRows / 2) return RunGemm<BlockSteps<I, kFormat, true>, BlockTile>(args);
        }
        return RunGemm<BlockSteps<I, kFormat>, BlockTile>(args);
      }
    }
    constexpr int64_t kBytesOfBlock = BlockBytes(kFormat) * kPanelCols;
    using Steps =
        CodeSteps<I, Codes::kGroup, kKindOf<Codes>, kQuadsInSum<I, Codes>, kInPlace ? kFormat : WeightFormat::kF32>;
    RunCodesGemm<Steps>(args, MakeCodes<I, kFormat, false, kInPlace>,
                        kChunkInputs / BlockElements(kFormat) * kBytesOfBlock, Codes::kOffset);
  }
}

// REQUIRES: kInt8 rows and IsCodebookOrTernary(args.w_format).
template <class I>
void GemmOfCodebooks(const GemmArgs& args) {
  switch (args.w_format) {
#define PENSTOCK_CODEBOOK_BLOCK_FORMAT(format, ...) \
  case WeightFormat::k##format:                     \
    return RunBlockCodesGemm<I, WeightFormat::k##format>(args);
#include "penstock/tensor/weight_formats.def"
    default: return;
  }
}

// REQUIRES: kInt8 rows and a block format that they go with.
template <class I>
void GemmOfBlockCodes(const GemmArgs& args) {
  switch (args.w_format) {
#define PENSTOCK_BLOCK_FORMAT(format, ...) \
  case WeightFormat::k##format:            \
    return RunBlockCodesGemm<I, WeightFormat::k##format>(args);
#include "penstock/tensor/weight_formats.def"
    default: return;
  }
}

// int8 weights, with the signs split for all tiles of a block of rows.
template <class I>
void RunSplitInt8Gemm(const GemmArgs& args) {
  using Steps = SplitInt8Steps<I>;
  ForEachPanel<Steps, kMaxBlockTiles>(args, [&](const TileBlock& block, int64_t panel, float* sums) {
    __builtin_memset(sums, 0, static_cast<size_t>(block.num_rows() * kPanelCols) * sizeof(float));
    SplitInt8Block split;
    const std::byte* own = args.w + panel * args.panel_bytes;
    for (int64_t first = 0; first < args.inner_dim; first += kInt8Group, own += kInt8BlockBytes) {
      NextChunk next_chunk =
          NextChunk::For(own + kInt8BlockBytes, kInt8BlockBytes, kCallsOfSplit + 4 * block.num_tiles);
      SplitInt8<I>(own, next_chunk, &split);
      TileRun run = {.x = args.x + block.first_row * args.x_stride_bytes,
                     .x_stride_bytes = args.x_stride_bytes,
                     .w = reinterpret_cast<const std::byte*>(&split),
                     .inner_dim = args.inner_dim,
                     .begin = first,
                     .end = first + kInt8Group,
                     .sums = sums,
                     .prefetch = {.ahead = 0, .lines = 0},
                     .next_chunk = next_chunk};
      RunTiles<Steps, Int8Tile, Steps::kRows>(block.num_larger, block.min_rows + 1, run);
      RunTiles<Steps, Int8Tile, Steps::kRows>(block.num_tiles - block.num_larger, block.min_rows, run);
    }
    StorePanel<typename Steps::Vec>(args, block.first_row, block.num_rows(), panel, sums);
  });
}

// REQUIRES: kInt8 rows. Does not ask the table of formats, which units with instruction set flags would export.
template <class I>
void GemmOfRowCodes(const GemmArgs& args) {
  switch (args.w_format) {
    case WeightFormat::kInt8:
      if constexpr (I::kAddsPairs) {
        if (args.num_rows > kFewRows / 2) return RunSplitInt8Gemm<I>(args);
      }
      return GemmOfCodes<I>(args);
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
