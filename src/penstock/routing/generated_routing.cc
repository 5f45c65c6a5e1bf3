#include "penstock/routing/generated_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/limits.h"

namespace penstock {
namespace {

// SplitMix64: maps every number to a well-mixed one.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double Uniform(uint64_t state) { return static_cast<double>(state >> 11) * 0x1p-53; }

bool IsIn(std::span<const int32_t> experts, int32_t expert_idx) {
  return std::find(experts.begin(), experts.end(), expert_idx) != experts.end();
}

}  // namespace

DrawnChoices::Rows& DrawnChoices::RowsOf(int64_t first_row, int64_t step, int64_t layer_idx) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rows_[{first_row, step, layer_idx}];
}

GeneratedRouting::GeneratedRouting(int64_t num_experts, int64_t num_topk, const RoutingSpec& spec,
                                   std::vector<int64_t> moe_layers, DrawnChoices* drawn)
    : num_topk_(num_topk), drawn_(drawn), spec_(spec), moe_layers_(std::move(moe_layers)) {
  static_assert(kMaxExperts <= 1 << 16);  // DrawnChoices keeps 16 bits
  PENSTOCK_CHECK(num_topk >= 1 && num_topk <= num_experts && spec.skew >= 0);
  PENSTOCK_CHECK(spec.repeat >= 0 && spec.follow >= 0 && spec.repeat + spec.follow < 1);
  PENSTOCK_CHECK(spec.gate_accuracy >= 0 && spec.gate_accuracy <= 1);
  PENSTOCK_CHECK(spec.counts.empty() || spec.counts.size() == moe_layers_.size());
  for (size_t i = 0; i < moe_layers_.size(); ++i) {
    before_.resize(static_cast<size_t>(moe_layers_[i]) + 1, -1);
    before_.back() = i == 0 ? -1 : moe_layers_[i - 1];
  }
  for (const std::vector<int64_t>& of_layer : spec.counts) weights_.push_back(FromCounts(of_layer, num_topk));
  if (!weights_.empty()) return;
  std::vector<double> weights;
  for (int64_t i = 0; i < num_experts; ++i) weights.push_back(std::pow(static_cast<double>(i + 1), -spec.skew));
  weights_.emplace_back(std::move(weights));
}

GeneratedRouting::Weights::Weights(std::vector<double> of_places)
    : weights(std::move(of_places)), sums(weights.size()) {
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  int32_t place = 0;
  for (size_t part = 0; part < sums.size(); ++part) {
    // One place less, because the draw that begins the part is rounded.
    const double begin = sums.back() * static_cast<double>(part) / static_cast<double>(sums.size());
    while (sums[place] <= begin && place < std::ssize(sums) - 1) ++place;
    guide.push_back(std::max(0, place - 1));
  }
}

// A row's choices differ, so popular experts are chosen less often than their weights say. Finds the weights of which
// the counts come. With draws from all experts until num_topk different ones are drawn, say `num_draws` on average, an
// expert of weight w is among them with probability 1 - (1 - w)^num_draws. The weights' sum is 1 for one number only.
GeneratedRouting::Weights GeneratedRouting::FromCounts(std::span<const int64_t> counts, int64_t num_topk) {
  std::vector<int32_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return counts[a] > counts[b]; });
  const auto num_chosen = std::max<int64_t>(num_topk, std::reduce(counts.begin(), counts.end(), int64_t{0}));
  const auto num_rows = static_cast<double>(num_chosen) / static_cast<double>(num_topk);
  std::vector<double> left_out;  // by place: the share of the rows that did not choose the expert
  for (const int32_t expert_idx : order) {
    const auto count = static_cast<double>(std::max<int64_t>(1, counts[expert_idx]));
    left_out.push_back(std::clamp(1 - count / num_rows, 0.5 / num_rows, 1.0));
  }
  std::vector<double> of_places(left_out.size());
  const auto sum_with = [&](double num_draws) {
    double sum = 0;
    for (size_t i = 0; i < left_out.size(); ++i) sum += of_places[i] = 1 - std::pow(left_out[i], 1 / num_draws);
    return sum;
  };
  double low = 1, high = 1e6;
  for (int i = 0; i < 60; ++i) {
    const double middle = std::sqrt(low * high);
    (sum_with(middle) > 1 ? low : high) = middle;
  }
  Weights weights(std::move(of_places));
  weights.order = std::move(order);
  return weights;
}

