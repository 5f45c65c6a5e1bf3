// GEMM over panels of float weights: tiles of rows of x times vectors of one panel, with one lane for each output.
//
// The tiles and their order change only the speed. A lane sees only its own row of x and its own output's weights, in
// the order of the law of sums.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

constexpr int kVecsPerPanel = 2;
// The bytes of 4 inputs of 32 outputs in codes of 8 bits: 64 for each vector.
constexpr int64_t kQuadBytes = 4 * kPanelCols;

// For four bits: bit 7 if their number is odd (EvenBits in ints_scalar-inl.h).
constexpr uint8_t kOddBits[16] = {0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0};

template <int kValue>
struct IntConstant {
  static constexpr int value = kValue;
  constexpr operator int() const { return kValue; }
};

// Calls body(IntConstant<0>) .. body(IntConstant<kCount - 1>), unrolled before the compiler allocates registers. GCC 12
// keeps an array that a loop indexes in memory even when it unrolls the loop later, and stores every accumulator in
// every step.
template <int kCount, class Body>
[[gnu::always_inline]] inline void Unrolled(const Body& body) {
  if constexpr (kCount > 0) {
    Unrolled<kCount - 1>(body);
    body(IntConstant<kCount - 1>{});
  }
}

// Rows at an even distance. A row's address is one of a few pointers plus zero, one or two strides, which one
// addressing mode covers. So registers suffice for more rows than there are pointers.
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

// Prefetches the next weights: a panel is read once and in order, so they are known. For each kBytes of weights that a
// tile reads, it prefetches `lines` = 0, 1, 2, 4 or 8 lines.
//
// Two or more lines come from two pages: the second half of one and the first half of the page after it. On Cascade
// Lake, memory delivers a tenth more from two pages at a time than from one after another. On Zen 4 it delivers less
// than when the processor alone prefetches: one row of q4_k reads 21 GB/s instead of 31, and one of int8 20 instead of
// 28. The processor falls behind where a tile pauses between reads, to unpack codes for several rows. There it helps to
// ask for lines far ahead, into the L2 cache. On Zen 4 four rows of q4_k then read 18 GB/s instead of 13, while one of
// int8 loses a quarter. On Zen 5 nearly all formats gained. For two tiles or more it brought nothing there. So the way
// is chosen while a program computes (ops/prefetching.h).
struct Prefetch {
  int64_t ahead;  // distance from the current read: exact for one line, in whole pages for more
  int lines;
  bool is_near = false;  // restarts at every group of inputs that a tile reads
  bool is_far = false;   // one page after another, into the L2 cache
  const std::byte* next = nullptr;

  static constexpr int64_t kBytes = 512;
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kFar = 10 * 1024;  // 4 KiB are slower; 8 to 16 KiB differ little

  // Called when a tile is about to read `w`.
  [[gnu::always_inline]] void StartAt(const std::byte* w) {
    if (lines == 1 || is_far) {
      next = w + ahead;
    } else {
      const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(w));
      const int64_t halved = address % kPage / kBytes * kBytes / 2;
      next = w - address % kPage + ahead / kPage * kPage + kPage / 2 + halved;
    }
  }
  [[gnu::always_inline]] void StartGroupAt(const std::byte* w) {
    if (is_near) StartAt(w);
  }
  // Branches that go one way for a whole tile cost nothing; a loop over the lines would cost a fifth of the tile's
  // time.
  [[gnu::always_inline]] void Issue() {
    if (lines == 0) return;
    if (is_far) {
      Unrolled<8>([&](auto i) __attribute__((always_inline)) { __builtin_prefetch(next + 64 * i, 0, 2); });
      next += kBytes;
      return;
    }
    if (lines == 1) {
      __builtin_prefetch(next);
      next += 64;
      return;
    }
    Ask<0, 1>();
    if (lines > 2) {
      Ask<1, 2>();
      if (lines > 4) Ask<2, 4>();
    }
    next += 32 * lines;
    // Past the end of a page, continues at the second half of the page after it.
    next += ~reinterpret_cast<uintptr_t>(next) & (kPage / 2);
  }

 private:
  template <int kFirst, int kEnd>
  [[gnu::always_inline]] void Ask() const {
    Unrolled<kEnd - kFirst>([&](auto i) __attribute__((always_inline)) {
      __builtin_prefetch(next + 64 * (kFirst + i));
      __builtin_prefetch(next + kPage / 2 + 64 * (kFirst + i));
    });
  }
};

