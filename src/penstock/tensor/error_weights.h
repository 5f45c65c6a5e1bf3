// How much errors of a matrix's weights count: what is known of the inputs that the weights are multiplied by.
//
// The mean squared error of an output is e^T H e, where e are the errors of its weights and H is the mean of x x^T over
// the inputs x. Only blocks of 256 neighbouring inputs of H are used, or only its diagonal.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

inline constexpr int64_t kInputBlock = 256;  // inputs whose products are known

struct InputStatistics {
  std::span<const float> mean_squares;  // [inner_dim]
  // [inner_dim, kInputBlock]: mean products of each input with those of its block; empty: unknown.
  std::span<const float> products = {};
};

class ErrorWeights {
 public:
  // The statistics must outlive the weights.
  explicit ErrorWeights(const InputStatistics& inputs);

  // How later inputs of a block make up for the errors of earlier ones. Inputs are rounded in the order of their
  // importance. The p-th of them is rounded from its weight + the sum over q < p of pull[p * size + q] x the error of
  // the q-th. (This is GPTQ's rule, Frantar and others, 2022, with a Cholesky factor of H in place of one of H^-1.)
  struct Compensation {
    std::vector<int16_t> order;  // places in the block
    std::vector<float> pull;     // [size, size]
    std::vector<float> h;        // [size, size]: H of the inputs as they lie in the block
  };

  // Returns what a squared error of each input's weight costs, where later ones make up for it: > 0.
  std::span<const float> of_inputs() const { return of_inputs_; }
  // Returns nullptr where products are unknown.
  const Compensation* compensation(int64_t block_idx) const {
    return blocks_.empty() || blocks_[block_idx].order.empty() ? nullptr : &blocks_[block_idx];
  }
  // Returns the mean square of an output with the weights `row` [inner_dim], or of the error of one with such errors.
  double MeanSquare(std::span<const float> row) const;

 private:
  void Factorise(int64_t block_idx);

  InputStatistics inputs_;
  std::vector<float> of_inputs_;
  std::vector<Compensation> blocks_;
};

}  // namespace penstock
