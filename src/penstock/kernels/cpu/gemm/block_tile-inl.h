// A tile of few rows of codes times a panel of a block format: it unpacks the weights as it reads them, from the
// panel's first byte to its last. Memory is the limit then.
#pragma once

#include "penstock/kernels/cpu/gemm/block_codes-inl.h"
#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/gemm/gemm_quantised-inl.h"

namespace penstock::kernels {
namespace {

// Tiles of half as many rows multiply so few rows without a chunk.
constexpr int64_t kFewRows = 8;

// Few rows: memory is the limit. A tile unpacks codes as it goes, so that it asks for memory evenly. Copies in the
// cache cost a fifth of the speed at one row.
//
// A tile of one row takes the sums of all four groups that share bytes at a time, so that a byte is read and unpacked
// once. More rows have too few registers for it: with 4 rows on Zen 4 it took 1.04 (q5_k) to 1.18 times (q2_k) as long.
// Only q6_k, whose codes take most operations to unpack, gains with 4 rows: 0.87. Two tiles of it lose again.
template <class I, WeightFormat kFormat>
constexpr bool kUnpacksOnceForFewRows = I::Vec::kPanelVecs == 2 && kFormat == WeightFormat::kQ6_K;

template <class I, WeightFormat kFormat, bool kHasOneTileOfRows = false>
struct BlockSteps {
  using Ints = I;
  using Vec = typename I::Vec;
  static constexpr WeightFormat kWeights = kFormat;
  static constexpr bool kUnpacksOnce = kHasOneTileOfRows && kUnpacksOnceForFewRows<I, kFormat>;
  static constexpr int kRows = I::kRows < kFewRows / 2 ? I::kRows : kFewRows / 2;
  static constexpr int64_t kBlockInputs = BlockElements(kFormat) < kInt8Group ? kInt8Group : BlockElements(kFormat);
  static constexpr int64_t kBlockBytes = kBlockInputs / BlockElements(kFormat) * BlockBytes(kFormat) * kPanelCols;
};

template <class Steps, int kTileRows>
struct BlockTile {
  using I = typename Steps::Ints;
  using V = typename I::Vec;
  using Codes = BlockCodes<I, Steps::kWeights>;
  static constexpr int kVecs = V::kPanelVecs;
  static constexpr int64_t kElements = BlockElements(Steps::kWeights);
  static constexpr int64_t kOwnBytes = BlockBytes(Steps::kWeights) * kPanelCols;
  // The bytes of 128 inputs, and whether each of four groups calls Prefetch::Issue twice; a call covers 512 bytes.
  static constexpr int64_t kGroupBytes = Steps::kBlockBytes * kInt8Group / Steps::kBlockInputs;
  static constexpr bool kAsksTwice = kGroupBytes > 5 * Prefetch::kBytes;
  // Scales lie before their codes, and a processor asks ahead for bytes that are read in order. On Zen 4, 4 rows of
  // q8_0 take 0.89 of the time if scales are read first. With AVX2, which has too few registers, one row takes 1.05 of
  // it.
  static constexpr bool kReadsScalesFirst = Codes::kGroup == kGroupInputs && kVecs == 2;
  // The quads of codes between two calls of SumsOfSmall::Flush. 0: signed codes, which do without it.
  static constexpr int kQuadsInPairs = I::kAddsPairs ? QuadsInPairs(Codes::kMaxCode, Codes::kGroup) : Codes::kGroup / 4;
  // Registers hold the sums of four groups at a time.
  static constexpr bool kHasAllSums = kSharesBytes<Codes> && (kTileRows == 1 || Steps::kUnpacksOnce);

