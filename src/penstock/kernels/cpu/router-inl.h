// Routing of one row: probabilities of the experts and the top k of them.
#pragma once

#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// An insertion sort that keeps the best k in the outputs themselves. Most scores fail the first comparison, so it costs
// little more than one pass. Only a strictly larger score moves ahead: ties keep the lower index first.
inline void SelectTopk(const RouterTopkArgs& args) {
  for (int64_t expert_idx = 0; expert_idx < args.num_experts; ++expert_idx) {
    const float score = args.scores[expert_idx];
    const bool is_filling = expert_idx < args.num_topk;
    if (!is_filling && !(score > args.topk_weights[args.num_topk - 1])) continue;
    int64_t rank = is_filling ? expert_idx : args.num_topk - 1;
    for (; rank > 0 && score > args.topk_weights[rank - 1]; --rank) {
      args.topk_weights[rank] = args.topk_weights[rank - 1];
      args.topk_idx[rank] = args.topk_idx[rank - 1];
    }
    args.topk_weights[rank] = score;
    args.topk_idx[rank] = static_cast<int32_t>(expert_idx);
  }
}

// 1 / (1 + exp(-x)) of each; all NaN when one is.
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

template <class V>
void RouterTopk(const RouterTopkArgs& args) {
  if (args.scoring == RouterScoring::kSigmoid) {
    Sigmoids<V>(args.scores, args.num_experts);
  } else {
    ExpMinusMax<V>(args.scores, args.num_experts, 1, [] {});
    const float total = SumOf<V>(args.scores, args.num_experts);
    for (int64_t i = 0; i < args.num_experts; ++i) args.scores[i] /= total;
  }
  SelectTopk(args);
  if (args.renormalise == Renormalise::kNo) return;
  float sum = 0;
  for (int64_t j = 0; j < args.num_topk; ++j) sum += args.topk_weights[j];
  for (int64_t j = 0; j < args.num_topk; ++j) args.topk_weights[j] /= sum;
}

}  // namespace
}  // namespace penstock::kernels
