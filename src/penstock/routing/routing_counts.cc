#include "penstock/routing/routing_counts.h"

#include <algorithm>
#include <numeric>

#include "penstock/base/check.h"

namespace penstock {
namespace {

// Returns the probability that a choice is among another token's, when both are independent. A token's num_topk choices
// differ, so the popular experts are in more of them than their share says, but at most in each.
double ChanceOfRepeat(std::span<const int64_t> chosen, int64_t num_topk) {
  const auto sum = static_cast<double>(std::reduce(chosen.begin(), chosen.end(), int64_t{0}));
  double chance = 0;
  for (const int64_t count : chosen) {
    const double share = static_cast<double>(count) / sum;
    chance += share * std::min(1.0, share * static_cast<double>(num_topk));
  }
  return chance;
}

}  // namespace

RoutingCounts::RoutingCounts(int64_t num_moe_layers, int64_t num_experts)
    : chosen(num_moe_layers, std::vector<int64_t>(num_experts)) {}

void RoutingCounts::Add(int64_t moe_layer_idx, std::span<const int32_t> choices,
                        std::span<const uint32_t> sequence_ids) {
  std::vector<int64_t>& counts = chosen[moe_layer_idx];
  for (const int32_t expert_idx : choices) ++counts[expert_idx];
  const size_t num_rows = sequence_ids.size();
  if (num_rows == 0) return;
  PENSTOCK_CHECK(choices.size() % num_rows == 0);
  const size_t num_topk = choices.size() / num_rows;
  for (size_t row = 1; row < num_rows; ++row) {
    if (sequence_ids[row] != sequence_ids[row - 1]) continue;
    const std::span<const int32_t> last = choices.subspan((row - 1) * num_topk, num_topk);
    const std::span<const int32_t> own = choices.subspan(row * num_topk, num_topk);
    num_following += static_cast<int64_t>(num_topk);
    num_repeated += std::ranges::count_if(
        own, [&](int32_t expert_idx) { return std::ranges::find(last, expert_idx) != last.end(); });
  }
}

void RoutingCounts::AddEarlier(const RoutingCounts& earlier) {
  PENSTOCK_CHECK(earlier.chosen.size() == chosen.size());
  constexpr int64_t kMaxEarlier = 100'000;
  const int64_t divisor = 1 + earlier.num_choices() / kMaxEarlier;
  for (size_t layer = 0; layer < chosen.size(); ++layer) {
    PENSTOCK_CHECK(earlier.chosen[layer].size() == chosen[layer].size());
    for (size_t i = 0; i < chosen[layer].size(); ++i) chosen[layer][i] += earlier.chosen[layer][i] / divisor;
  }
  num_following += earlier.num_following / divisor;
  num_repeated += earlier.num_repeated / divisor;
}

int64_t RoutingCounts::num_choices() const {
  return chosen.empty() ? 0 : std::reduce(chosen[0].begin(), chosen[0].end(), int64_t{0});
}

RoutingSpec RoutingCounts::ToSpec(int64_t num_topk) const {
  PENSTOCK_CHECK(num_choices() > 0);
  double chance = 0;
  for (const std::vector<int64_t>& of_layer : chosen) {
    chance += ChanceOfRepeat(of_layer, num_topk) / static_cast<double>(chosen.size());
  }
  RoutingSpec spec{.counts = chosen};
  if (num_following > 0 && chance < 1) {
    const double repeated = static_cast<double>(num_repeated) / static_cast<double>(num_following);
    spec.repeat = std::clamp((repeated - chance) / (1 - chance), 0.0, 0.9);
  }
  return spec;
}

}  // namespace penstock