  [[gnu::always_inline]] static void Run(TileRun& run) {
    const int64_t num_groups = (run.inner_dim + kInt8Group - 1) / kInt8Group;
    typename Codes::Scales scales{};
    const std::byte* w = run.w;
    Int8Rows<kTileRows> x(run);
    RowPointers<kTileRows> code_sums(
        run.x + num_groups * (kInt8Group + static_cast<int64_t>(sizeof(Int8RowGroup))) + run.begin / 8,
        run.x_stride_bytes);
    float* sums = run.sums;
    for (int64_t k = run.begin; k < run.end; k += kInt8Group) {
      asm("" : "+r"(sums));  // see Int8Tile
      const int64_t rest = run.inner_dim - k;
      const int num_of_four = rest < kInt8Group ? static_cast<int>((rest + kGroupInputs - 1) / kGroupInputs) : 4;
      const bool is_second = kElements > kInt8Group && (k - run.begin) % kElements != 0;
      run.prefetch.StartGroupAt(is_second ? w + kGroupBytes : w);
      if (kElements > kInt8Group && !is_second) scales = typename Codes::Scales(w);
      // All outputs of these inputs: the panel is read once and in order.
      Unrolled<kVecsPerPanel / kVecs>([&](auto pass) __attribute__((always_inline)) {
        constexpr int kFirstVec = kVecs * pass;
        if constexpr (kHasAllSums) {
          constexpr int kVecsAtOnce = kTileRows == 1 ? kVecs : 1;
          Unrolled<kVecs / kVecsAtOnce>([&](auto part) __attribute__((always_inline)) {
            MultiplyHalfBlock<kVecsAtOnce, pass + part == 0>(w, scales, is_second ? 1 : 0,
                                                             kFirstVec + part * kVecsAtOnce, x, code_sums, run.prefetch,
                                                             sums + 16 * (kFirstVec + part * kVecsAtOnce));
          });
        } else {
          Multiply128<pass == 0>(w, scales, is_second ? 1 : 0, num_of_four, kFirstVec, x, code_sums, run.prefetch,
                                 sums + 16 * kFirstVec);
        }
      });
      x.codes.Advance(kInt8Group);
      x.groups.Advance(sizeof(Int8RowGroup));
      code_sums.Advance(16);
      if (kElements <= kInt8Group || is_second) w += Steps::kBlockBytes;
    }
  }

 private:
  // The scales and minima of a group.
  template <int kVecsAtOnce>
  struct GroupScales {
    V scale[kVecsAtOnce];
    V min[Codes::kHasMin ? kVecsAtOnce : 1];

    GroupScales() = default;
    [[gnu::always_inline]] GroupScales(const typename Codes::Scales& scales, int second, int group, int half,
                                       int first_vec) {
      Unrolled<kVecsAtOnce>([&](auto v) __attribute__((always_inline)) {
        scale[v] = scales.Scale(first_vec + v, second, group, half);
        if constexpr (Codes::kHasMin) min[v] = scales.Min(first_vec + v, second, group, half);
      });
    }
  };

