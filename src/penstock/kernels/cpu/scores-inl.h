// Dot products of rows with rows, q . K of attention: kRows rows of x times kCols rows of w, one 16-lane accumulator
// for each.
//
// The tiles and their order change the speed only: an accumulator sees its own row of x and its own row of w in
// increasing k and nothing else.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// y[row, col] = x[row] . w[col].
struct ScoresProblem {
  int64_t num_rows;
  int64_t num_cols;
  int64_t inner_dim;
  const float* x;
  int64_t x_stride;
  const std::byte* w;  // any alignment
  int64_t w_stride_bytes;
  float* y;
  int64_t y_stride;
};

template <class V, int kCols>
inline void StoreScores(const V (&sums)[kCols], float* y) {
  int j = 0;
  for (; j + 4 <= kCols; j += 4) ReduceAdd4(sums[j], sums[j + 1], sums[j + 2], sums[j + 3], y + j);
  for (; j < kCols; ++j) y[j] = sums[j].ReduceAdd();
}

// sums += rows of x times rows of w over one step, by whichever loads the caller gives.
template <class V, int kRows, int kCols, class LoadX, class LoadW>
inline void MultiplyStep(V (&sums)[kRows][kCols], const LoadX& load_x, const LoadW& load_w) {
  V w_step[kCols];
#pragma GCC unroll 16
  for (int j = 0; j < kCols; ++j) w_step[j] = load_w(j);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    const V x_step = load_x(i);
#pragma GCC unroll 16
    for (int j = 0; j < kCols; ++j) sums[i][j] = Fma(x_step, w_step[j], sums[i][j]);
  }
}

template <class V, Dtype kDtype, int kRows, int kCols>
void ScoresTile(const ScoresProblem& problem, int64_t row, int64_t col) {
  constexpr int64_t kWBytes = kDtype == Dtype::kF32 ? 64 : 32;
  const float* x = problem.x + row * problem.x_stride;
  const std::byte* w = problem.w + col * problem.w_stride_bytes;
  V sums[kRows][kCols];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kCols; ++j) sums[i][j] = V::Zero();
  }
  for (int64_t step = 0; step < problem.inner_dim / 16; ++step) {
    MultiplyStep<V, kRows, kCols>(
        sums, [&](int i) { return V::Load(x + i * problem.x_stride); },
        [&](int j) { return V::template LoadAs<kDtype>(w + j * problem.w_stride_bytes); });
    x += 16;
    w += kWBytes;
  }
  const int64_t rest = problem.inner_dim % 16;
  if (rest != 0) {
    MultiplyStep<V, kRows, kCols>(
        sums, [&](int i) { return V::LoadPartial(x + i * problem.x_stride, rest, 0); },
        [&](int j) { return V::template LoadPartialAs<kDtype>(w + j * problem.w_stride_bytes, rest); });
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) StoreScores<V, kCols>(sums[i], problem.y + (row + i) * problem.y_stride + col);
}

// `num_rows` <= kRows rows at `row`.
template <class V, Dtype kDtype, int kRows>
void ScoresRows(const ScoresProblem& problem, int64_t row, int64_t num_rows) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) return ScoresRows<V, kDtype, kRows - 1>(problem, row, num_rows);
  }
  int64_t col = 0;
  for (; col + V::kTileCols <= problem.num_cols; col += V::kTileCols) {
    ScoresTile<V, kDtype, kRows, V::kTileCols>(problem, row, col);
  }
  for (; col < problem.num_cols; ++col) ScoresTile<V, kDtype, kRows, 1>(problem, row, col);
}

template <class V, Dtype kDtype>
void Scores(const ScoresProblem& problem) {
  // Tiles as equal as possible: 7 rows are 4 and 3, not 6 and 1.
  const int64_t num_tiles = (problem.num_rows + V::kTileRows - 1) / V::kTileRows;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t row = tile * problem.num_rows / num_tiles;
    ScoresRows<V, kDtype, V::kTileRows>(problem, row, (tile + 1) * problem.num_rows / num_tiles - row);
  }
}

}  // namespace
}  // namespace penstock::kernels
