// Chooses experts from router logits, and sorts the assignments of rows by expert.
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/math.cuh"

namespace penstock::cuda {
namespace {

constexpr int kRouterThreads = 128;
constexpr int kRouterWarps = kRouterThreads / kWarpThreads;

PENSTOCK_DEVICE float Infinity() { return __uint_as_float(0x7F800000u); }

// The row of a warp.
struct RouterRow {
  const RouterLaunch& args;
  float* scores;
  int32_t* topk_idx;
  float* topk_weights;
  int64_t group_size = args.num_experts / args.rule.num_groups;
  uint64_t chosen_groups = 0;

  // Returns the key that an expert is chosen by, whatever its group.
  PENSTOCK_DEVICE float Key(int64_t i) const {
    const float key = scores[i] + (args.selection_bias == nullptr ? 0.0f : args.selection_bias[i]);
    return key == key ? key : -Infinity();
  }
  PENSTOCK_DEVICE float GroupScore(int64_t g) const {
    float largest = -Infinity(), second = -Infinity();
    for (int64_t i = g * group_size; i < (g + 1) * group_size; ++i) {
      const float key = Key(i);
      if (key > largest) {
        second = largest;
        largest = key;
      } else if (key > second) {
        second = key;
      }
    }
    return args.rule.group_score == RouterRule::GroupScore::kTwoLargest ? largest + second : largest;
  }
  // Chooses groups; a lane handles two.
  PENSTOCK_DEVICE void ChooseGroups() {
    const int32_t num_groups = args.rule.num_groups;
    for (int half = 0; half < 2; ++half) {
      const int32_t g = half * kWarpThreads + Lane();
      const float own = g < num_groups ? GroupScore(g) : 0;
      int32_t num_better = 0;
      for (int32_t first = 0; first < num_groups; first += kWarpThreads) {
        const float others = first + Lane() < num_groups ? GroupScore(first + Lane()) : 0;
        for (int32_t i = 0; i < kWarpThreads; ++i) {
          const float other = __shfl_sync(kAllLanes, others, i);
          const bool is_better = other > own || (other == own && first + i < g);
          num_better += first + i < num_groups && is_better ? 1 : 0;
        }
      }
      const bool is_chosen = g < num_groups && num_better < args.rule.num_topk_groups;
      chosen_groups |= static_cast<uint64_t>(__ballot_sync(kAllLanes, is_chosen)) << half * kWarpThreads;
    }
  }

