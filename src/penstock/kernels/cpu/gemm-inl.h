// GEMM by register tiles: kRows rows of x times kCols rows of w, one 16-lane accumulator for each output.
//
// The tiles and their order change the speed only: an accumulator sees its own row of x and its own row of w in
// increasing k and nothing else. `Steps` says what one step along k loads and how it multiplies; it is a template
// argument, so that f32 and bf16 share the tiles.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// Either GEMM with its types erased.
struct GemmProblem {
  int64_t num_rows;
  int64_t num_cols;
  int64_t inner_dim;
  const std::byte* x;
  int64_t x_stride_bytes;
  const std::byte* w;
  int64_t w_stride_bytes;
  const float* bias;
  float* y;
  int64_t y_stride;
};

// f32 rows times rows of any stored type, widened as they are loaded.
template <class V, Dtype kDtype>
struct F32Steps {
  using Vec = V;
  using X = V;
  using W = V;
  static constexpr int64_t kElements = 16;
  static constexpr int64_t kXBytes = 64;
  static constexpr int64_t kWBytes = kDtype == Dtype::kF32 ? 64 : 32;
  static constexpr int kTileRows = V::kTileRows;
  static constexpr int kTileCols = V::kTileCols;
  static constexpr int kVectorCols = V::kVectorCols;

  static X LoadX(const std::byte* source) { return V::template LoadAs<Dtype::kF32>(source); }
  static W LoadW(const std::byte* source) { return V::template LoadAs<kDtype>(source); }
  static X LoadPartialX(const std::byte* source, int64_t count) {
    return V::template LoadPartialAs<Dtype::kF32>(source, count);
  }
  static W LoadPartialW(const std::byte* source, int64_t count) {
    return V::template LoadPartialAs<kDtype>(source, count);
  }
  static V Dot(const X& x, const W& w, const V& sum) { return Fma(x, w, sum); }
};

// bf16 rows times bf16 rows, in pairs.
template <class V, class Pairs>
struct Bf16Steps {
  using Vec = V;
  using X = Pairs;
  using W = Pairs;
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kXBytes = 64;
  static constexpr int64_t kWBytes = 64;
  static constexpr int kTileRows = Pairs::kTileRows;
  static constexpr int kTileCols = Pairs::kTileCols;
  static constexpr int kVectorCols = Pairs::kVectorCols;

  static X LoadX(const std::byte* source) { return Pairs::Load(source); }
  static W LoadW(const std::byte* source) { return Pairs::Load(source); }
  static X LoadPartialX(const std::byte* source, int64_t count) { return Pairs::LoadPartial(source, count); }
  static W LoadPartialW(const std::byte* source, int64_t count) { return Pairs::LoadPartial(source, count); }
  static V Dot(const X& x, const W& w, const V& sum) { return Pairs::Dot(x, w, sum); }
};

template <class V, int kCols>
inline void StoreSums(const V (&sums)[kCols], const float* bias, float* y) {
  int j = 0;
  for (; j + 4 <= kCols; j += 4) {
    float four[4];
    ReduceAdd4(sums[j], sums[j + 1], sums[j + 2], sums[j + 3], four);
    for (int i = 0; i < 4; ++i) y[j + i] = bias != nullptr ? four[i] + bias[j + i] : four[i];
  }
  for (; j < kCols; ++j) {
    const float sum = sums[j].ReduceAdd();
    y[j] = bias != nullptr ? sum + bias[j] : sum;
  }
}

// sums += rows of x times rows of w over one step, by whichever loads the caller gives.
template <class Steps, int kRows, int kCols, class LoadX, class LoadW>
inline void MultiplyStep(typename Steps::Vec (&sums)[kRows][kCols], const LoadX& load_x, const LoadW& load_w) {
  typename Steps::W w_step[kCols];
#pragma GCC unroll 16
  for (int j = 0; j < kCols; ++j) w_step[j] = load_w(j);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    const typename Steps::X x_step = load_x(i);
#pragma GCC unroll 16
    for (int j = 0; j < kCols; ++j) sums[i][j] = Steps::Dot(x_step, w_step[j], sums[i][j]);
  }
}

// Where a single row of x makes the speed of memory the limit, each step also asks for the same place kCols rows of w
// further on, which is read next.
enum class Ahead : bool { kNo, kYes };

