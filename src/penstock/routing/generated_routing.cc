#include "penstock/routing/generated_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "penstock/base/check.h"

namespace penstock {
namespace {

// SplitMix64: a good number for every number.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

GeneratedRouting::GeneratedRouting(int64_t num_experts, int64_t num_topk, double skew, uint64_t seed)
    : num_topk_(num_topk), seed_(seed) {
  PENSTOCK_CHECK(num_topk >= 1 && num_topk <= num_experts && skew >= 1);
  for (int64_t i = 0; i < num_experts; ++i) weights_.push_back(std::pow(skew, -static_cast<double>(i)));
  sums_.resize(weights_.size());
  std::partial_sum(weights_.begin(), weights_.end(), sums_.begin());
}

// One expert after the other, each by its weight among those that are left.
void GeneratedRouting::ChooseByWeight(uint64_t state, int64_t first) {
  const auto num_experts = static_cast<int64_t>(weights_.size());
  std::vector<double> left = weights_;
  double sum = sums_.back();
  for (int64_t k = 0; k < num_topk_; ++k) {
    state = Mix(state);
    double draw = static_cast<double>(state >> 11) * 0x1p-53 * sum;
    int64_t place = -1;
    for (int64_t i = 0; i < num_experts; ++i) {
      if (left[static_cast<size_t>(i)] <= 0) continue;
      place = i;  // rounding may carry the draw past the last one
      draw -= left[static_cast<size_t>(i)];
      if (draw < 0) break;
    }
    sum -= left[static_cast<size_t>(place)];
    left[static_cast<size_t>(place)] = 0;
    choices_.push_back(static_cast<int32_t>((first + place) % num_experts));
  }
}

std::span<const int32_t> GeneratedRouting::Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) {
  choices_.clear();
  const auto num_experts = static_cast<int64_t>(weights_.size());
  const int64_t first = static_cast<int64_t>(Mix(seed_ ^ static_cast<uint64_t>(layer_idx)) >> 1) % num_experts;
  for (int64_t row_idx = first_row; row_idx < first_row + num_rows; ++row_idx) {
    uint64_t state = Mix(Mix(Mix(seed_ + static_cast<uint64_t>(step_)) + static_cast<uint64_t>(layer_idx)) +
                         static_cast<uint64_t>(row_idx));
    const size_t begin = choices_.size();
    // Drawing from all and drawing again what was drawn before is the same, and soon done as long as a few experts do
    // not take nearly everything.
    for (int64_t draws = 0; std::ssize(choices_) < static_cast<int64_t>(begin) + num_topk_; ++draws) {
      state = Mix(state);
      if (draws == 4 * num_topk_) {
        choices_.resize(begin);
        ChooseByWeight(state, first);
        break;
      }
      const double draw = static_cast<double>(state >> 11) * 0x1p-53 * sums_.back();
      const auto place =
          std::min<int64_t>(std::upper_bound(sums_.begin(), sums_.end(), draw) - sums_.begin(), num_experts - 1);
      const auto expert_idx = static_cast<int32_t>((first + place) % num_experts);
      if (std::find(choices_.begin() + static_cast<int64_t>(begin), choices_.end(), expert_idx) == choices_.end()) {
        choices_.push_back(expert_idx);
      }
    }
  }
  return choices_;
}

}  // namespace penstock
