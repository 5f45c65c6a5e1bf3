#include "penstock/routing/router_scores.h"

#include <algorithm>
#include <functional>

namespace penstock {

std::span<const float> MeanTopScores::Of(std::span<const float> scores, std::span<const int32_t> choices) {
  const size_t num_experts = mean_.size();
  std::fill(mean_.begin(), mean_.end(), 0.0f);
  const auto num_choices = static_cast<float>(choices.size());
  if (scores.empty()) {
    for (const int32_t expert_idx : choices) mean_[expert_idx] += 1 / num_choices;
    return mean_;
  }
  const float num_rows = num_choices / static_cast<float>(num_topk_);
  const size_t top = std::min(num_experts, 2 * num_topk_);
  for (size_t begin = 0; begin < scores.size(); begin += num_experts) {
    const std::span<const float> row = scores.subspan(begin, num_experts);
    row_.assign(row.begin(), row.end());
    std::nth_element(row_.begin(), row_.begin() + static_cast<std::ptrdiff_t>(top) - 1, row_.end(), std::greater<>());
    const float min = row_[top - 1];
    for (size_t i = 0; i < num_experts; ++i) mean_[i] += row[i] >= min ? row[i] / num_rows : 0;
  }
  return mean_;
}

}  // namespace penstock