template <class Steps, int kRows, int kCols, Ahead kAhead>
void GemmTile(const GemmProblem& problem, int64_t row, int64_t col) {
  using V = typename Steps::Vec;
  const std::byte* x = problem.x + row * problem.x_stride_bytes;
  const std::byte* w = problem.w + col * problem.w_stride_bytes;
  V sums[kRows][kCols];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kCols; ++j) sums[i][j] = V::Zero();
  }
  const int64_t num_steps = problem.inner_dim / Steps::kElements;
  for (int64_t step = 0; step < num_steps; ++step) {
    MultiplyStep<Steps, kRows, kCols>(
        sums, [&](int i) { return Steps::LoadX(x + i * problem.x_stride_bytes); },
        [&](int j) {
          if (kAhead == Ahead::kYes) __builtin_prefetch(w + (j + kCols) * problem.w_stride_bytes, 0, 2);
          return Steps::LoadW(w + j * problem.w_stride_bytes);
        });
    x += Steps::kXBytes;
    w += Steps::kWBytes;
  }
  const int64_t rest = problem.inner_dim % Steps::kElements;
  if (rest != 0) {
    MultiplyStep<Steps, kRows, kCols>(
        sums, [&](int i) { return Steps::LoadPartialX(x + i * problem.x_stride_bytes, rest); },
        [&](int j) { return Steps::LoadPartialW(w + j * problem.w_stride_bytes, rest); });
  }
  const float* bias = problem.bias != nullptr ? problem.bias + col : nullptr;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    StoreSums<V, kCols>(sums[i], bias, problem.y + (row + i) * problem.y_stride + col);
  }
}

// `num_rows` <= kRows rows at `row` times columns [first_col, end_col).
template <class Steps, int kRows>
void GemmRows(const GemmProblem& problem, int64_t row, int64_t num_rows, int64_t first_col, int64_t end_col) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) return GemmRows<Steps, kRows - 1>(problem, row, num_rows, first_col, end_col);
  }
  int64_t col = first_col;
  for (; col + Steps::kTileCols <= end_col; col += Steps::kTileCols) {
    GemmTile<Steps, kRows, Steps::kTileCols, Ahead::kNo>(problem, row, col);
  }
  for (; col < end_col; ++col) GemmTile<Steps, kRows, 1, Ahead::kNo>(problem, row, col);
}

template <class Steps>
void GemmSingleRow(const GemmProblem& problem) {
  int64_t col = 0;
  for (; col + Steps::kVectorCols <= problem.num_cols; col += Steps::kVectorCols) {
    GemmTile<Steps, 1, Steps::kVectorCols, Ahead::kYes>(problem, 0, col);
  }
  for (; col < problem.num_cols; ++col) GemmTile<Steps, 1, 1, Ahead::kNo>(problem, 0, col);
}

// Blocks of w that stay in the second-level cache while all rows of x pass over them. Cutting k as well, with the
// accumulators kept on the stack in between, gave f32 weights 15 % at K = 5632 and M = 256, took as much at M = 16, and
// did nothing for bf16 (Cascade Lake, November 2026).
constexpr int64_t kBlockBytes = 256 * 1024;

template <class Steps>
void Gemm(const GemmProblem& problem) {
  if (problem.num_rows == 1) return GemmSingleRow<Steps>(problem);
  const int64_t row_bytes = (problem.inner_dim / Steps::kElements + 1) * Steps::kWBytes;
  const int64_t fitting = kBlockBytes / row_bytes / Steps::kTileCols * Steps::kTileCols;
  const int64_t block_cols = fitting > Steps::kTileCols ? fitting : Steps::kTileCols;
  // Tiles as equal as possible: 7 rows are 4 and 3, not 6 and 1.
  const int64_t num_tiles = (problem.num_rows + Steps::kTileRows - 1) / Steps::kTileRows;
  for (int64_t col = 0; col < problem.num_cols; col += block_cols) {
    const int64_t end_col = col + block_cols < problem.num_cols ? col + block_cols : problem.num_cols;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int64_t row = tile * problem.num_rows / num_tiles;
      const int64_t end_row = (tile + 1) * problem.num_rows / num_tiles;
      GemmRows<Steps, Steps::kTileRows>(problem, row, end_row - row, col, end_col);
    }
  }
}

template <class V>
void GemmF32(const GemmF32Args& args) {
  const int64_t w_size = args.w_dtype == Dtype::kF32 ? 4 : 2;
  const GemmProblem problem = {.num_rows = args.num_rows,
                               .num_cols = args.num_cols,
                               .inner_dim = args.inner_dim,
                               .x = reinterpret_cast<const std::byte*>(args.x),
                               .x_stride_bytes = 4 * args.x_stride,
                               .w = args.w,
                               .w_stride_bytes = w_size * args.w_stride,
                               .bias = args.bias,
                               .y = args.y,
                               .y_stride = args.y_stride};
  switch (args.w_dtype) {
    case Dtype::kF32: return Gemm<F32Steps<V, Dtype::kF32>>(problem);
    case Dtype::kF16: return Gemm<F32Steps<V, Dtype::kF16>>(problem);
    case Dtype::kBF16: return Gemm<F32Steps<V, Dtype::kBF16>>(problem);
  }
}

template <class V, class Pairs>
void GemmBf16(const GemmBf16Args& args) {
  Gemm<Bf16Steps<V, Pairs>>({.num_rows = args.num_rows,
                             .num_cols = args.num_cols,
                             .inner_dim = args.inner_dim,
                             .x = reinterpret_cast<const std::byte*>(args.x),
                             .x_stride_bytes = 2 * args.x_stride,
                             .w = args.w,
                             .w_stride_bytes = 2 * args.w_stride,
                             .bias = args.bias,
                             .y = args.y,
                             .y_stride = args.y_stride});
}

}  // namespace
}  // namespace penstock::kernels
