#include "penstock/tensor/error_weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "penstock/base/check.h"

namespace penstock {
namespace {

// Added to each mean square, as a share of the block's mean: inputs that a text never moves still count.
constexpr double kDamping = 0.01;

double Dot(const double* a, const double* b, int64_t count) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t lane = 0; lane < 4; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

ErrorWeights::ErrorWeights(const InputStatistics& inputs)
    : inputs_(inputs), of_inputs_(inputs.mean_squares.begin(), inputs.mean_squares.end()) {
  const auto inner_dim = std::ssize(of_inputs_);
  PENSTOCK_CHECK(inner_dim > 0 && (inputs.products.empty() || std::ssize(inputs.products) == inner_dim * kInputBlock));
  const int64_t num_blocks = (inner_dim + kInputBlock - 1) / kInputBlock;
  if (!inputs.products.empty()) blocks_.resize(static_cast<size_t>(num_blocks));
  for (int64_t block_idx = 0; block_idx < num_blocks; ++block_idx) {
    const int64_t first = block_idx * kInputBlock, size = std::min(kInputBlock, inner_dim - first);
    const auto own = std::span(of_inputs_).subspan(static_cast<size_t>(first), static_cast<size_t>(size));
    const double mean = std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(size);
    const auto damping = static_cast<float>(mean > 0 ? kDamping * mean : 1.0);
    for (float& weight : own) weight += damping;
    if (!blocks_.empty() && mean > 0) Factorise(block_idx);
  }
}

// Finds the upper triangular R with R R^T = H, inputs in order of importance. An output's error is then |R^T e|^2,
// whose p-th term has the errors of the first p + 1 inputs. So the p-th input can undo what the earlier ones did to it,
// and its own rounding costs R[p, p]^2.
void ErrorWeights::Factorise(int64_t block_idx) {
  const int64_t first = block_idx * kInputBlock;
  const int64_t size = std::min<int64_t>(kInputBlock, std::ssize(of_inputs_) - first);
  float* const weights = of_inputs_.data() + first;
  Compensation& block = blocks_[static_cast<size_t>(block_idx)];
  block.order.resize(static_cast<size_t>(size));
  std::iota(block.order.begin(), block.order.end(), int16_t{0});
  std::ranges::stable_sort(block.order, [&](int16_t a, int16_t b) { return weights[a] > weights[b]; });
  std::vector<double> factor(static_cast<size_t>(size * size));
  const auto product = [&](int64_t p, int64_t q) {
    const int64_t a = block.order[p], b = block.order[q];
    return p == q ? double{weights[a]} : double{inputs_.products[(first + a) * kInputBlock + b]};
  };
  for (int64_t p = size - 1; p >= 0; --p) {
    double* const own = factor.data() + p * size;
    const int64_t behind = size - 1 - p;
    // Rounding may leave less than the damping alone would.
    const double rest = product(p, p) - Dot(own + p + 1, own + p + 1, behind);
    own[p] = std::sqrt(std::max(rest, 1e-4 * product(p, p)));
    for (int64_t q = 0; q < p; ++q) {
      double* const earlier = factor.data() + q * size;
      earlier[p] = (product(q, p) - Dot(earlier + p + 1, own + p + 1, behind)) / own[p];
    }
  }
  block.h.resize(static_cast<size_t>(size * size));
  for (int64_t a = 0; a < size; ++a) {
    for (int64_t b = 0; b < size; ++b) {
      block.h[a * size + b] = a == b ? weights[a] : inputs_.products[(first + a) * kInputBlock + b];
    }
  }
  block.pull.resize(static_cast<size_t>(size * size));
  for (int64_t p = 0; p < size; ++p) {
    const double diagonal = factor[p * size + p];
    for (int64_t q = 0; q < p; ++q) block.pull[p * size + q] = static_cast<float>(factor[q * size + p] / diagonal);
    weights[block.order[p]] = static_cast<float>(diagonal * diagonal);
  }
}

double ErrorWeights::MeanSquare(std::span<const float> row) const {
  const auto inner_dim = std::ssize(row);
  PENSTOCK_CHECK(inner_dim == std::ssize(inputs_.mean_squares));
  double sum = 0;
  if (inputs_.products.empty()) {
    for (int64_t k = 0; k < inner_dim; ++k) sum += double{row[k]} * row[k] * inputs_.mean_squares[k];
    return sum;
  }
  for (int64_t k = 0; k < inner_dim; ++k) {
    const int64_t first = k / kInputBlock * kInputBlock, size = std::min(kInputBlock, inner_dim - first);
    const float* const products = inputs_.products.data() + k * kInputBlock;
    float sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) {
      for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += products[i + lane] * row[first + i + lane];
    }
    for (; i < size; ++i) sums[0] += products[i] * row[first + i];
    sum += double{row[k]} * std::accumulate(std::begin(sums), std::end(sums), 0.0);
  }
  return std::max(0.0, sum);
}

}  // namespace penstock