  // Multiplies half a block of 256 whose groups share bytes, by `kVecsAtOnce` vectors of outputs. All integer sums come
  // first, so that each byte is read once.
  template <int kVecsAtOnce, bool kAsks>
  [[gnu::always_inline]] static void MultiplyHalfBlock(const std::byte* w, const typename Codes::Scales& scales,
                                                       int second, int first_vec, const Int8Rows<kTileRows>& x,
                                                       const RowPointers<kTileRows>& code_sums, Prefetch& prefetch,
                                                       float* sums) {
    constexpr int kSumsOfGroup = kGroupInputs / Codes::kGroup, kQuadsOfSum = Codes::kGroup / 4;
    constexpr int kCalls = (kGroupBytes + Prefetch::kBytes - 1) / Prefetch::kBytes;
    constexpr auto kFirst = [](int half) { return kSumsOfGroup == 1 || half == 0 ? 1 : 0; };
    constexpr auto kSecond = [](int half) { return kSumsOfGroup == 1 || half == 1 ? 1 : 0; };
    I dots[kSumsOfGroup][4][kTileRows][kVecsAtOnce];
    RowPointers<kTileRows> row_codes = x.codes;
    Unrolled<kSumsOfGroup>([&](auto half) __attribute__((always_inline)) {
      RowPointers<kTileRows> own_sums = code_sums;
      Unrolled<4>([&](auto group) __attribute__((always_inline)) {
        Start(own_sums, kFirst(half), kSecond(half), dots[half][group]);
        own_sums.Advance(4);
      });
      for (int first_quad = kQuadsOfSum * half; first_quad < kQuadsOfSum * (half + 1); first_quad += kQuadsInPairs) {
        auto& own = dots[half];
        SumsOfSmall<I, kTileRows, kVecsAtOnce> sums_of_small[4] = {{own[0]}, {own[1]}, {own[2]}, {own[3]}};
        for (int quad = first_quad; quad < first_quad + kQuadsInPairs; ++quad) {
          if (kAsks && quad < kCalls) prefetch.Issue();
          typename I::Codes codes[kVecsAtOnce][4];
          Unrolled<kVecsAtOnce>([&](auto v) __attribute__((always_inline)) {
            Codes::Quads(w + 64 * (first_vec + v), second, quad, codes[v]);
          });
          Unrolled<4>([&](auto group) __attribute__((always_inline)) {
            Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
              Unrolled<kVecsAtOnce>([&](auto v) __attribute__((always_inline)) {
                sums_of_small[group].template Add<r, v>(codes[v][group], row_codes[r] + kGroupInputs * group);
              });
            });
          });
          row_codes.Advance(4);
        }
        Unrolled<4>([&](auto group) __attribute__((always_inline)) { sums_of_small[group].Flush(); });
      }
    });
    V parts[kTileRows][kVecsAtOnce];
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecsAtOnce>([&](auto v) __attribute__((always_inline)) { parts[r][v] = V::Zero(); });
    });
    RowPointers<kTileRows> own_sums = code_sums;
    Unrolled<4>([&](auto group) __attribute__((always_inline)) {
      Unrolled<kSumsOfGroup>([&](auto half) __attribute__((always_inline)) {
        AddTo(parts, dots[half][group], {scales, second, group, half, first_vec}, own_sums, kFirst(half),
              kSecond(half));
      });
      own_sums.Advance(4);
    });
    AddParts(parts, x, sums);
  }

  // Adds to the sums of 128 inputs those of a row's groups, times the row's scale.
  template <int kVecsAtOnce>
  [[gnu::always_inline]] static void AddParts(const V (&parts)[kTileRows][kVecsAtOnce], const Int8Rows<kTileRows>& x,
                                              float* sums) {
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const V x_scale = V::Set(FloatAt(x.groups[r]));
      Unrolled<kVecsAtOnce>([&](auto v) __attribute__((always_inline)) {
        float* sum = sums + r * kPanelCols + 16 * v;
        Fma(parts[r][v], x_scale, V::Load(sum)).Store(sum);
      });
    });
  }

  // Multiplies 128 inputs: four groups of a block of 256, or a block for each group. `scales`: of a block of 256.
  template <bool kAsks>
  [[gnu::always_inline]] static void Multiply128(const std::byte* w, const typename Codes::Scales& scales, int second,
                                                 int num_groups, int first_vec, const Int8Rows<kTileRows>& x,
                                                 const RowPointers<kTileRows>& code_sums, Prefetch& prefetch,
                                                 float* sums) {
    V parts[kTileRows][kVecs];
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { parts[r][v] = V::Zero(); });
    });
    RowPointers<kTileRows> codes = x.codes, own_sums = code_sums;
    if constexpr (kAsks && kGroupBytes > 4 * Prefetch::kBytes) prefetch.Issue();
    const auto multiply = [&](int group) __attribute__((always_inline)) {
      if constexpr (kElements > kInt8Group) {
        MultiplyGroup<kAsks>(w, scales, second, group, first_vec, codes, own_sums, prefetch, parts);
      } else {
        const std::byte* block = w + group * kOwnBytes;
        MultiplyGroup<kAsks>(block, typename Codes::Scales(block), 0, 0, first_vec, codes, own_sums, prefetch, parts);
      }
      codes.Advance(kGroupInputs);
      own_sums.Advance(4);
    };
    if constexpr (kSharesBytes<Codes>) {
      Unrolled<4>(multiply);  // a group's number selects the operations that unpack it
    } else {
      for (int group = 0; group < num_groups; ++group) multiply(group);
    }
    AddParts(parts, x, sums);
  }

  template <bool kAsks>
  [[gnu::always_inline]] static void MultiplyGroup(const std::byte* block, const typename Codes::Scales& scales,
                                                   int second, int group, int first_vec,
                                                   const RowPointers<kTileRows>& x, const RowPointers<kTileRows>& sums,
                                                   Prefetch& prefetch, V (&parts)[kTileRows][kVecs]) {
    if constexpr (kAsks) prefetch.Issue();
    I dots[kTileRows][kVecs];
    GroupScales<kVecs> own_scales;
    if constexpr (Codes::kGroup == kGroupInputs) Start(sums, 1, 1, dots);
    if constexpr (kReadsScalesFirst) own_scales = {scales, second, group, 0, first_vec};
    SumsOfSmall<I, kTileRows, kVecs> sums_of_small(dots);
    for (int half = 0; half < 2; ++half) {
      if constexpr (Codes::kGroup < kGroupInputs) Start(sums, 1 - half, half, dots);
      MultiplyHalf(block, second, group, half, first_vec, x, dots, sums_of_small);
      if constexpr (kQuadsInPairs > 0 && kQuadsInPairs <= 4) sums_of_small.Flush();
      if constexpr (Codes::kGroup < kGroupInputs) {
        AddTo(parts, dots, {scales, second, group, half, first_vec}, sums, 1 - half, half);
      }
    }
    if constexpr (kQuadsInPairs > 4) sums_of_small.Flush();
    if constexpr (kAsks && kAsksTwice) prefetch.Issue();
    if constexpr (Codes::kGroup == kGroupInputs && !kReadsScalesFirst) {
      own_scales = {scales, second, group, 0, first_vec};
    }
    if constexpr (Codes::kGroup == kGroupInputs) AddTo(parts, dots, own_scales, sums, 1, 1);
  }

  // Starts sums of products over the halves of a group that have the factor 1.
  template <int kVecsAtOnce>
  [[gnu::always_inline]] static void Start(const RowPointers<kTileRows>& sums, int first, int second,
                                           I (&dots)[kTileRows][kVecsAtOnce]) {
    constexpr bool kCorrects = Codes::kOffset != 0 && (Codes::kOffset != 128 || I::kDotsAreUnsigned);
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      I start = I::Zero();
      if constexpr (kCorrects) start = I::SumOfPair(sums[r], -Codes::kOffset * first, -Codes::kOffset * second);
      Unrolled<kVecsAtOnce>([&](auto v) __attribute__((always_inline)) { dots[r][v] = start; });
    });
  }

  [[gnu::always_inline]] static void MultiplyHalf(const std::byte* block, int second, int group, int half,
                                                  int first_vec, const RowPointers<kTileRows>& x,
                                                  I (&dots)[kTileRows][kVecs],
                                                  SumsOfSmall<I, kTileRows, kVecs>& sums_of_small) {
    RowPointers<kTileRows> own = x;
    own.Advance(16 * half);
    Unrolled<4>([&](auto i) __attribute__((always_inline)) {
      typename I::Codes codes[kVecs];
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        codes[v] = QuadOf<I, Codes>(block + 64 * (first_vec + v), second, group, half, i.value);
      });
      Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
        Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
          if constexpr (Codes::kOffset == 128) {
            dots[r][v] = I::DotInt8(codes[v], own[r] + 4 * i.value, dots[r][v]);
          } else {
            sums_of_small.template Add<r, v>(codes[v], own[r] + 4 * i.value);
          }
        });
      });
      if constexpr (kQuadsInPairs == 2 && i == 1) sums_of_small.Flush();
    });
  }

  template <int kVecsAtOnce>
  [[gnu::always_inline]] static void AddTo(V (&parts)[kTileRows][kVecsAtOnce], const I (&dots)[kTileRows][kVecsAtOnce],
                                           const GroupScales<kVecsAtOnce>& scales, const RowPointers<kTileRows>& sums,
                                           int of_first, int of_second) {
    Unrolled<kVecsAtOnce>([&](auto v) __attribute__((always_inline)) {
      Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
        parts[r][v] = Fma(dots[r][v].template ToFloats<V>(), scales.scale[v], parts[r][v]);
        if constexpr (Codes::kHasMin) {
          const V sum = I::SumOfPair(sums[r], of_first, of_second).template ToFloats<V>();
          parts[r][v] = Fma(sum, scales.min[v], parts[r][v]);
        }
      });
    });
  }
};

}  // namespace
}  // namespace penstock::kernels