int64_t GeneratedRouting::LayerBefore(int64_t layer_idx) const {
  if (moe_layers_.empty()) return layer_idx - 1;
  return layer_idx < std::ssize(before_) ? before_[layer_idx] : -1;
}

GeneratedRouting::Weights& GeneratedRouting::WeightsOf(int64_t layer_idx) {
  if (!spec_.counts.empty()) {
    return weights_[std::find(moe_layers_.begin(), moe_layers_.end(), layer_idx) - moe_layers_.begin()];
  }
  Weights& weights = weights_.front();
  weights.first = static_cast<int64_t>(Mix(spec_.seed ^ static_cast<uint64_t>(layer_idx)) >> 1) % weights.num_experts();
  return weights;
}

uint64_t GeneratedRouting::StateOf(int64_t step, int64_t layer_idx, int64_t row_idx) const {
  return Mix(Mix(Mix(spec_.seed + static_cast<uint64_t>(step)) + static_cast<uint64_t>(layer_idx)) +
             static_cast<uint64_t>(row_idx));
}

int32_t GeneratedRouting::Draw(uint64_t state, const Weights& experts) {
  const std::vector<double>& sums = experts.sums;
  const double uniform = Uniform(state), draw = uniform * sums.back();
  // The first place whose sum is larger.
  int64_t place = experts.guide[static_cast<size_t>(uniform * static_cast<double>(sums.size()))];
  while (place < experts.num_experts() - 1 && sums[place] <= draw) ++place;
  return experts.ExpertAt(place);
}

// Draws one expert after the other, each by its weight among the remaining ones.
void GeneratedRouting::ChooseByWeight(uint64_t state, const Weights& experts, std::vector<int32_t>& choices) const {
  const int64_t num_experts = experts.num_experts();
  std::vector<double> left = experts.weights;
  double sum = experts.sums.back();
  for (int64_t k = 0; k < num_topk_; ++k) {
    state = Mix(state);
    double draw = Uniform(state) * sum;
    int64_t place = -1;
    for (int64_t i = 0; i < num_experts; ++i) {
      if (left[i] <= 0) continue;
      place = i;  // rounding may carry the draw past the last one
      draw -= left[i];
      if (draw < 0) break;
    }
    sum -= left[place];
    left[place] = 0;
    choices.push_back(experts.ExpertAt(place));
  }
}

void GeneratedRouting::Choose(uint64_t state, const Weights& experts, std::vector<int32_t>& choices) const {
  const size_t begin = choices.size();
  // Drawing from all experts, and again whenever an expert was already drawn, gives the same distribution. It ends soon
  // unless a few experts take nearly everything.
  for (int64_t draws = 0; std::ssize(choices) < static_cast<int64_t>(begin) + num_topk_; ++draws) {
    state = Mix(state);
    if (draws == 4 * num_topk_) {
      choices.resize(begin);
      return ChooseByWeight(state, experts, choices);
    }
    const int32_t expert_idx = Draw(state, experts);
    if (!IsIn(std::span(choices).subspan(begin), expert_idx)) choices.push_back(expert_idx);
  }
}

