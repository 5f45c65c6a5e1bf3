// GEMM over panels of float weights: tiles of rows of x times vectors of one panel, one lane for each output.
//
// The tiles and their order change the speed only: a lane sees its own row of x and its own output's weights in the
// order of the law of sums and nothing else.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

constexpr int kVecsPerPanel = 2;

template <int kValue>
struct IntConstant {
  static constexpr int value = kValue;
  constexpr operator int() const { return kValue; }
};

// body(IntConstant<0>) .. body(IntConstant<kCount - 1>), spelled out before the compiler decides what lives in
// registers: GCC 12 keeps an array that a loop indexes in memory even when it unrolls the loop later, and stores every
// accumulator in every step.
template <int kCount, class Body>
[[gnu::always_inline]] inline void Unrolled(const Body& body) {
  if constexpr (kCount > 0) {
    Unrolled<kCount - 1>(body);
    body(IntConstant<kCount - 1>{});
  }
}

// Rows at an even distance. Adding at most twice the stride to one of few pointers is an addressing mode, which leaves
// registers for more rows than there are pointers.
template <int kRows>
struct RowPointers {
  const std::byte* bases[(kRows + 2) / 3];
  int64_t stride;

  RowPointers(const std::byte* first, int64_t stride_bytes) : stride(stride_bytes) {
    for (int i = 0; i < (kRows + 2) / 3; ++i) bases[i] = first + 3 * i * stride_bytes;
  }
  [[gnu::always_inline]] const std::byte* operator[](int row) const { return bases[row / 3] + row % 3 * stride; }
  [[gnu::always_inline]] void Advance(int64_t bytes) {
    Unrolled<(kRows + 2) / 3>([&](auto i) __attribute__((always_inline)) { bases[i] += bytes; });
  }
};

inline float FloatAt(const std::byte* source) {
  float value;
  __builtin_memcpy(&value, source, 4);
  return value;
}

// One tile's share of a GEMM: rows row.. of x, one panel, inputs [begin, end). The sums of the inputs before lie in y.
struct TileRange {
  int64_t row;
  int64_t panel;
  int64_t begin;  // a multiple of Steps::kChunk
  int64_t end;    // a multiple of Steps::kChunk, or inner_dim
};

// Calls visit(y of the tile's first row, vector, number of its columns) for the vectors that have columns.
template <int kVecs, class Visit>
[[gnu::always_inline]] inline void ForEachOutputVec(const GemmArgs& args, const TileRange& range, int first_vec,
                                                    const Visit& visit) {
  Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) {
    const int64_t col = range.panel * kPanelCols + 16 * (first_vec + v);
    if (col < args.num_cols) visit(args.y + range.row * args.y_stride + col, v, args.num_cols - col, col);
  });
}

template <class V, int kRows, int kVecs>
[[gnu::always_inline]] inline void LoadSums(const GemmArgs& args, const TileRange& range, int first_vec,
                                            V (&sums)[kRows][kVecs]) {
  Unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { sums[r][v] = V::Zero(); });
  });
  if (range.begin == 0) return;
  ForEachOutputVec<kVecs>(
      args, range, first_vec, [&](const float* y, auto v, int64_t count, int64_t) __attribute__((always_inline)) {
        Unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
          const float* source = y + r * args.y_stride;
          sums[r][v] = count >= 16 ? V::Load(source) : V::LoadPartial(source, count, 0);
        });
      });
}

// Adds the bias when the last input is in.
template <class V, int kRows, int kVecs>
[[gnu::always_inline]] inline void StoreSums(const GemmArgs& args, const TileRange& range, int first_vec,
                                             V (&sums)[kRows][kVecs]) {
  const bool has_bias = args.bias != nullptr && range.end == args.inner_dim;
  ForEachOutputVec<kVecs>(
      args, range, first_vec, [&](float* y, auto v, int64_t count, int64_t col) __attribute__((always_inline)) {
        if (has_bias) {
          const V bias = count >= 16 ? V::Load(args.bias + col) : V::LoadPartial(args.bias + col, count, 0);
          Unrolled<kRows>([&](auto r) __attribute__((always_inline)) { sums[r][v] = Add(sums[r][v], bias); });
        }
        Unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
          if (count >= 16) {
            sums[r][v].Store(y + r * args.y_stride);
          } else {
            sums[r][v].StorePartial(y + r * args.y_stride, count);
          }
        });
      });
}

// One step is a pair of inputs: kStepBytes of a panel, kXBytes of each row.
template <class V, WeightFormat kFormat>
struct FloatSteps {
  using Vec = V;
  static constexpr int kRows = V::kPanelRows;
  static constexpr int kVecs = V::kPanelVecs;
  static constexpr int64_t kStepBytes = kFormat == WeightFormat::kF32 ? 256 : 128;
  static constexpr int64_t kXBytes = 8;
  static constexpr int64_t kChunk = kFormat == WeightFormat::kF32 ? 128 : 256;

