// What routers' scores say of a layer's experts (HybriMoE, section IV-D).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// The mean over rows of TopP(s), p = 2k: scores below a row's p-th count as zeros. Where only the choices are known
// each of them counts alike.
class MeanTopScores {
 public:
  explicit MeanTopScores(int64_t num_experts, int64_t num_topk)
      : num_topk_(static_cast<size_t>(num_topk)), mean_(static_cast<size_t>(num_experts)) {}

  // [num_experts], valid until the next call; of `scores` [num_rows, num_experts], or none, and `choices` [num_rows,
  // num_topk]. REQUIRES: at least one row.
  std::span<const float> Of(std::span<const float> scores, std::span<const int32_t> choices);

 private:
  size_t num_topk_;
  std::vector<float> mean_;
  std::vector<float> row_;  // to be sorted
};

}  // namespace penstock