  // Computes the scores of all experts by softmax.
  PENSTOCK_DEVICE float Softmax() const {
    float largest = -Infinity();
    for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) largest = Larger(scores[i], largest);
    largest = MaxOfWarp(largest);
    __syncwarp();
    for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) scores[i] = Exp(scores[i] - largest);
    const float total = Total();
    for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) scores[i] = __fdiv_rn(scores[i], total);
    __syncwarp();
    return total;
  }
  // Computes 1 / (1 + exp(-x)) of each value; if one is NaN, all results are NaN.
  PENSTOCK_DEVICE float Sigmoids() const {
    for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) scores[i] = Sigmoid(scores[i]);
    const float total = Total();
    if (total != total) {
      for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) scores[i] = total;
    }
    __syncwarp();
    return total;
  }
  PENSTOCK_DEVICE float Total() const {
    __syncwarp();
    float sum = 0;
    for (int64_t i = Lane() % 16; i < args.num_experts; i += 16) sum += scores[i];
    sum = SumOf16Lanes(sum);
    __syncwarp();
    return sum;
  }

  // Returns whether expert i is among the first j chosen.
  PENSTOCK_DEVICE bool IsTaken(int64_t j, int64_t i) const {
    for (int64_t earlier = 0; earlier < j; ++earlier) {
      if (topk_idx[earlier] == i) return true;
    }
    return false;
  }

  // Selects keys in decreasing order, ties to the lower index. All experts that were chosen before precede the last one
  // in this order. If NaN leaves too few, takes the first experts not yet chosen.
  PENSTOCK_DEVICE void SelectTopk() const {
    float last = Infinity();
    int32_t last_idx = -1;
    for (int64_t j = 0; j < args.num_topk; ++j) {
      float best = -Infinity();
      int32_t best_idx = 0x7FFFFFFF;
      for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) {
        if ((chosen_groups >> (i / group_size) & 1) == 0) continue;
        const float key = Key(i);
        const auto idx = static_cast<int32_t>(i);
        const bool is_left = key < last || (key == last && idx > last_idx);
        if (is_left && key > best) best = key, best_idx = idx;
      }
      for (int distance = 16; distance >= 1; distance /= 2) {
        const float other = __shfl_xor_sync(kAllLanes, best, distance);
        const int32_t other_idx = __shfl_xor_sync(kAllLanes, best_idx, distance);
        if (other > best || (other == best && other_idx < best_idx)) best = other, best_idx = other_idx;
      }
      if (best_idx == 0x7FFFFFFF) {
        for (best_idx = 0; IsTaken(j, best_idx);) ++best_idx;
      }
      if (Lane() == 0) topk_idx[j] = best_idx;
      __syncwarp();
      last = best;
      last_idx = best_idx;
    }
  }

  // Computes RouterRule::Scoring::kSparsemixer on one lane, because models that use it have few experts.
  PENSTOCK_DEVICE void Sparsemixer() const {
    if (Lane() == 0) {
      for (int64_t j = 0; j < args.num_topk; ++j) {
        int64_t best = -1;
        for (int64_t i = 0; i < args.num_experts; ++i) {
          if (!IsTaken(j, i) && (best < 0 || scores[i] > scores[best])) best = i;
        }
        const float largest = scores[best];
        float sum = 0;
        for (int64_t i = 0; i < args.num_experts; ++i) {
          const float magnitude = __uint_as_float(__float_as_uint(scores[i]) & 0x7FFFFFFFu);
          const float below = __fdiv_rn(largest - scores[i], magnitude > largest ? magnitude : largest);
          if (!IsTaken(j, i) && !(below > 2 * args.rule.jitter)) sum += Exp(scores[i] - largest);
        }
        topk_idx[j] = static_cast<int32_t>(best);
        topk_weights[j] = __fdiv_rn(1.0f, sum);
      }
    }
    __syncwarp();
    const float total = Softmax();
    if (total == total) return;
    for (int64_t j = Lane(); j < args.num_topk; j += kWarpThreads) topk_weights[j] = total;
  }
};

// Each warp handles one row.
PENSTOCK_KERNEL(kRouterThreads) RouterKernel(const RouterLaunch args) {
  const int64_t row_idx = static_cast<int64_t>(blockIdx.x) * kRouterWarps + Warp();
  if (row_idx >= args.num_rows) return;
  const RouterRule& rule = args.rule;
  RouterRow row{.args = args,
                .scores = args.scores + row_idx * args.num_experts,
                .topk_idx = args.topk_idx + row_idx * args.num_topk,
                .topk_weights = args.topk_weights + row_idx * args.num_topk};
  if (args.logit_scale != 1) {
    for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) row.scores[i] *= args.logit_scale;
    __syncwarp();
  }
  if (rule.scoring == RouterRule::Scoring::kSparsemixer) return row.Sparsemixer();
  row.chosen_groups = 1;
  if (rule.chooses_by_logits) row.SelectTopk();
  rule.scoring == RouterRule::Scoring::kSigmoid ? row.Sigmoids() : row.Softmax();
  if (rule.num_groups > 1) {
    row.chosen_groups = 0;
    row.ChooseGroups();
  }
  if (!rule.chooses_by_logits) row.SelectTopk();
  float sum = 0;
  for (int64_t j = 0; j < args.num_topk; ++j) sum += row.scores[row.topk_idx[j]];
  for (int64_t j = Lane(); j < args.num_topk; j += kWarpThreads) {
    float weight = row.scores[row.topk_idx[j]];
    if (rule.renormalises) weight = __fdiv_rn(weight, sum);
    weight *= rule.scale;
    if (args.expert_scales != nullptr) weight *= args.expert_scales[row.topk_idx[j]];
    row.topk_weights[j] = weight;
  }
}