// Prefetches the next chunk of a panel while tiles compute on this one. The two halves of the chunk take turns, because
// memory delivers more from two pages at a time.
struct NextChunk {
  const std::byte* next = nullptr;
  int64_t half_bytes = 0;
  int lines = 0;  // of each half, with each call

  // `num_calls` calls of Issue() share the chunk.
  static NextChunk For(const std::byte* chunk, int64_t chunk_bytes, int64_t num_calls) {
    return {chunk, chunk_bytes / 2, static_cast<int>((chunk_bytes / 128 + num_calls - 1) / num_calls)};
  }
  // Into the L2 cache with `kFar`: on Zen 4, 16 rows of q8_0, which has the most bytes for each product, take 13 % less
  // time then. Formats of 4 to 6 bits do not change.
  template <bool kFar = false>
  [[gnu::always_inline]] void Issue() {
    for (int i = 0; i < lines; ++i) {
      __builtin_prefetch(next, 0, kFar ? 2 : 3);
      __builtin_prefetch(next + half_bytes, 0, kFar ? 2 : 3);
      next += 64;
    }
  }
};

// The product of some rows of x and one panel over the inputs [begin, end).
struct TileRun {
  const std::byte* x;  // the first row
  int64_t x_stride_bytes;
  const std::byte* w;  // the panel from input `begin` on
  int64_t inner_dim;
  int64_t begin;  // a multiple of the format's block
  int64_t end;    // a multiple of the format's block, or inner_dim
  float* sums;    // [rows, kPanelCols]: sums over the inputs before `begin`
  Prefetch prefetch;
  int64_t first_row = 0;             // of the tile, in its block
  const std::byte* terms = nullptr;  // of the block's rows (CodeTile)
  const std::byte* codes = nullptr;  // of the chunk (CodeTile)
  NextChunk next_chunk = {};
};

// A step is a pair of inputs: kStepBytes of a panel, kXBytes of each row. Chunks are multiples of kBlockInputs.
template <class V, WeightFormat kFormat>
struct FloatSteps {
  using Vec = V;
  static constexpr int kRows = V::kPanelRows;
  static constexpr int kVecs = V::kPanelVecs;
  static constexpr int64_t kStepBytes = kFormat == WeightFormat::kF32 ? 256 : 128;
  static constexpr int64_t kXBytes = 8;
  static constexpr int64_t kBlockInputs = 128;
  static constexpr int64_t kBlockBytes = kBlockInputs / 2 * kStepBytes;

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

  // Computes sums += x * w over one pair. A last input without a partner gets the partner 0.
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

template <class Steps, int kTileRows>
struct FloatTile {
  [[gnu::always_inline]] static void Run(TileRun& run) {
    using V = typename Steps::Vec;
    constexpr int kVecs = Steps::kVecs;
    constexpr int64_t kUnroll = Prefetch::kBytes / Steps::kStepBytes;
    for (int first_vec = 0; first_vec < kVecsPerPanel; first_vec += kVecs) {
      const std::byte* w = run.w;
      RowPointers<kTileRows> x(run.x + run.begin / 2 * Steps::kXBytes, run.x_stride_bytes);
      run.prefetch.StartGroupAt(w);
      V sums[kTileRows][kVecs];
      float* stored = run.sums + 16 * first_vec;
      Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
        Unrolled<kVecs>([&](auto v)
                            __attribute__((always_inline)) { sums[r][v] = V::Load(stored + r * kPanelCols + 16 * v); });
      });
      const auto step = [&]() __attribute__((always_inline)) {
        Steps::template Multiply<kTileRows>(w, first_vec, x, true, sums);
        w += Steps::kStepBytes;
        x.Advance(Steps::kXBytes);
      };
      int64_t k = run.begin;
      for (; k + 2 * kUnroll <= run.end; k += 2 * kUnroll) {
        run.prefetch.Issue();
#pragma GCC unroll 4
        for (int i = 0; i < kUnroll; ++i) step();
      }
      for (; k + 2 <= run.end; k += 2) step();
      if (run.end % 2 != 0) Steps::template Multiply<kTileRows>(w, first_vec, x, false, sums);
      Unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
        Unrolled<kVecs>([&](auto v)
                            __attribute__((always_inline)) { sums[r][v].Store(stored + r * kPanelCols + 16 * v); });
      });
    }
  }
};

