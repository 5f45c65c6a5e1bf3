// What routers choose, and the assignments of rows sorted by expert.
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/math.cuh"

namespace penstock::cuda {
namespace {

constexpr int kRouterThreads = 128;
constexpr int kRouterWarps = kRouterThreads / kWarpThreads;

// A warp has a row.
PENSTOCK_KERNEL(kRouterThreads) RouterKernel(const RouterLaunch args) {
  const int64_t row_idx = static_cast<int64_t>(blockIdx.x) * kRouterWarps + Warp();
  if (row_idx >= args.num_rows) return;
  float* const scores = args.scores + row_idx * args.num_experts;
  const bool is_softmax = args.scoring == kernels::RouterScoring::kSoftmax;
  float largest = -__uint_as_float(0x7F800000u);
  for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) largest = Larger(scores[i], largest);
  largest = MaxOfWarp(largest);
  __syncwarp();
  for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) {
    const float x = scores[i];
    scores[i] = is_softmax ? Exp(x - largest) : __fdiv_rn(1.0f, 1.0f + Exp(0.0f - x));
  }
  __syncwarp();
  float sum = 0;
  for (int64_t i = Lane() % 16; i < args.num_experts; i += 16) sum += scores[i];
  const float total = SumOf16Lanes(sum);
  __syncwarp();
  if (is_softmax || total != total) {
    for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) scores[i] = __fdiv_rn(scores[i], total);
  }
  __syncwarp();
  int32_t* const topk_idx = args.topk_idx + row_idx * args.num_topk;
  float* const topk_weights = args.topk_weights + row_idx * args.num_topk;
  float weight_sum = 0;
  // Those that were chosen before come before the last one in this order: larger, or equal with a lower index. With
  // NaN all scores are NaN: the first experts are chosen.
  const bool is_nan = total != total;
  float last = __uint_as_float(0x7F800000u);
  int32_t last_idx = -1;
  for (int64_t j = 0; j < args.num_topk; ++j) {
    float best = -1;
    int32_t best_idx = 0x7FFFFFFF;
    for (int64_t i = Lane(); i < args.num_experts; i += kWarpThreads) {
      const float score = scores[i];
      const auto idx = static_cast<int32_t>(i);
      const bool is_left = score < last || (score == last && idx > last_idx);
      if (is_left && score > best) best = score, best_idx = idx;
    }
    for (int distance = 16; distance >= 1; distance /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, distance);
      const int32_t other_idx = __shfl_xor_sync(kAllLanes, best_idx, distance);
      if (other > best || (other == best && other_idx < best_idx)) best = other, best_idx = other_idx;
    }
    if (is_nan) best = total, best_idx = static_cast<int32_t>(j);
    if (Lane() == 0) topk_idx[j] = best_idx, topk_weights[j] = best;
    weight_sum += best;
    last = best;
    last_idx = best_idx;
  }
  __syncwarp();
  if (!args.renormalises) return;
  for (int64_t j = Lane(); j < args.num_topk; j += kWarpThreads) {
    topk_weights[j] = __fdiv_rn(topk_weights[j], weight_sum);
  }
}

constexpr int kGroupThreads = 512;
constexpr int kGroupWarps = kGroupThreads / kWarpThreads;

PENSTOCK_DEVICE int CountBits(uint32_t bits) {
  int count = 0;
  for (; bits != 0; bits &= bits - 1) ++count;
  return count;
}

// One block; each warp looks at all assignments for one expert after the other.
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

}  // namespace penstock::cuda