  [[gnu::always_inline]] static void LoadPair(const std::byte* w, int vec, V& even, V& odd) {
    if constexpr (kFormat == WeightFormat::kBF16) {
      V::LoadPairs(w + 64 * vec, even, odd);
    } else if constexpr (kFormat == WeightFormat::kF16) {
      even = V::template LoadAs<Dtype::kF16>(w + 32 * vec);
      odd = V::template LoadAs<Dtype::kF16>(w + 64 + 32 * vec);
    } else {
      even = V::template LoadAs<Dtype::kF32>(w + 64 * vec);
      odd = V::template LoadAs<Dtype::kF32>(w + 128 + 64 * vec);
    }
  }

  // sums += x * w over one pair; a last input without a partner has the partner 0.
  template <int kTileRows>
  [[gnu::always_inline]] static void Multiply(const std::byte* w, int first_vec, const RowPointers<kTileRows>& x,
                                              bool has_odd, V (&sums)[kTileRows][kVecs]) {
    V even[kVecs], odd[kVecs];
    Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { LoadPair(w, first_vec + v, even[v], odd[v]); });
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const V x_odd = has_odd ? V::Set(FloatAt(x[r] + 4)) : V::Zero();
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { sums[r][v] = Fma(x_odd, odd[v], sums[r][v]); });
    });
    Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const V x_even = V::Set(FloatAt(x[r]));
      Unrolled<kVecs>([&](auto v) __attribute__((always_inline)) { sums[r][v] = Fma(x_even, even[v], sums[r][v]); });
    });
  }
};

// Weights are read from memory once and in order, panel after panel, so what comes next is always further on. Few rows,
// which make memory the limit, ask for it a little ahead. With several tiles the first one brings the next chunk while
// it computes this one, and the others find everything in the cache.
constexpr int64_t kNearBytes = 2048;
constexpr int64_t kChunkBytes = 16 * 1024;

template <int kTileRows>
inline int64_t AheadBytes(const TileRange& range) {
  if (kTileRows <= 4) return kNearBytes;
  return range.row == 0 ? kChunkBytes : 0;
}

[[gnu::always_inline]] inline void PrefetchAhead(const std::byte* w, int64_t ahead, int64_t bytes) {
#pragma GCC unroll 16
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(w + ahead + line);
}

template <class Steps, int kTileRows>
struct FloatTile {
  static void Run(const GemmArgs& args, const TileRange& range) {
    using V = typename Steps::Vec;
    constexpr int kVecs = Steps::kVecs;
    for (int first_vec = 0; first_vec < kVecsPerPanel; first_vec += kVecs) {
      const std::byte* w = args.w + range.panel * args.panel_bytes + range.begin / 2 * Steps::kStepBytes;
      const std::byte* first_row = args.x + range.row * args.x_stride_bytes + range.begin / 2 * Steps::kXBytes;
      RowPointers<kTileRows> x(first_row, args.x_stride_bytes);
      const int64_t ahead = AheadBytes<kTileRows>(range);
      V sums[kTileRows][kVecs];
      LoadSums(args, range, first_vec, sums);
      for (int64_t k = range.begin; k + 2 <= range.end; k += 2) {
        PrefetchAhead(w, ahead, Steps::kStepBytes);
        Steps::template Multiply<kTileRows>(w, first_vec, x, true, sums);
        w += Steps::kStepBytes;
        x.Advance(Steps::kXBytes);
      }
      if (range.end % 2 != 0) Steps::template Multiply<kTileRows>(w, first_vec, x, false, sums);
      StoreSums(args, range, first_vec, sums);
    }
  }
};

// `num_rows` <= kTileRows rows.
template <class Steps, template <class, int> class Tile, int kTileRows>
void RunTile(const GemmArgs& args, int64_t num_rows, const TileRange& range) {
  if constexpr (kTileRows > 1) {
    if (num_rows < kTileRows) return RunTile<Steps, Tile, kTileRows - 1>(args, num_rows, range);
  }
  Tile<Steps, kTileRows>::Run(args, range);
}

// Rows that fit one tile read a panel from memory in one go. More rows take it in chunks of kChunk inputs, 16 KiB of
// weights that stay in the first-level cache while the rows pass over them.
template <class Steps, template <class, int> class Tile>
void RunGemm(const GemmArgs& args) {
  const int64_t num_panels = (args.num_cols + kPanelCols - 1) / kPanelCols;
  // Tiles as equal as possible: 13 rows are 7 and 6, not 12 and 1.
  const int64_t num_tiles = (args.num_rows + Steps::kRows - 1) / Steps::kRows;
  const int64_t chunk = num_tiles == 1 ? args.inner_dim : Steps::kChunk;
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    for (int64_t begin = 0; begin < args.inner_dim; begin += chunk) {
      const int64_t end = begin + chunk < args.inner_dim ? begin + chunk : args.inner_dim;
      for (int64_t tile = 0; tile < num_tiles; ++tile) {
        const int64_t row = tile * args.num_rows / num_tiles;
        const int64_t end_row = (tile + 1) * args.num_rows / num_tiles;
        RunTile<Steps, Tile, Steps::kRows>(args, end_row - row, {row, panel, begin, end});
      }
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
