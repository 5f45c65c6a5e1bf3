// GEMM over panels of quantised weights: exact integer sums of codes within a group, one float accumulator over the
// groups.
//
// `Ints` is 16 lanes of int32 with the instruction set's products of codes; see ints_scalar-inl.h.
#pragma once

#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/kernel_table.h"
#include "penstock/tensor/ternary.h"

namespace penstock::kernels {
namespace {

// The rows' codes and groups from input `begin` on.
template <int kRows>
struct Int8Rows {
  RowPointers<kRows> codes;
  RowPointers<kRows> groups;

  explicit Int8Rows(const TileRun& run)
      : codes(run.x + run.begin, run.x_stride_bytes),
        groups(run.x + (run.inner_dim + kInt8Group - 1) / kInt8Group * kInt8Group +
                   run.begin / kInt8Group * static_cast<int64_t>(sizeof(Int8RowGroup)),
               run.x_stride_bytes) {}
};

// With AVX2, a tile of 4 rows keeps sums of 16 bits (Ints::Pairs) in half of the registers.
constexpr int kRowsOfPairs = 4;

// Returns how many quads of codes up to `max_code` can be added in 16 bits: all of a group of `group` inputs, half of
// them and so on. 0: none, because two products may overflow.
constexpr int QuadsInPairs(int max_code, int group) {
  int quads = group / 4;
  while (quads * 2 * max_code * 127 > 32767) quads /= 2;
  return quads;
}

// Adds products of small codes to `dots`, in 16 bits first where the instruction set does.
template <class I, int kTileRows, int kVecs>
struct SumsOfSmall {
  I (&dots)[kTileRows][kVecs];

  [[gnu::always_inline]] SumsOfSmall(I (&sums)[kTileRows][kVecs]) : dots(sums) {}
  template <int kRow, int kVec>
  [[gnu::always_inline]] void Add(const typename I::Codes& codes, const std::byte* x) {
    dots[kRow][kVec] = I::DotSmall(codes, x, dots[kRow][kVec]);
  }
  [[gnu::always_inline]] void Flush() {}
};
template <class I, int kTileRows, int kVecs>
requires(I::kAddsPairs) struct SumsOfSmall<I, kTileRows, kVecs> {
  I (&dots)[kTileRows][kVecs];
  typename I::Pairs pairs[kTileRows][kVecs];

  [[gnu::always_inline]] SumsOfSmall(I (&sums)[kTileRows][kVecs]) : dots(sums) { Clear(); }
  template <int kRow, int kVec>
  [[gnu::always_inline]] void Add(const typename I::Codes& codes, const std::byte* x) {
    pairs[kRow][kVec].Add(codes, x);
  }
  [[gnu::always_inline]] void Flush() {
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { dots[r][v] = pairs[r][v].AddedTo(dots[r][v]); });
    });
    Clear();
  }

 private:
  [[gnu::always_inline]] void Clear() {
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { pairs[r][v] = I::Pairs::Zero(); });
    });
  }
};

template <class I>
struct Int8Steps {
  using Ints = I;
  using Vec = typename I::Vec;
  static constexpr int kRows = I::kRows;
  static constexpr int64_t kBlockInputs = kInt8Group;
  static constexpr int64_t kBlockBytes = kInt8BlockBytes;
  static constexpr bool kSplits = false;
};

// A block of int8 weights as Ints::StoreSplit parts it: the first part has the block's layout, with absolute values.
struct SplitInt8Block {
  alignas(64) std::byte values[kInt8BlockBytes];
  alignas(64) std::byte below_zero[kInt8Group * kPanelCols];
  alignas(64) std::byte starts[4 * kPanelCols];  // of the sums of Ints::DotSplit
};
template <class I>
struct SplitInt8Steps : Int8Steps<I> {
  static constexpr int kRows = kRowsOfPairs;
  static constexpr int64_t kBlockBytes = sizeof(SplitInt8Block);
  static constexpr bool kSplits = true;
};

constexpr int64_t kCallsOfSplit = 4;
template <class I>
void SplitInt8(const std::byte* block, NextChunk& next_chunk, SplitInt8Block* split) {
  I starts[kVecsPerPanel] = {I::Zero(), I::Zero()};
  for (int64_t at = 0; at < kInt8Group * kPanelCols; at += kQuadBytes) {
    if (at % (8 * kQuadBytes) == 0) next_chunk.Issue();
    Unrolled<kVecsPerPanel>([&](auto v) __attribute__((always_inline)) {
      const int64_t own = at + 64 * v;
      I::StoreSplit(I::Load(block + own), split->values + own, split->below_zero + own, starts[v]);
    });
  }
  Unrolled<kVecsPerPanel>([&](auto v)
                              __attribute__((always_inline)) { I::StoreSums(starts[v], split->starts + 64 * v); });
  __builtin_memcpy(split->values + kInt8Group * kPanelCols, block + kInt8Group * kPanelCols,
                   kInt8BlockBytes - kInt8Group * kPanelCols);
}

