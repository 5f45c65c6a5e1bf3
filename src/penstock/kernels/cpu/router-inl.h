// Routing of one row: probabilities of the experts and the top k of them.
#pragma once

#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// An insertion sort that keeps the best k in the outputs themselves. Most keys fail the first comparison, so it costs
// little more than one pass. Only a strictly larger key moves ahead: ties keep the lower index first.
template <class Key>
void SelectTopk(const RouterTopkArgs& args, const Key& key_of) {
  for (int64_t expert_idx = 0; expert_idx < args.num_experts; ++expert_idx) {
    const float key = key_of(expert_idx);
    const bool is_filling = expert_idx < args.num_topk;
    if (!is_filling && !(key > args.topk_weights[args.num_topk - 1])) continue;
    int64_t rank = is_filling ? expert_idx : args.num_topk - 1;
    for (; rank > 0 && key > args.topk_weights[rank - 1]; --rank) {
      args.topk_weights[rank] = args.topk_weights[rank - 1];
      args.topk_idx[rank] = args.topk_idx[rank - 1];
    }
    args.topk_weights[rank] = key;
    args.topk_idx[rank] = static_cast<int32_t>(expert_idx);
  }
}

// Returns the key that an expert is chosen by. Experts whose key is NaN, and those of groups that are not chosen, come
// last.
inline float SelectionKey(const RouterTopkArgs& args, int64_t expert_idx) {
  const float bias = args.selection_bias == nullptr ? 0 : args.selection_bias[expert_idx];
  const float key = args.scores[expert_idx] + bias;
  return key == key ? key : kMinusInfinity;
}

// Returns a mask: bit g is set if group g is one of the num_topk_groups best; ties go to the lower index.
inline uint64_t ChosenGroups(const RouterTopkArgs& args) {
  const RouterRule& rule = args.rule;
  const int64_t group_size = args.num_experts / rule.num_groups;
  float group_scores[kMaxExpertGroups];
  for (int64_t g = 0; g < rule.num_groups; ++g) {
    float largest = kMinusInfinity, second = kMinusInfinity;
    for (int64_t i = g * group_size; i < (g + 1) * group_size; ++i) {
      const float key = SelectionKey(args, i);
      if (key > largest) {
        second = largest;
        largest = key;
      } else if (key > second) {
        second = key;
      }
    }
    group_scores[g] = rule.group_score == RouterRule::GroupScore::kTwoLargest ? largest + second : largest;
  }
  uint64_t chosen = 0;
  for (int64_t g = 0; g < rule.num_groups; ++g) {
    int32_t num_better = 0;
    for (int64_t other = 0; other < rule.num_groups; ++other) {
      num_better += group_scores[other] > group_scores[g] || (group_scores[other] == group_scores[g] && other < g);
    }
    if (num_better < rule.num_topk_groups) chosen |= uint64_t{1} << g;
  }
  return chosen;
}

// Computes 1 / (1 + exp(-x)) of each value; if one is NaN, all results are NaN.
template <class V>
void Sigmoids(float* values, int64_t count) {
  const auto sigmoid = [](const V& x) { return Div(V::Set(1), Add(V::Set(1), Exp(Sub(V::Zero(), x)))); };
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) sigmoid(V::Load(values + i)).Store(values + i);
  if (i < count) sigmoid(V::LoadPartial(values + i, count - i, 0)).StorePartial(values + i, count - i);
  const float total = SumOf<V>(values, count);
  if (total != total) {
    for (i = 0; i < count; ++i) values[i] = total;
  }
}

// Computes probabilities over all experts; returns their sum before the division.
template <class V>
float Softmax(float* values, int64_t count) {
  ExpMinusMax<V>(values, count, 1, [] {});
  const float total = SumOf<V>(values, count);
  for (int64_t i = 0; i < count; ++i) values[i] /= total;
  return total;
}

template <class V>
float ExpOfOne(float x) {
  alignas(64) float values[16];
  Exp(V::Set(x)).Store(values);
  return values[0];
}

// Computes RouterRule::Scoring::kSparsemixer. Sums are taken in increasing index.
template <class V>
void Sparsemixer(const RouterTopkArgs& args) {
  for (int64_t j = 0; j < args.num_topk; ++j) {
    const auto is_taken = [&](int64_t i) {
      for (int64_t earlier = 0; earlier < j; ++earlier) {
        if (args.topk_idx[earlier] == i) return true;
      }
      return false;
    };
    int64_t best = -1;
    for (int64_t i = 0; i < args.num_experts; ++i) {
      if (!is_taken(i) && (best < 0 || args.scores[i] > args.scores[best])) best = i;
    }
    const float largest = args.scores[best];
    float sum = 0;
    for (int64_t i = 0; i < args.num_experts; ++i) {
      const float magnitude = __builtin_fabsf(args.scores[i]);
      const float below = (largest - args.scores[i]) / (magnitude > largest ? magnitude : largest);
      if (!is_taken(i) && !(below > 2 * args.rule.jitter)) sum += ExpOfOne<V>(args.scores[i] - largest);
    }
    args.topk_idx[j] = static_cast<int32_t>(best);
    args.topk_weights[j] = 1 / sum;
  }
  const float total = Softmax<V>(args.scores, args.num_experts);
  if (total == total) return;
  for (int64_t j = 0; j < args.num_topk; ++j) args.topk_weights[j] = total;
}

template <class V>
void RouterTopk(const RouterTopkArgs& args) {
  const RouterRule& rule = args.rule;
  if (rule.scoring == RouterRule::Scoring::kSparsemixer) return Sparsemixer<V>(args);
  if (rule.chooses_by_logits) SelectTopk(args, [&](int64_t i) { return SelectionKey(args, i); });
  if (rule.scoring == RouterRule::Scoring::kSigmoid) {
    Sigmoids<V>(args.scores, args.num_experts);
  } else {
    Softmax<V>(args.scores, args.num_experts);
  }
  if (rule.num_groups > 1) {
    const uint64_t chosen = ChosenGroups(args);
    const int64_t group_size = args.num_experts / rule.num_groups;
    SelectTopk(args,
               [&](int64_t i) { return chosen >> (i / group_size) & 1 ? SelectionKey(args, i) : kMinusInfinity; });
  } else if (!rule.chooses_by_logits) {
    SelectTopk(args, [&](int64_t i) { return SelectionKey(args, i); });
  }
  float sum = 0;
  for (int64_t j = 0; j < args.num_topk; ++j) sum += args.topk_weights[j] = args.scores[args.topk_idx[j]];
  for (int64_t j = 0; j < args.num_topk; ++j) {
    if (rule.renormalises) args.topk_weights[j] /= sum;
    args.topk_weights[j] *= rule.scale;
  }
}

}  // namespace
}  // namespace penstock::kernels