constexpr int kGroupThreads = 512;
constexpr int kGroupWarps = kGroupThreads / kWarpThreads;

PENSTOCK_DEVICE int CountBits(uint32_t bits) {
  int count = 0;
  for (; bits != 0; bits &= bits - 1) ++count;
  return count;
}

// One block; each warp scans all assignments for one expert after another.
PENSTOCK_KERNEL(kGroupThreads) SortKernel(const GroupLaunch args) {
  int64_t* const counts = reinterpret_cast<int64_t*>(SharedMemory());  // [num_experts]
  const auto choice = [&](int64_t i) { return i < args.end ? args.topk_idx[i] : -1; };
  for (int64_t expert = Warp(); expert < args.num_experts; expert += kGroupWarps) {
    int32_t count = 0;
    for (int64_t i = args.begin + Lane(); i < args.end; i += kWarpThreads) count += choice(i) == expert ? 1 : 0;
    const int32_t sum = SumOfWarp(count);
    if (Lane() == 0) counts[expert] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int64_t offset = args.begin;
    for (int64_t expert = 0; expert < args.num_experts; ++expert) {
      args.offsets[expert] = offset;
      const int64_t count = counts[expert];
      counts[expert] = offset;
      offset += count;
    }
    args.offsets[args.num_experts] = offset;
  }
  __syncthreads();
  for (int64_t expert = Warp(); expert < args.num_experts; expert += kGroupWarps) {
    int64_t place = counts[expert];
    for (int64_t first = args.begin; first < args.end; first += kWarpThreads) {
      const int64_t i = first + Lane();
      const bool is_mine = choice(i) == expert;
      const uint32_t mine = __ballot_sync(kAllLanes, is_mine);
      if (is_mine) {
        const int64_t own = place + CountBits(mine & ((1u << Lane()) - 1));
        args.assignments[i] = own;
        args.assigned_row[own] = i / args.num_topk;
      }
      place += CountBits(mine);
    }
  }
}

PENSTOCK_KERNEL(128) GatherKernel(const GroupLaunch args) {
  const int64_t place = args.begin + blockIdx.x;
  const auto* const source = reinterpret_cast<const uint4*>(args.input + args.assigned_row[place] * args.input_bytes);
  auto* const target = reinterpret_cast<uint4*>(args.gathered + place * args.input_bytes);
  for (int64_t i = threadIdx.x; i < args.input_bytes / 16; i += 128) target[i] = source[i];
}

// Each block handles one place.
PENSTOCK_KERNEL(128) ReturnInputsKernel(const ReturnInputsLaunch args) {
  const int64_t place = args.begin + blockIdx.x;
  if (place < args.offsets[args.first_expert]) return;
  const float* const input = args.input + args.assigned_row[place] * args.dim;
  for (int64_t i = threadIdx.x; i < args.dim; i += 128) args.output[place * args.dim + i] = input[i];
}

}  // namespace

void RouterTopk(const RouterLaunch& launch, Stream stream) {
  const int64_t num_blocks = (launch.num_rows + kRouterWarps - 1) / kRouterWarps;
  Launch(RouterKernel, {.grid = dim3(static_cast<uint32_t>(num_blocks)), .block = dim3(kRouterThreads)}, stream,
         launch);
}

void Group(const GroupLaunch& launch, Stream stream) {
  Launch(SortKernel,
         {.grid = dim3(1),
          .block = dim3(kGroupThreads),
          .shared_bytes = sizeof(int64_t) * static_cast<size_t>(launch.num_experts)},
         stream, launch);
  Launch(GatherKernel, {.grid = dim3(static_cast<uint32_t>(launch.end - launch.begin)), .block = dim3(128)}, stream,
         launch);
}

void ReturnInputs(const ReturnInputsLaunch& launch, Stream stream) {
  Launch(ReturnInputsKernel, {.grid = dim3(static_cast<uint32_t>(launch.end - launch.begin)), .block = dim3(128)},
         stream, launch);
}

}  // namespace penstock::cuda
