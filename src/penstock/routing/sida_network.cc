#include "penstock/routing/sida_network.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "penstock/base/check.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {
namespace {

constexpr int64_t kRowsAtOnce = 16;  // rows of a sequence that go through a matrix at once

float Dot(const float* a, const float* b, size_t size) {
  constexpr size_t kSums = 16;
  float sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= size; i += kSums) {
    for (size_t k = 0; k < kSums; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < size; ++i) sums[i % kSums] += a[i] * b[i];
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

}  // namespace

void SparseMax(std::span<const float> scores, std::span<float> scratch, std::span<float> weights) {
  PENSTOCK_CHECK(!scores.empty() && scratch.size() == scores.size() && weights.size() == scores.size());
  std::copy(scores.begin(), scores.end(), scratch.begin());
  std::sort(scratch.begin(), scratch.end(), std::greater<>());
  // The k largest are positive in the result for the largest k with 1 + k z_k > z_1 + ... + z_k.
  double sum = 0, threshold = 0;
  for (size_t k = 0; k < scratch.size(); ++k) {
    const double z = scratch[k];
    if (1 + static_cast<double>(k + 1) * z <= sum + z) break;
    sum += z;
    threshold = (sum - 1) / static_cast<double>(k + 1);
  }
  std::transform(scores.begin(), scores.end(), weights.begin(),
                 [&](float score) { return static_cast<float>(std::max(0.0, score - threshold)); });
}

SidaNetwork::State SidaNetwork::NewState() const {
  const size_t dim = shape_.dim;
  return {.cells = std::vector<float>(2 * dim),
          .outputs = std::vector<float>(2 * dim),
          .window = std::vector<float>(static_cast<size_t>(shape_.window) * dim)};
}

SidaNetwork::Scratch SidaNetwork::NewScratch(const kernels::KernelTable& kernels) const {
  const size_t dim = shape_.dim, window = shape_.window;
  const auto of = [](size_t size) { return std::vector<float>(size); };
  const auto of_rows = [](size_t size) { return std::vector<float>(kRowsAtOnce * size); };
  return {.kernels = &kernels,
          .x = of_rows(dim),
          .first = of_rows(dim),
          .second = of_rows(dim),
          .asked = of_rows(dim),
          .inputs = of_rows(4 * dim),
          .queries = of_rows(dim),
          .logits = of_rows(bias_.size()),
          .gates = of(4 * dim),
          .scores = of(window),
          .sorted = of(window),
          .weights = of(window)};
}

uint64_t SidaShape::scratch_bytes() const {
  const int64_t of_row = 9 * dim + num_layers * num_experts;
  return static_cast<uint64_t>(kRowsAtOnce * of_row + 4 * dim + 3 * window) * sizeof(float);
}

SidaNetwork::Matrix SidaNetwork::Pack(const std::vector<float>& values, int64_t inner_dim) {
  Matrix matrix = {.num_cols = std::ssize(values) / inner_dim, .inner_dim = inner_dim, .panels = {}};
  matrix.panels.resize(PackedBytes(WeightFormat::kF32, matrix.num_cols, inner_dim) / sizeof(Matrix::Line));
  const uint64_t panel_lines = PanelBytes(WeightFormat::kF32, inner_dim) / sizeof(Matrix::Line);
  for (int64_t col = 0; col < matrix.num_cols; col += kPanelCols) {
    PackPanel(Dtype::kF32, std::as_bytes(std::span(values)).data() + col * inner_dim * 4,
              std::min(kPanelCols, matrix.num_cols - col), inner_dim, WeightFormat::kF32,
              matrix.panels[static_cast<size_t>(col / kPanelCols) * panel_lines].bytes);
  }
  return matrix;
}

void SidaNetwork::Multiply(const kernels::KernelTable& kernels, const Matrix& matrix, const float* x, int64_t num_rows,
                           const float* bias, float* y) {
  kernels.gemm({.num_rows = num_rows,
                .num_cols = matrix.num_cols,
                .inner_dim = matrix.inner_dim,
                .x_format = kernels::RowFormat::kF32,
                .x = std::as_bytes(std::span(x, static_cast<size_t>(num_rows * matrix.inner_dim))).data(),
                .x_stride_bytes = matrix.inner_dim * static_cast<int64_t>(sizeof(float)),
                .w_format = WeightFormat::kF32,
                .w = matrix.panels.front().bytes,
                .panel_bytes = static_cast<int64_t>(PanelBytes(WeightFormat::kF32, matrix.inner_dim)),
                .bias = bias,
                .y = y,
                .y_stride = matrix.num_cols});
}

// Sets `outputs` [num_rows, dim]. `cell` and `output` are those of the token before, and then those of the last row.
void SidaNetwork::RunLstm(const Lstm& lstm, const float* x, int64_t num_rows, float* cell, float* output,
                          Scratch& scratch, float* outputs) const {
  const auto dim = static_cast<size_t>(shape_.dim);
  const kernels::KernelTable& kernels = *scratch.kernels;
  Multiply(kernels, lstm.input, x, num_rows, lstm.bias.data(), scratch.inputs.data());
  float* gates = scratch.gates.data();
  for (size_t row = 0; row < static_cast<size_t>(num_rows); ++row) {
    Multiply(kernels, lstm.hidden, output, 1, scratch.inputs.data() + row * 4 * dim, gates);
    // sigmoid(x) = 1 / (1 + exp(-x)), and tanh(x) = 2 sigmoid(2x) - 1.
    for (size_t i = 0; i < 4 * dim; ++i) gates[i] *= i >= 2 * dim && i < 3 * dim ? -2.0f : -1.0f;
    kernels.exp(gates, 4 * shape_.dim, gates);
    for (size_t i = 0; i < 4 * dim; ++i) gates[i] = 1.0f / (1.0f + gates[i]);
    for (size_t i = 0; i < dim; ++i) cell[i] = gates[dim + i] * cell[i] + gates[i] * (2.0f * gates[2 * dim + i] - 1.0f);
    for (size_t i = 0; i < dim; ++i) output[i] = -2.0f * cell[i];
    kernels.exp(output, shape_.dim, output);
    for (size_t i = 0; i < dim; ++i) output[i] = gates[3 * dim + i] * (2.0f / (1.0f + output[i]) - 1.0f);
    std::copy_n(output, dim, outputs + row * dim);
  }
}

// Sets `out` [dim] to the weighted sum of the outputs in the window.
void SidaNetwork::Attend(const State& state, const float* query, Scratch& scratch, float* out) const {
  const size_t dim = shape_.dim;
  const auto size = static_cast<size_t>(std::min(state.num_tokens, shape_.window));
  for (size_t i = 0; i < size; ++i) scratch.scores[i] = Dot(query, state.window.data() + i * dim, dim);
  const std::span<float> weights = std::span(scratch.weights).first(size);
  SparseMax(std::span(scratch.scores).first(size), std::span(scratch.sorted).first(size), weights);
  std::fill_n(out, dim, 0.0f);
  for (size_t i = 0; i < size; ++i) {
    if (weights[i] == 0) continue;
    for (size_t j = 0; j < dim; ++j) out[j] += weights[i] * state.window[i * dim + j];
  }
}

void SidaNetwork::Run(std::span<const int32_t> token_ids, size_t stride, State& state, Scratch& scratch,
                      Taker take) const {
  const auto dim = static_cast<size_t>(shape_.dim);
  for (size_t begin = 0; begin < token_ids.size(); begin += kRowsAtOnce) {
    const size_t num_rows = std::min<size_t>(kRowsAtOnce, token_ids.size() - begin);
    for (size_t row = 0; row < num_rows; ++row) {
      const int32_t token_id = token_ids[begin + row];
      PENSTOCK_CHECK(token_id >= 0 && token_id < shape_.vocab_size);
      std::copy_n(table_.data() + static_cast<size_t>(token_id) * dim, dim, scratch.x.data() + row * dim);
    }
    const auto count = static_cast<int64_t>(num_rows);
    RunLstm(lstm_[0], scratch.x.data(), count, state.cells.data(), state.outputs.data(), scratch, scratch.first.data());
    RunLstm(lstm_[1], scratch.first.data(), count, state.cells.data() + dim, state.outputs.data() + dim, scratch,
            scratch.second.data());
    if (stride > 0) Multiply(*scratch.kernels, query_, scratch.second.data(), count, nullptr, scratch.queries.data());
    size_t num_asked = 0;
    for (size_t row = 0; row < num_rows; ++row) {
      const auto place = static_cast<size_t>(state.num_tokens++ % shape_.window);
      std::copy_n(scratch.second.data() + row * dim, dim, state.window.data() + place * dim);
      if (stride == 0 || (begin + row) % stride != 0) continue;
      float* asked = scratch.asked.data() + dim * num_asked++;
      Attend(state, scratch.queries.data() + row * dim, scratch, asked);
      for (size_t i = 0; i < dim; ++i) asked[i] += scratch.x[row * dim + i];
    }
    if (num_asked == 0) continue;
    Multiply(*scratch.kernels, output_, scratch.asked.data(), static_cast<int64_t>(num_asked), bias_.data(),
             scratch.logits.data());
    size_t idx = 0;
    for (size_t row = 0; row < num_rows; ++row) {
      if ((begin + row) % stride != 0) continue;
      take(begin + row, std::span(scratch.logits).subspan(bias_.size() * idx++, bias_.size()));
    }
  }
}

double SidaNetwork::flops_per_token() const {
  const auto dim = static_cast<double>(shape_.dim);
  // Two LSTM layers with two matrices each, the query, scores and weighted outputs of the window, and the logits.
  return 2 * dim * (17 * dim + 2 * static_cast<double>(shape_.window) + static_cast<double>(bias_.size()));
}

}  // namespace penstock
