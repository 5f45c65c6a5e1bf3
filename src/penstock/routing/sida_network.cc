#include "penstock/routing/sida_network.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "penstock/base/check.h"

namespace penstock {
namespace {

// Adds the products of a matrix, stored column by column, with a vector: out += sum of x[j] * column j.
void AddProduct(const float* matrix, const float* x, size_t num_columns, float* __restrict out, size_t num_rows) {
  size_t j = 0;
  for (; j + 4 <= num_columns; j += 4) {
    const float* a = matrix + j * num_rows;
    const float* b = a + num_rows;
    const float* c = b + num_rows;
    const float* d = c + num_rows;
    for (size_t i = 0; i < num_rows; ++i) {
      out[i] += (x[j] * a[i] + x[j + 1] * b[i]) + (x[j + 2] * c[i] + x[j + 3] * d[i]);
    }
  }
  for (; j < num_columns; ++j) {
    for (size_t i = 0; i < num_rows; ++i) out[i] += x[j] * matrix[j * num_rows + i];
  }
}

float Dot(const float* a, const float* b, size_t size) {
  constexpr size_t kSums = 8;
  float sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= size; i += kSums) {
    for (size_t k = 0; k < kSums; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < size; ++i) sums[i % kSums] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

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

SidaNetwork::Scratch SidaNetwork::NewScratch() const {
  const size_t dim = shape_.dim, window = shape_.window;
  const auto of = [](size_t size) { return std::vector<float>(size); };
  return {.gates = of(4 * dim),
          .hidden = of(dim),
          .query = of(dim),
          .scores = of(window),
          .sorted = of(window),
          .weights = of(window)};
}

void SidaNetwork::StepLstm(size_t layer, const float* x, State& state, Scratch& scratch) const {
  const size_t dim = shape_.dim;
  const Lstm& lstm = lstm_[layer];
  float* gates = scratch.gates.data();
  float* output = state.outputs.data() + layer * dim;
  float* cell = state.cells.data() + layer * dim;
  std::copy(lstm.bias.begin(), lstm.bias.end(), gates);
  AddProduct(lstm.input.data(), x, dim, gates, 4 * dim);
  AddProduct(lstm.hidden.data(), output, dim, gates, 4 * dim);
  for (size_t i = 0; i < dim; ++i) {
    cell[i] = Sigmoid(gates[dim + i]) * cell[i] + Sigmoid(gates[i]) * std::tanh(gates[2 * dim + i]);
    output[i] = Sigmoid(gates[3 * dim + i]) * std::tanh(cell[i]);
  }
}

// Sets scratch.hidden to the weighted sum of the outputs in the window.
void SidaNetwork::Attend(const State& state, Scratch& scratch) const {
  const size_t dim = shape_.dim;
  const float* output = state.outputs.data() + dim;
  const auto size = static_cast<size_t>(std::min(state.num_tokens, shape_.window));
  std::fill(scratch.query.begin(), scratch.query.end(), 0.0f);
  AddProduct(query_.data(), output, dim, scratch.query.data(), dim);
  for (size_t i = 0; i < size; ++i) {
    scratch.scores[i] = Dot(scratch.query.data(), state.window.data() + i * dim, dim);
  }
  const std::span<float> weights = std::span(scratch.weights).first(size);
  SparseMax(std::span(scratch.scores).first(size), std::span(scratch.sorted).first(size), weights);
  std::fill(scratch.hidden.begin(), scratch.hidden.end(), 0.0f);
  for (size_t i = 0; i < size; ++i) {
    if (weights[i] > 0) AddProduct(state.window.data() + i * dim, &weights[i], 1, scratch.hidden.data(), dim);
  }
}

void SidaNetwork::Step(int32_t token_id, State& state, Scratch& scratch, std::span<float> logits) const {
  PENSTOCK_CHECK(token_id >= 0 && token_id < shape_.vocab_size);
  const size_t dim = shape_.dim;
  const float* x = table_.data() + static_cast<size_t>(token_id) * dim;
  StepLstm(0, x, state, scratch);
  StepLstm(1, state.outputs.data(), state, scratch);
  const auto place = static_cast<ptrdiff_t>(state.num_tokens++ % shape_.window) * shape_.dim;
  std::copy_n(state.outputs.begin() + shape_.dim, shape_.dim, state.window.begin() + place);
  if (logits.empty()) return;
  Attend(state, scratch);
  PENSTOCK_CHECK(logits.size() == bias_.size());
  for (size_t i = 0; i < dim; ++i) scratch.hidden[i] += x[i];
  std::copy(bias_.begin(), bias_.end(), logits.begin());
  AddProduct(output_.data(), scratch.hidden.data(), dim, logits.data(), logits.size());
}

}  // namespace penstock