template <class Steps, int kTileRows>
struct Int8Tile {
  using I = typename Steps::Ints;
  using V = typename I::Vec;
  static constexpr int kVecs = V::kPanelVecs;
  // With half of 8 quads, a tile of split signs takes 1.15 times as long.
  static constexpr int kUnroll = Steps::kSplits ? 8 : static_cast<int>(Prefetch::kBytes / kQuadBytes);

  [[gnu::always_inline]] static void Run(TileRun& run) {
    const std::byte* w = run.w;
    Int8Rows<kTileRows> x(run);
    float* sums = run.sums;
    for (int64_t k = run.begin; k < run.end; k += kInt8Group) {
      // Without this, GCC would also keep the sums on the stack and store each of them twice.
      asm("" : "+r"(sums));
      run.prefetch.StartGroupAt(w);
      Unrolled<kVecsPerPanel / kVecs>([&](auto pass) __attribute__((always_inline)) {
        MultiplyGroup<pass == 0>(w, kVecs * pass, x, run, sums + 16 * kVecs * pass);
      });
      w += Steps::kBlockBytes;
      x.codes.Advance(kInt8Group);
      x.groups.Advance(sizeof(Int8RowGroup));
    }
  }

 private:
  template <bool kAsks>
  [[gnu::always_inline]] static void MultiplyGroup(const std::byte* w, int first_vec, const Int8Rows<kTileRows>& x,
                                                   TileRun& run, float* sums) {
    Int8Rows<kTileRows> rows = x;
    I dots[kTileRows][kVecs];
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        if constexpr (Steps::kSplits) {
          dots[r][v] = I::LoadSums(w + offsetof(SplitInt8Block, starts) + 64 * (first_vec + v));
        } else {
          dots[r][v] = I::StartInt8(rows.groups[r] + offsetof(Int8RowGroup, code_offset));
        }
      });
    });
    const std::byte* quad = w + 64 * first_vec;
    for (int i = 0; i < kInt8Group / 4 / kUnroll; ++i) {
      if constexpr (Steps::kSplits) {
        run.next_chunk.Issue();
      } else if constexpr (kAsks) {
        run.prefetch.Issue();
      }
      Unrolled<kUnroll>([&](auto u) __attribute__((always_inline)) {
        typename I::Codes codes[kVecs], below_zero[kVecs];
        Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
          const std::byte* const own = quad + kQuadBytes * u + 64 * v;
          codes[v] = I::Load(own);
          if constexpr (Steps::kSplits) below_zero[v] = I::Load(own + offsetof(SplitInt8Block, below_zero));
        });
        Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
            if constexpr (Steps::kSplits) {
              dots[r][v] = I::DotSplit(codes[v], below_zero[v], rows.codes[r] + 4 * u, dots[r][v]);
            } else {
              dots[r][v] = I::DotInt8(codes[v], rows.codes[r] + 4 * u, dots[r][v]);
            }
          });
        });
      });
      quad += kUnroll * kQuadBytes;
      rows.codes.Advance(4 * kUnroll);
    }
    V scales[kVecs];
    Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
      scales[v] = V::template LoadAs<Dtype::kBF16>(w + kInt8Group * kPanelCols + 32 * (first_vec + v));
    });
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const V x_scale = V::Set(FloatAt(rows.groups[r]));
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        float* sum = sums + r * kPanelCols + 16 * v;
        Fma(dots[r][v].template ToFloats<V>(), Mul(scales[v], x_scale), V::Load(sum)).Store(sum);
      });
    });
  }
};

