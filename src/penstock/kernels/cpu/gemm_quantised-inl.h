// GEMM over panels of quantised weights: exact integer sums of codes within a group, one float accumulator over the
// groups.
//
// `Ints` is 16 lanes of int32 and the products of codes that the instruction set has; see ints_scalar-inl.h.
#pragma once

#include "penstock/kernels/cpu/gemm-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// 128 inputs: 4 of 32 outputs are 128 bytes, 64 for each vector.
constexpr int64_t kQuadBytes = 4 * kPanelCols;

template <class V, class I, int kRows, int kVecs>
struct Int8Group {
  static constexpr int64_t kBytes = kInt8BlockBytes;

  [[gnu::always_inline]] static void Multiply(const std::byte* w, int first_vec, int64_t ahead,
                                              const RowPointers<kRows>& codes, const RowPointers<kRows>& groups,
                                              V (&sums)[kRows][kVecs]) {
    I dots[kRows][kVecs];
    Unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        dots[r][v] = I::StartInt8(groups[r] + offsetof(Int8RowGroup, code_offset));
      });
    });
    const std::byte* quad = w + 64 * first_vec;
    RowPointers<kRows> x = codes;
    for (int i = 0; i < kInt8Group / 4; ++i) {
      PrefetchAhead(quad, ahead, kQuadBytes);
      typename I::Codes w_codes[kVecs];
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { w_codes[v] = I::Load(quad + 64 * v); });
      Unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
        Unrolled<kVecs>([&](auto v)
                            __attribute__((always_inline)) { dots[r][v] = I::DotInt8(w_codes[v], x[r], dots[r][v]); });
      });
      quad += kQuadBytes;
      x.Advance(4);
    }
    V scales[kVecs];
    Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
      scales[v] = V::template LoadAs<Dtype::kBF16>(w + kInt8Group * kPanelCols + 32 * (first_vec + v));
    });
    Unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      const V x_scale = V::Set(FloatAt(groups[r]));
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        sums[r][v] = Fma(dots[r][v].template ToFloats<V>(), Mul(scales[v], x_scale), sums[r][v]);
      });
    });
  }
};

template <class I>
struct Int8Steps {
  using Ints = I;
  static constexpr int kRows = I::kRows;
  static constexpr int64_t kChunk = 512;
};

// The rows' codes and groups from input `begin` on.
template <int kRows>
struct Int8Rows {
  RowPointers<kRows> codes;
  RowPointers<kRows> groups;

  Int8Rows(const GemmArgs& args, const TileRange& range)
      : codes(args.x + range.row * args.x_stride_bytes + range.begin, args.x_stride_bytes),
        groups(args.x + range.row * args.x_stride_bytes + (args.inner_dim + kInt8Group - 1) / kInt8Group * kInt8Group +
                   range.begin / kInt8Group * static_cast<int64_t>(sizeof(Int8RowGroup)),
               args.x_stride_bytes) {}
};

template <class Steps, int kTileRows>
struct Int8Tile {
  static void Run(const GemmArgs& args, const TileRange& range) {
    using V = typename Steps::Ints::Vec;
    constexpr int kVecs = V::kPanelVecs;
    using Group = Int8Group<V, typename Steps::Ints, kTileRows, kVecs>;
    for (int first_vec = 0; first_vec < kVecsPerPanel; first_vec += kVecs) {
      const std::byte* w = args.w + range.panel * args.panel_bytes + range.begin / kInt8Group * Group::kBytes;
      Int8Rows<kTileRows> x(args, range);
      V sums[kTileRows][kVecs];
      LoadSums(args, range, first_vec, sums);
      for (int64_t k = range.begin; k < range.end; k += kInt8Group) {
        Group::Multiply(w, first_vec, AheadBytes<kTileRows>(range), x.codes, x.groups, sums);
        w += Group::kBytes;
        x.codes.Advance(kInt8Group);
        x.groups.Advance(sizeof(Int8RowGroup));
      }
      StoreSums(args, range, first_vec, sums);
    }
  }
};

// One group of 64 inputs of an HQQ panel: calls dot(codes of vector v, v, offset of their 4 inputs) for each 4 inputs.
template <class I, WeightFormat kFormat, int kVecs>
struct HqqCodes {
  static constexpr int64_t kBytes = kFormat == WeightFormat::kHqq4 ? kHqq4GroupBytes : kHqq3GroupBytes;