// Takes each choice from the step and layer in which it was drawn: neither repeated nor the layer before followed.
void GeneratedRouting::ChooseOrKeep(int64_t layer_idx, int64_t row_idx, const Weights& experts,
                                    std::vector<int32_t>& choices) const {
  const size_t begin = choices.size();
  const uint64_t own_state = StateOf(step_, layer_idx, row_idx);
  for (int64_t k = 0; k < num_topk_; ++k) {
    int64_t step = step_, layer = layer_idx;
    uint64_t state = own_state;
    for (;;) {
      state = Mix(state + static_cast<uint64_t>(k));
      const double draw = Uniform(state);
      if (draw < spec_.repeat) {
        if (step == 0) break;
        state = StateOf(--step, layer, row_idx);
        continue;
      }
      const int64_t before = draw < spec_.repeat + spec_.follow ? LayerBefore(layer) : -1;
      if (before < 0) break;
      layer = before;
      state = StateOf(step, layer, row_idx);
    }
    int32_t expert_idx = 0;
    for (int64_t draws = 0; draws == 0 || IsIn(std::span(choices).subspan(begin), expert_idx); ++draws) {
      state = Mix(state);
      const bool gives_up = draws > 16 * num_topk_;  // if a few experts take nearly everything, takes the next one
      expert_idx = gives_up ? static_cast<int32_t>((expert_idx + 1) % experts.num_experts()) : Draw(state, experts);
    }
    choices.push_back(expert_idx);
  }
}

void GeneratedRouting::AppendChoices(int64_t layer_idx, int64_t first_row, int64_t num_rows,
                                     std::vector<int32_t>& choices) {
  const Weights& experts = WeightsOf(layer_idx);
  for (int64_t row_idx = first_row; row_idx < first_row + num_rows; ++row_idx) {
    if (num_topk_ == experts.num_experts()) {
      // Every row chooses all. The last one would take many draws.
      for (int32_t expert_idx = 0; expert_idx < num_topk_; ++expert_idx) choices.push_back(expert_idx);
    } else if (spec_.repeat > 0 || spec_.follow > 0) {
      ChooseOrKeep(layer_idx, row_idx, experts, choices);
    } else {
      Choose(StateOf(step_, layer_idx, row_idx), experts, choices);
    }
  }
}

std::span<const int32_t> GeneratedRouting::Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) {
  choices_.clear();
  if (drawn_ == nullptr) {
    AppendChoices(layer_idx, spec_.first_row + first_row, num_rows, choices_);
    return choices_;
  }
  DrawnChoices::Rows& kept = drawn_->RowsOf(spec_.first_row, step_, layer_idx);
  const std::lock_guard<std::mutex> lock(kept.mutex);
  const int64_t have = std::ssize(kept.experts) / num_topk_, end = first_row + num_rows;
  if (end > have) {
    if (!drawn_->Reserve((end - have) * num_topk_)) {
      AppendChoices(layer_idx, spec_.first_row + first_row, num_rows, choices_);
      return choices_;
    }
    AppendChoices(layer_idx, spec_.first_row + have, end - have, choices_);
    kept.experts.insert(kept.experts.end(), choices_.begin(), choices_.end());
  }
  choices_.assign(kept.experts.begin() + first_row * num_topk_, kept.experts.begin() + end * num_topk_);
  return choices_;
}

std::span<const int32_t> GeneratedRouting::ChoicesAhead(int64_t layer_idx, int64_t ahead, int64_t first_row,
                                                        int64_t num_rows) {
  const auto layer = std::find(moe_layers_.begin(), moe_layers_.end(), layer_idx);
  if (spec_.gate_accuracy <= 0 || moe_layers_.end() - layer <= ahead) return {};
  ahead_.clear();
  AppendChoices(layer[ahead], spec_.first_row + first_row, num_rows, ahead_);
  const double accuracy = std::pow(spec_.gate_accuracy, static_cast<double>(ahead));
  const int64_t num_experts = weights_.front().num_experts();
  for (int64_t row_idx = 0; row_idx < num_rows; ++row_idx) {
    const std::span<int32_t> named = std::span(ahead_).subspan(row_idx * num_topk_, num_topk_);
    uint64_t state =
        Mix(StateOf(step_, layer_idx, spec_.first_row + first_row + row_idx) + static_cast<uint64_t>(ahead));
    for (int32_t& expert_idx : named) {
      state = Mix(state);
      if (Uniform(state) < accuracy || num_experts <= 2 * num_topk_) continue;
      int32_t other = expert_idx;
      while (IsIn(named, other)) {
        state = Mix(state);
        other = static_cast<int32_t>(state % static_cast<uint64_t>(num_experts));
      }
      expert_idx = other;
    }
  }
  return ahead_;
}

}  // namespace penstock