// Computes the next `num_tiles` tiles of num_rows <= kTileRows rows each.
template <class Steps, template <class, int> class Tile, int kTileRows>
void RunTiles(int64_t num_tiles, int64_t num_rows, TileRun& run) {
  if constexpr (kTileRows > 1) {
    if (num_rows < kTileRows) return RunTiles<Steps, Tile, kTileRows - 1>(num_tiles, num_rows, run);
  }
  TileRun tile = run;
  for (; num_tiles > 0; --num_tiles) {
    Tile<Steps, kTileRows>::Run(tile);
    tile.x += kTileRows * run.x_stride_bytes;
    tile.sums += kTileRows * kPanelCols;
    tile.first_row += kTileRows;
  }
  run = tile;
}

// Stores y[row + i, panel] = sums[i] + bias for `num_rows` rows.
template <class V>
void StorePanel(const GemmArgs& args, int64_t row, int64_t num_rows, int64_t panel, const float* sums) {
  for (int64_t vec = 0; vec < kVecsPerPanel; ++vec) {
    const int64_t col = panel * kPanelCols + 16 * vec;
    const int64_t count = args.num_cols - col;
    if (count <= 0) return;
    V bias = V::Zero();
    if (args.bias != nullptr) bias = count >= 16 ? V::Load(args.bias + col) : V::LoadPartial(args.bias + col, count, 0);
    for (int64_t i = 0; i < num_rows; ++i) {
      V sum = V::Load(sums + i * kPanelCols + 16 * vec);
      // Without the test, a sum of -0 would become 0.
      if (args.bias != nullptr) sum = Add(sum, bias);
      float* y = args.y + (row + i) * args.y_stride + col;
      if (count >= 16) {
        sum.Store(y);
      } else {
        sum.StorePartial(y, count);
      }
    }
  }
}

// Rows that fit one tile read a panel from memory in one go; see Prefetching. More rows read it in chunks that stay in
// the L1 cache while the tiles pass over them; each tile prefetches its share of the next chunk. With few tiles, memory
// is the limit, and short chunks keep it busy. Very many rows are split into blocks, each of which passes over all
// panels. A block of x fits the L2 cache, and its sums for a panel lie on the stack.
constexpr int64_t kFewTiles = 4;
constexpr int64_t kFewTilesChunkBytes = 8 * 1024;
constexpr int64_t kChunkBytes = 16 * 1024;
constexpr int64_t kMaxTiles = 8;

// Splits `total` into `num_parts` parts as equal as possible; the first parts have one more.
struct EvenParts {
  int64_t min;
  int64_t num_larger;

  EvenParts(int64_t total, int64_t num_parts) : min(total / num_parts), num_larger(total % num_parts) {}
};

// Neighbouring tiles of rows. The number of rows of each tile is stored because dividing for every tile took a tenth of
// a tile's time.
struct TileBlock {
  int64_t first_row;
  int64_t num_tiles;
  int64_t num_larger;  // the first tiles have min_rows + 1 rows
  int64_t min_rows;

  int64_t num_rows() const { return num_tiles * min_rows + num_larger; }
};

// Prefetches the rows [begin, end) of a panel of y, so that stores to it do not wait for memory.
inline void PrefetchOutput(const GemmArgs& args, int64_t begin, int64_t end, int64_t panel) {
  for (int64_t row = begin; row < end; ++row) {
    const float* y = args.y + row * args.y_stride + panel * kPanelCols;
    __builtin_prefetch(y, 1);
    __builtin_prefetch(y + 16, 1);
  }
}

