// How gates choose experts and how FFNs are gated, as far as kernels need it. Plain data: it is compiled with the flags
// of every instruction set.
#pragma once

#include <cstdint>

namespace penstock {

enum class Norm : uint8_t { kRms, kLayer };

inline constexpr int64_t kMaxExpertGroups = 64;
inline constexpr int64_t kMaxScanDim = 256;  // dims of keys that selective scans take

// How a row's router logits give its experts and their weights:
//   score = softmax over all experts, or 1 / (1 + exp(-logit)) for each;
//   chosen are the num_topk experts with the largest score + selection bias (0 where a model has none) in the
//   num_topk_groups best groups. A group ranks by its largest score (DeepSeek-V2, "group_limited_greedy") or by the
//   sum of its two largest (DeepSeek-V3, "noaux_tc"). Groups are runs of neighbouring experts, all of one size;
//   Where `chooses_by_logits`, the largest logit + selection bias wins instead;
//   weight = score, divided by the sum over the chosen where `renormalises`, times `scale`.
// kSparsemixer (Phi-3.5-MoE; Liu et al. 2024) chooses the largest logit, then the largest of the others. The weight of
// each is its softmax over experts not yet chosen whose logits are less than 2 * jitter below it, relative to the
// larger of the two magnitudes.
struct RouterRule {
  enum class Scoring : uint8_t { kSoftmax, kSigmoid, kSparsemixer };
  enum class GroupScore : uint8_t { kLargest, kTwoLargest };

  Scoring scoring = Scoring::kSoftmax;
  bool renormalises = true;
  GroupScore group_score = GroupScore::kLargest;
  int32_t num_groups = 1;
  int32_t num_topk_groups = 1;
  float scale = 1;
  float jitter = 0;
  bool chooses_by_logits = false;  // logits take the place of scores in the choice; only with one group
};

// hidden = g * 1 / (1 + exp(-alpha * (g + cubic * g^3))) * (u + up_offset), where g is gate and u is up. With a limit,
// g is at most the limit and u lies within +-limit. With an output_limit, what multiplies u is at most that, and u lies
// within +-output_limit. Covers the usual SwiGLU, gpt-oss's, and GeGLU with the tanh form of
// GELU (Hendrycks and Gimpel 2016), because (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)).
struct GluRule {
  float alpha = 1;
  float cubic = 0;
  float up_offset = 0;
  float limit = 0;         // 0: none
  float output_limit = 0;  // 0: none

  constexpr bool is_plain() const {
    return alpha == 1 && cubic == 0 && up_offset == 0 && limit == 0 && output_limit == 0;
  }
};

// gelu_pytorch_tanh: alpha is 2 sqrt(2 / pi).
inline constexpr GluRule kGeluTanhGlu = {.alpha = 1.5957691216057308f, .cubic = 0.044715f};

}  // namespace penstock