// One group of 64 inputs of an HQQ panel. Calls dot(codes of each vector, offset of their 4 inputs) for each 4 inputs,
// and ask() before each half; for ternary once. Each call of ask() covers Prefetch::kBytes: as much as hqq4 reads, a
// third more than hqq3 and ternary read, and twice as much as hqq2 reads. `header` is the block's.
template <class I, WeightFormat kFormat, int kVecs>
struct HqqCodes {
  template <class Ask, class Dot>
  [[gnu::always_inline]] static void ForEachQuad(const std::byte*, int, const std::byte* group, const Ask& ask,
                                                 const Dot& dot) {
    if constexpr (kFormat == WeightFormat::kHqq4) {
      constexpr int kAtOnce = I::kAddsPairs ? 4 : 1;
      for (int64_t i = 0; i < 8; i += kAtOnce) {
        if (i % 4 == 0) ask();
        Unrolled<kAtOnce>([&](auto j) __attribute__((always_inline)) {
          typename I::Codes low[kVecs], high[kVecs];
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
            const typename I::Codes both = I::Load(group + kQuadBytes * (i + j) + 64 * v);
            low[v] = I::And(both, 15);
            high[v] = I::And(I::ShiftRight(both, 4), 15);
          });
          dot(low, 8 * (i + j));
          dot(high, 8 * (i + j) + 4);
        });
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        if (i % 2 == 0) ask();
        typename I::Codes pairs[kVecs], thirds[kVecs], codes[kVecs];
        Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
          pairs[v] = I::Load(group + kQuadBytes * i + 64 * v);
          if constexpr (kFormat == WeightFormat::kHqq3) {
            // Reads the third bits of these 16 inputs and moves them so that the first one is bit 2 of its code.
            const typename I::Codes bits = I::Load(group + 512 + kQuadBytes * (i / 2) + 64 * v);
            thirds[v] = i % 2 == 0 ? bits : I::And(I::ShiftRight(bits, 4), 15);
          }
        });
        const auto quad = [&](auto t) __attribute__((always_inline)) {
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
            codes[v] = I::And(I::ShiftRight(pairs[v], 2 * t.value), 3);
            if constexpr (kFormat == WeightFormat::kHqq3) {
              codes[v] = I::Or(codes[v], I::And(t.value < 2 ? I::ShiftLeft(thirds[v], 2 - t.value)
                                                            : I::ShiftRight(thirds[v], t.value - 2),
                                                4));
            }
          });
          dot(codes, 16 * i + 4 * t.value);
        };
        quad(IntConstant<0>{});
        quad(IntConstant<1>{});
        quad(IntConstant<2>{});
        quad(IntConstant<3>{});
      }
    }
  }
};

template <class I, int kVecs>
struct HqqCodes<I, WeightFormat::kTernary, kVecs> {
  template <class Ask, class Dot>
  [[gnu::always_inline]] static void ForEachQuad(const std::byte* header, int group_idx, const std::byte* group,
                                                 const Ask& ask, const Dot& dot) {
    typename I::Codes digits[kVecs], codes[kVecs];
    ask();
    for (int i = 0; i < 3; ++i) {
      Unrolled<kVecs>([&](auto v)
                          __attribute__((always_inline)) { digits[v] = I::Load(group + kQuadBytes * i + 64 * v); });
      Unrolled<kDigitsOfByte>([&](auto t) __attribute__((always_inline)) {
        constexpr int kIndex = decltype(t)::value;
        Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
          codes[v] = I::FirstDigit(digits[v]);
          if constexpr (kIndex + 1 < kDigitsOfByte) digits[v] = I::Triple(digits[v]);
        });
        dot(codes, 20 * i + 4 * kIndex);
      });
    }
    const auto last = [&](auto shift) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        codes[v] = I::And(I::ShiftRight(I::Load(header + kTernaryLastQuads + 64 * v), shift.value), 3);
      });
    };
    switch (group_idx) {
      case 0: last(IntConstant<0>{}); break;
      case 1: last(IntConstant<2>{}); break;
      case 2: last(IntConstant<4>{}); break;
      default: last(IntConstant<6>{});
    }
    dot(codes, 60);
  }
};

template <class I, WeightFormat kFormat>
struct HqqSteps {
  using Ints = I;
  using Vec = typename I::Vec;
  static constexpr int kRows = I::kAddsPairs ? kRowsOfPairs : I::kRows;
  static constexpr int64_t kGroupBytes = HqqGroupBytes(kFormat);
  static constexpr int64_t kBlockInputs = kHqqBlock;
  static constexpr int64_t kBlockBytes = kHqqHeaderBytes + kHqqBlock / 64 * kGroupBytes;
  static constexpr WeightFormat kWeights = kFormat;
};

template <class Steps, int kTileRows>
struct HqqTile {
  using I = typename Steps::Ints;
  using V = typename I::Vec;
  static constexpr int kVecs = V::kPanelVecs;