// Multiplies the rows of `block` by one panel. `sums` has room for them.
template <class Steps, template <class, int> class Tile>
void RunPanel(const GemmArgs& args, const TileBlock& block, int64_t panel, float* sums) {
  const int64_t num_tiles = block.num_tiles;
  const int64_t num_rows = block.num_rows();
  const int64_t wanted_bytes = num_tiles <= kFewTiles ? kFewTilesChunkBytes : kChunkBytes;
  const int64_t num_blocks = wanted_bytes > Steps::kBlockBytes ? wanted_bytes / Steps::kBlockBytes : 1;
  const int64_t chunk = num_tiles == 1 ? args.inner_dim : num_blocks * Steps::kBlockInputs;
  const int64_t chunk_bytes = num_blocks * Steps::kBlockBytes;
  TileRun run = {.x = nullptr,
                 .x_stride_bytes = args.x_stride_bytes,
                 .w = args.w + panel * args.panel_bytes,
                 .inner_dim = args.inner_dim,
                 .begin = 0,
                 .end = 0,
                 .sums = nullptr,
                 .prefetch = {.ahead = 0, .lines = 0}};
  if (num_tiles == 1 && args.prefetching == Prefetching::kTwoPages) {
    run.prefetch = {.ahead = Prefetch::kPage, .lines = 8, .is_near = true};
  } else if (num_tiles == 1 && args.prefetching == Prefetching::kFar) {
    run.prefetch = {.ahead = Prefetch::kFar, .lines = 8, .is_near = true, .is_far = true};
  } else if (num_tiles > 1) {
    run.prefetch = {.ahead = chunk_bytes, .lines = num_tiles < 4 ? 4 : num_tiles < 6 ? 2 : 1, .is_near = false};
  }
  __builtin_memset(sums, 0, static_cast<size_t>(num_rows) * kPanelCols * sizeof(float));
  // The number of rows of y to prefetch with each chunk.
  const int64_t rows_per_chunk = num_tiles > kFewTiles ? num_rows / ((args.inner_dim + chunk - 1) / chunk) + 1 : 0;
  for (int64_t row = 0; run.begin < args.inner_dim; run.begin += chunk, row += rows_per_chunk) {
    if (rows_per_chunk > 0) {
      const int64_t end = row + rows_per_chunk < num_rows ? row + rows_per_chunk : num_rows;
      PrefetchOutput(args, block.first_row + row, block.first_row + end, panel);
    }
    run.end = run.begin + chunk < args.inner_dim ? run.begin + chunk : args.inner_dim;
    run.x = args.x + block.first_row * args.x_stride_bytes;
    run.sums = sums;
    run.prefetch.StartAt(run.w);
    RunTiles<Steps, Tile, Steps::kRows>(block.num_larger, block.min_rows + 1, run);
    RunTiles<Steps, Tile, Steps::kRows>(num_tiles - block.num_larger, block.min_rows, run);
    run.w += chunk_bytes;
  }
  StorePanel<typename Steps::Vec>(args, block.first_row, num_rows, panel, sums);
}

// Calls body(block, panel, sums) for all blocks of up to `kMax` tiles and all panels; `sums` has room for one block.
template <class Steps, int64_t kMax, class Body>
void ForEachPanel(const GemmArgs& args, const Body& body) {
  if (args.num_rows == 0) return;
  alignas(64) float sums[kMax * Steps::kRows * kPanelCols];
  // Makes tiles as equal as possible: 13 rows are 7 and 6, not 12 and 1.
  const int64_t num_tiles = (args.num_rows + Steps::kRows - 1) / Steps::kRows;
  const EvenParts tile_rows(args.num_rows, num_tiles);
  const int64_t num_blocks = (num_tiles + kMax - 1) / kMax;
  const EvenParts block_tiles(num_tiles, num_blocks);
  int64_t larger_left = tile_rows.num_larger;
  TileBlock block = {.first_row = 0, .num_tiles = 0, .num_larger = 0, .min_rows = tile_rows.min};
  for (int64_t block_idx = 0; block_idx < num_blocks; ++block_idx) {
    block.num_tiles = block_tiles.min + (block_idx < block_tiles.num_larger ? 1 : 0);
    block.num_larger = larger_left < block.num_tiles ? larger_left : block.num_tiles;
    for (int64_t panel = 0; panel * kPanelCols < args.num_cols; ++panel) body(block, panel, sums);
    larger_left -= block.num_larger;
    block.first_row += block.num_rows();
  }
}

template <class Steps, template <class, int> class Tile>
void RunGemm(const GemmArgs& args) {
  ForEachPanel<Steps, kMaxTiles>(args, [&](const TileBlock& block, int64_t panel, float* sums) {
    RunPanel<Steps, Tile>(args, block, panel, sums);
  });
}

}  // namespace
}  // namespace penstock::kernels