  template <class Dot>
  [[gnu::always_inline]] static void ForEachQuad(const std::byte* group, const Dot& dot) {
    if constexpr (kFormat == WeightFormat::kHqq4) {
      for (int i = 0; i < 8; ++i) {
        typename I::Codes low[kVecs], high[kVecs];
        Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
          const typename I::Codes both = I::Load(group + kQuadBytes * i + 64 * v);
          low[v] = I::And(both, 15);
          high[v] = I::And(I::ShiftRight(both, 4), 15);
        });
        dot(low, 8 * i);
        dot(high, 8 * i + 4);
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        typename I::Codes pairs[kVecs], thirds[kVecs], codes[kVecs];
        Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
          pairs[v] = I::Load(group + kQuadBytes * i + 64 * v);
          // The third bits of these 16 inputs, moved up so that the first of them is bit 2 of its code.
          const typename I::Codes bits = I::Load(group + 512 + kQuadBytes * (i / 2) + 64 * v);
          thirds[v] = i % 2 == 0 ? bits : I::And(I::ShiftRight(bits, 4), 15);
        });
        const auto quad = [&](auto t) __attribute__((always_inline)) {
          Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
            const typename I::Codes third =
                I::And(t.value < 2 ? I::ShiftLeft(thirds[v], 2 - t.value) : I::ShiftRight(thirds[v], t.value - 2), 4);
            codes[v] = I::Or(I::And(I::ShiftRight(pairs[v], 2 * t.value), 3), third);
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

template <class I, WeightFormat kFormat, int kTileRows>
struct HqqGroup {
  using V = typename I::Vec;
  static constexpr int kVecs = V::kPanelVecs;

  // `header` of the block, `group_idx` in it; code_sum is the row's sum of these 64 codes.
  [[gnu::always_inline]] static void Multiply(const std::byte* header, int group_idx, const std::byte* group,
                                              int first_vec, const RowPointers<kTileRows>& codes,
                                              const RowPointers<kTileRows>& groups, int64_t half,
                                              V (&sums)[kTileRows][kVecs]) {
    I dots[kTileRows][kVecs];
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { dots[r][v] = I::Zero(); });
    });
    RowPointers<kTileRows> x = codes;
    HqqCodes<I, kFormat, kVecs>::ForEachQuad(
        group + 64 * first_vec, [&](const auto& w_codes, int offset) __attribute__((always_inline)) {
          Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
            Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
              dots[r][v] = I::DotSmall(w_codes[v], x[r] + offset, dots[r][v]);
            });
          });
        });
    V scales[kVecs], minus_zeros[kVecs];
    Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
      const int64_t place = kPanelCols * group_idx + 16 * (first_vec + v);
      scales[v] = Fma(V::LoadCodes(header + 64 + place), V::Set(FloatAt(header)), V::Set(FloatAt(header + 4)));
      minus_zeros[v] = Sub(V::Zero(), Fma(V::LoadCodes(header + 192 + place), V::Set(FloatAt(header + 8)),
                                          V::Set(FloatAt(header + 12))));
    });
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const V x_scale = V::Set(FloatAt(groups[r]));
      const V code_sum = V::Set(FloatAt(groups[r] + offsetof(Int8RowGroup, code_sums) + 4 * half));
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
        const V dot = Fma(minus_zeros[v], code_sum, dots[r][v].template ToFloats<V>());
        sums[r][v] = Fma(dot, Mul(scales[v], x_scale), sums[r][v]);
      });
    });
  }
};

template <class I, WeightFormat kFormat>
struct HqqSteps {
  using Ints = I;
  static constexpr int kRows = I::kRows;
  static constexpr int64_t kChunk = 4 * kHqqBlock;
  static constexpr WeightFormat kWeights = kFormat;
};

template <class Steps, int kTileRows>
struct HqqTile {
  static void Run(const GemmArgs& args, const TileRange& range) {
    using I = typename Steps::Ints;
    using V = typename I::Vec;
    constexpr int kVecs = V::kPanelVecs;
    constexpr int64_t kGroupBytes = HqqCodes<I, Steps::kWeights, kVecs>::kBytes;
    constexpr int64_t kBlockBytes = kHqqHeaderBytes + kHqqBlock / 64 * kGroupBytes;
    for (int first_vec = 0; first_vec < kVecsPerPanel; first_vec += kVecs) {
      const std::byte* header = args.w + range.panel * args.panel_bytes + range.begin / kHqqBlock * kBlockBytes;
      const int64_t ahead = AheadBytes<kTileRows>(range);
      Int8Rows<kTileRows> x(args, range);
      V sums[kTileRows][kVecs];
      LoadSums(args, range, first_vec, sums);
      for (int64_t begin = range.begin; begin < range.end; begin += kHqqBlock) {
        const int64_t rest = range.end - begin;
        const int num_groups = rest < kHqqBlock ? static_cast<int>((rest + 63) / 64) : 4;
        for (int group = 0; group < num_groups; ++group) {
          const std::byte* data = header + kHqqHeaderBytes + group * kGroupBytes;
          PrefetchAhead(data, ahead, kGroupBytes);
          HqqGroup<I, Steps::kWeights, kTileRows>::Multiply(header, group, data, first_vec, x.codes, x.groups,
                                                            group % 2, sums);
          x.codes.Advance(64);
          if (group % 2 == 1) x.groups.Advance(sizeof(Int8RowGroup));
        }
        header += kBlockBytes;
      }
      StoreSums(args, range, first_vec, sums);
    }
  }
};

}  // namespace
}  // namespace penstock::kernels
