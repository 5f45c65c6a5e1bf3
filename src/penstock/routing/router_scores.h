// Scores of a layer's experts, computed from the router's probabilities (HybriMoE, section IV-D).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Computes the mean over rows of TopP(s), p = 2 * num_topk: scores below a row's p-th largest count as zeros. If only
// the choices are known, all choices count equally.
class MeanTopScores {
 public:
  explicit MeanTopScores(int64_t num_experts, int64_t num_topk) : num_topk_(num_topk), mean_(num_experts) {}

  // Returns [num_experts], valid until the next call. `scores` is [num_rows, num_experts] or empty, `choices` is
  // [num_rows, num_topk]. REQUIRES: at least one row.
  std::span<const float> Of(std::span<const float> scores, std::span<const int32_t> choices);

 private:
  size_t num_topk_;
  std::vector<float> mean_;
  std::vector<float> row_;  // scores of a row, to be sorted
};

}  // namespace penstock