  [[gnu::always_inline]] static void Run(TileRun& run) {
    const std::byte* block = run.w;
    Int8Rows<kTileRows> x(run);
    float* sums = run.sums;
    [[maybe_unused]] alignas(64) std::byte copy[kHqqHeaderBytes];
    for (int64_t begin = run.begin; begin < run.end; begin += kHqqBlock) {
      const int64_t rest = run.end - begin;
      const int num_groups = rest < kHqqBlock ? static_cast<int>((rest + 63) / 64) : kHqqBlock / 64;
      // Reads the header before the codes behind it, because a processor asks ahead for bytes that are read in order.
      // On Zen 4, 1 and 4 rows of hqq4 take 0.87 of the time then, but those of hqq3 1.15 and 1.04. With AVX2, 4 rows
      // of hqq4 take 1.04 of it.
      const std::byte* header = block;
      if constexpr (Steps::kWeights == WeightFormat::kHqq4 && (kTileRows == 1 || kVecs == 2)) {
        __builtin_memcpy(copy, block, sizeof(copy));
        header = copy;
      }
      for (int group = 0; group < num_groups; ++group) {
        const std::byte* data = block + kHqqHeaderBytes + group * Steps::kGroupBytes;
        asm("" : "+r"(sums));  // see Int8Tile
        run.prefetch.StartGroupAt(data);
        Unrolled<kVecsPerPanel / kVecs>([&](auto pass) __attribute__((always_inline)) {
          MultiplyGroup<pass == 0>(header, group, data, kVecs * pass, x, run.prefetch, sums + 16 * kVecs * pass);
        });
        x.codes.Advance(64);
        if (group % 2 == 1) x.groups.Advance(sizeof(Int8RowGroup));
      }
      block += Steps::kBlockBytes;
    }
  }

 private:
  // `header` is the block's, `group_idx` counts within the block.
  template <bool kAsks>
  [[gnu::always_inline]] static void MultiplyGroup(const std::byte* header, int group_idx, const std::byte* group,
                                                   int first_vec, const Int8Rows<kTileRows>& x, Prefetch& prefetch,
                                                   float* sums) {
    I dots[kTileRows][kVecs];
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { dots[r][v] = I::Zero(); });
    });
    RowPointers<kTileRows> codes = x.codes;
    // Products of a group fit 16 bits, those of hqq4 half a group.
    static_assert(QuadsInPairs(7, 64) == 16 && QuadsInPairs(15, 64) == 8);
    SumsOfSmall<I, kTileRows, kVecs> sums_of_half(dots);
    HqqCodes<I, Steps::kWeights, kVecs>::ForEachQuad(
        header + 64 * first_vec, group_idx, group + 64 * first_vec,
        [&]() __attribute__((always_inline)) {
          if constexpr (kAsks) prefetch.Issue();
          if constexpr (Steps::kWeights == WeightFormat::kHqq4) sums_of_half.Flush();
        },
        [&](const auto& w_codes, int offset) __attribute__((always_inline)) {
          Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
            Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
              sums_of_half.template Add<r, v>(w_codes[v], codes[r] + offset);
            });
          });
        });
    sums_of_half.Flush();
    V scales[kVecs], minus_zeros[kVecs];
    Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
      const int64_t place = kPanelCols * group_idx + 16 * (first_vec + v);
      scales[v] = Fma(V::LoadCodes(header + 64 + place), V::Set(FloatAt(header)), V::Set(FloatAt(header + 4)));
      if constexpr (Steps::kWeights == WeightFormat::kTernary) {
        minus_zeros[v] = V::Set(-1);
      } else {
        minus_zeros[v] = Sub(V::Zero(), Fma(V::LoadCodes(header + 192 + place), V::Set(FloatAt(header + 8)),
                                            V::Set(FloatAt(header + 12))));
      }
    });
    const int64_t half = group_idx % 2;
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const V x_scale = V::Set(FloatAt(x.groups[r]));
      // The sum of the row's codes in this group.
      const V code_sum = V::Set(FloatAt(x.groups[r] + offsetof(Int8RowGroup, code_sums) + 4 * half));
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        float* sum = sums + r * kPanelCols + 16 * v;
        const V dot = Fma(minus_zeros[v], code_sum, dots[r][v].template ToFloats<V>());
        Fma(dot, Mul(scales[v], x_scale), V::Load(sum)).Store(sum);
      });
    });
  }
};

// REQUIRES: weights in codes, int8 or HQQ.
template <class Ints>
void GemmOfCodes(const GemmArgs& args) {
  switch (args.w_format) {
    case WeightFormat::kHqq4: return RunGemm<HqqSteps<Ints, WeightFormat::kHqq4>, HqqTile>(args);
    case WeightFormat::kHqq3: return RunGemm<HqqSteps<Ints, WeightFormat::kHqq3>, HqqTile>(args);
    case WeightFormat::kHqq2: return RunGemm<HqqSteps<Ints, WeightFormat::kHqq2>, HqqTile>(args);
    case WeightFormat::kTernary: return RunGemm<HqqSteps<Ints, WeightFormat::kTernary>, HqqTile>(args);
    default: return RunGemm<Int8Steps<Ints>, Int8Tile>(args);
  }
}

}  // namespace
}  // namespace penstock::kernels
