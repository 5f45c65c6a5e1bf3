// Kernels that process rows: norms, prepared rows, the steps between projections and attention, combining.
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/rows.cuh"

namespace penstock::cuda {
namespace {

// Returns the mean of a row. All lanes of a warp must call it, and all get the mean.
PENSTOCK_DEVICE float MeanOf(const float* x, int64_t dim) {
  float sum = 0;
  for (int64_t k = Lane() % 16; k < dim; k += 16) sum += x[k];
  return __fdiv_rn(SumOf16Lanes(sum), static_cast<float>(dim));
}

// Each block holds one row in shared memory. The sum of squares reads it in steps of 16. From device memory, it would
// wait for each step.
PENSTOCK_KERNEL(kRowThreads) NormKernel(const NormLaunch args) {
  const int64_t row_idx = blockIdx.x;
  float* const row = reinterpret_cast<float*>(SharedMemory());  // [dim], then scale and mean
  float* const scale = row + args.dim;
  float* const mean = scale + 1;
  for (int64_t k = threadIdx.x; k < args.dim; k += kRowThreads) row[k] = args.x[row_idx * args.dim + k];
  __syncthreads();
  const bool has_norm = args.weight != nullptr;
  if (Warp() == 0 && has_norm) {
    const float found_mean = args.norm == Norm::kLayer ? MeanOf(row, args.dim) : 0.0f;
    const float found_scale = NormScale(row, args.dim, found_mean, args.eps);
    if (Lane() == 0) *scale = found_scale, *mean = found_mean;
  }
  __syncthreads();
  for (int64_t k = threadIdx.x; k < args.dim; k += kRowThreads) {
    float value = has_norm ? (row[k] - *mean) * *scale * args.weight[k] : row[k];
    if (has_norm && args.bias != nullptr) value += args.bias[k];
    row[k] = value;
    if (args.normed != nullptr) args.normed[row_idx * args.dim + k] = value;
  }
  if (args.prepared == nullptr) return;
  __syncthreads();
  PrepareRow(args.format, row, args.dim, args.prepared + row_idx * args.prepared_stride_bytes);
}

PENSTOCK_KERNEL(kRowThreads) PrepareKernel(const PrepareLaunch args) {
  const int64_t row_idx = blockIdx.x;
  PrepareRow(args.format, args.x + row_idx * args.x_stride, args.dim,
             args.prepared + row_idx * args.prepared_stride_bytes);
}

// A row of q, k or v, which a block handles: each warp normalises `norm_dim` inputs at a time, with weights or without.
struct HeadsOfRow {
  float* x;
  int64_t dim;
  const float* weight;
  int64_t norm_dim;
};
PENSTOCK_DEVICE void NormHeads(const HeadsOfRow& heads, float eps) {
  if (heads.norm_dim == 0) return;
  for (int64_t first = static_cast<int64_t>(Warp()) * heads.norm_dim; first < heads.dim;
       first += kRowWarps * heads.norm_dim) {
    float* const x = heads.x + first;
    const float scale = NormScale(x, heads.norm_dim, 0, eps);
    __syncwarp();
    for (int64_t k = Lane(); k < heads.norm_dim; k += kWarpThreads) {
      const float value = x[k] * scale;
      x[k] = heads.weight == nullptr ? value : value * heads.weight[k];
    }
  }
}

PENSTOCK_DEVICE void ScaleRow(float factor, float* x, int64_t dim) {
  for (int64_t k = threadIdx.x; k < dim; k += kRowThreads) x[k] *= factor;
}

PENSTOCK_DEVICE void Clip(float limit, float* x, int64_t dim) {
  for (int64_t k = threadIdx.x; k < dim; k += kRowThreads) {
    x[k] = x[k] < -limit ? -limit : limit < x[k] ? limit : x[k];
  }
}

// The rotation of a row's heads: RopeArgs (kernels/kernel_table.h).
struct Rotation {
  int64_t rotary_dim;
  const float* cos;
  const float* sin;
  bool is_interleaved;
};
PENSTOCK_DEVICE void Rotate(const Rotation& by, float* x, int64_t num_heads, int64_t head_stride) {
  const int64_t half = by.rotary_dim / 2;
  for (int64_t i = threadIdx.x; i < num_heads * half; i += kRowThreads) {
    float* const head = x + i / half * head_stride;
    float* const first = head + (by.is_interleaved ? 2 : 1) * (i % half);
    float* const second = first + (by.is_interleaved ? 1 : half);
    const float a = *first, b = *second, c = by.cos[i % half], s = by.sin[i % half];
    *first = a * c - b * s;
    *second = b * c + a * s;
  }
}

// Computes V from K where it is the same projection, its norm and its scale.
PENSTOCK_DEVICE void FinishValues(const QkvLaunch& args, const float* k, float* v) {
  const int64_t values_dim = args.num_kv_heads * args.value_dim;
  for (int64_t i = threadIdx.x; args.keys_are_values && i < values_dim; i += kRowThreads) v[i] = k[i];
  __syncthreads();
  if (args.norms_v) {
    NormHeads({v, values_dim, nullptr, args.value_dim}, args.eps);
    __syncthreads();
  }
  if (args.value_scale != 1) ScaleRow(args.value_scale, v, values_dim);
}

PENSTOCK_KERNEL(kRowThreads) FinishQkvKernel(const QkvLaunch args) {
  const int64_t row_idx = blockIdx.x;
  const int64_t q_dim = args.num_heads * args.head_dim, k_dim = args.num_kv_heads * args.head_dim;
  const HeadsOfRow q = {args.q + row_idx * args.q_stride, q_dim, args.q_norm, args.q_norm_dim};
  const HeadsOfRow k = {args.k + row_idx * args.k_stride, k_dim, args.k_norm, args.k_norm_dim};
  float* const v = args.v + row_idx * args.v_stride;
  const auto norm = [&] {
    NormHeads(q, args.eps);
    NormHeads(k, args.eps);
  };
  if (args.keys_are_values || args.norms_v || args.value_scale != 1) {
    FinishValues(args, k.x, v);
    __syncthreads();
  }
  if (!args.norms_after_rope) norm();
  __syncthreads();
  if (args.clip > 0) {
    Clip(args.clip, q.x, q_dim);
    Clip(args.clip, k.x, k_dim);
    Clip(args.clip, v, args.num_kv_heads * args.value_dim);
    __syncthreads();
  }
  const int64_t first_angle = row_idx * args.angles_stride;
  const Rotation by = {args.rotary_dim, args.cos + first_angle, args.sin + first_angle, args.is_interleaved};
  Rotate(by, q.x, args.num_heads, args.head_dim);
  Rotate(by, k.x, args.num_kv_heads, args.head_dim);
  __syncthreads();
  if (args.norms_after_rope) norm();
  if (args.query_scales == nullptr) return;
  __syncthreads();
  ScaleRow(args.query_scales[row_idx], q.x, q_dim);
}

PENSTOCK_KERNEL(kRowThreads) FinishMlaKernel(const MlaLaunch args) {
  const int64_t row_idx = blockIdx.x;
  const int64_t head_dim = args.kv_lora_rank + args.rope_dim, given_dim = args.nope_dim + args.rope_dim;
  float* const q = args.q + row_idx * args.num_heads * head_dim + args.kv_lora_rank;
  float* const k = args.k + row_idx * head_dim;
  const float* const given = args.q_heads + row_idx * args.num_heads * given_dim + args.nope_dim;
  for (int64_t i = threadIdx.x; i < args.num_heads * args.rope_dim; i += kRowThreads) {
    const int64_t head = i / args.rope_dim, d = i % args.rope_dim;
    q[head * head_dim + d] = given[head * given_dim + d];
  }
  NormHeads({k, args.kv_lora_rank, args.k_norm, args.kv_lora_rank}, args.eps);
  __syncthreads();
  if (args.k_scale != 1) ScaleRow(args.k_scale, k, args.kv_lora_rank);
  const int64_t first_angle = row_idx * args.angles_stride;
  const Rotation by = {args.rotary_dim, args.cos + first_angle, args.sin + first_angle, args.is_interleaved};
  Rotate(by, q, args.num_heads, head_dim);
  Rotate(by, k + args.kv_lora_rank, 1, head_dim);
  if (args.query_scales == nullptr) return;
  __syncthreads();
  ScaleRow(args.query_scales[row_idx], args.q + row_idx * args.num_heads * head_dim, args.num_heads * head_dim);
}

PENSTOCK_KERNEL(kRowThreads) CombineKernel(const kernels::CombineArgs args) {
  const int64_t row_idx = blockIdx.x;
  const int64_t* const assignments = args.assignments + row_idx * args.num_topk;
  const float* const weights = args.weights + row_idx * args.num_topk;
  for (int64_t d = threadIdx.x; d < args.dim; d += kRowThreads) {
    float sum = 0;
    for (int64_t j = 0; j < args.num_topk; ++j) {
      sum = __fmaf_rn(weights[j], args.z[assignments[j] * args.z_stride + d], sum);
    }
    args.y[row_idx * args.y_stride + d] = args.residual[row_idx * args.residual_stride + d] + args.scale * sum;
  }
}

PENSTOCK_KERNEL(kRowThreads) AddKernel(const float* source, const float scale, const int64_t count, float* target) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i < count) target[i] += scale * source[i];
}

PENSTOCK_KERNEL(kRowThreads)
CopyScaledKernel(const float* source, const float scale, const int64_t count, float* target) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i < count) target[i] = scale * source[i];
}

PENSTOCK_KERNEL(kRowThreads) ScaleKernel(const float scale, const int64_t count, float* target) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i < count) target[i] *= scale;
}

PENSTOCK_KERNEL(kRowThreads) ScaleByKernel(const float* scale, const int64_t count, float* target) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i < count) target[i] *= *scale;
}

PENSTOCK_KERNEL(kRowThreads) SoftCapKernel(const float cap, const int64_t count, float* x) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i < count) x[i] = cap - __fdiv_rn(2 * cap, 1.0f + Exp(x[i] * __fdiv_rn(2.0f, cap)));
}

// Each block handles one row.
PENSTOCK_KERNEL(kRowThreads) MoveWeightsKernel(const int64_t dim, float* x, float* weights) {
  const float weight = weights[blockIdx.x];
  ScaleRow(weight, x + blockIdx.x * dim, dim);
  __syncthreads();
  if (threadIdx.x == 0) weights[blockIdx.x] = 1;
}

// Each block handles one row.
PENSTOCK_KERNEL(kRowThreads) AddGatedKernel(const AddGatedLaunch args) {
  const int64_t row_idx = blockIdx.x;
  const float scale = args.scale * Sigmoid(args.gates[row_idx]);
  for (int64_t d = threadIdx.x; d < args.dim; d += kRowThreads) {
    args.target[row_idx * args.dim + d] += scale * args.source[row_idx * args.dim + d];
  }
}

PENSTOCK_KERNEL(kRowThreads) ClearKernel(float* target, const int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i < count) target[i] = 0;
}

LaunchShape RowsShape(int64_t num_rows, int64_t shared_floats = 0) {
  return BlocksShape(num_rows, kRowThreads, shared_floats);
}
LaunchShape ElementsShape(int64_t count) { return BlocksShape(BlocksFor(count, kRowThreads), kRowThreads); }

// Each block handles one row.
PENSTOCK_KERNEL(kRowThreads) ArgMaxKernel(const float* x, int64_t dim, int32_t* best) {
  const float* const row = x + static_cast<int64_t>(blockIdx.x) * dim;
  const float infinity = __uint_as_float(0x7F800000u);
  float largest = -infinity;
  int32_t idx = -1, num_broken = 0;
  for (int64_t k = threadIdx.x; k < dim; k += kRowThreads) {
    const float value = row[k];
    num_broken += value < infinity ? 0 : 1;
    if (value > largest) largest = value, idx = static_cast<int32_t>(k);
  }
  const auto take = [&](float other, int32_t other_idx) {
    const bool is_better = other > largest || (other == largest && (idx < 0 || (other_idx >= 0 && other_idx < idx)));
    if (is_better) largest = other, idx = other_idx;
  };
  for (int distance = 16; distance >= 1; distance /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, largest, distance);
    take(other, __shfl_xor_sync(kAllLanes, idx, distance));
  }
  num_broken = SumOfWarp(num_broken);
  float* const values = reinterpret_cast<float*>(SharedMemory());  // [kRowWarps], then indices, then broken flags
  int32_t* const indices = reinterpret_cast<int32_t*>(values + kRowWarps);
  int32_t* const broken = indices + kRowWarps;
  if (Lane() == 0) values[Warp()] = largest, indices[Warp()] = idx, broken[Warp()] = num_broken;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kRowWarps; ++warp) {
    take(values[warp], indices[warp]);
    num_broken += broken[warp];
  }
  best[blockIdx.x] = num_broken == 0 ? idx : -1;
}

}  // namespace

void NormRows(const NormLaunch& launch, Stream stream) {
  Launch(NormKernel, RowsShape(launch.num_rows, launch.dim + 2), stream, launch);
}
void PrepareRows(const PrepareLaunch& launch, Stream stream) {
  Launch(PrepareKernel, RowsShape(launch.num_rows), stream, launch);
}
void FinishQkv(const QkvLaunch& launch, Stream stream) {
  Launch(FinishQkvKernel, RowsShape(launch.num_rows), stream, launch);
}
void FinishMla(const MlaLaunch& launch, Stream stream) {
  Launch(FinishMlaKernel, RowsShape(launch.num_rows), stream, launch);
}
void Combine(const kernels::CombineArgs& args, Stream stream) {
  Launch(CombineKernel, RowsShape(args.num_rows), stream, args);
}
void Add(const float* source, float scale, int64_t count, float* target, Stream stream) {
  Launch(AddKernel, ElementsShape(count), stream, source, scale, count, target);
}
void CopyScaled(const float* source, float scale, int64_t count, float* target, Stream stream) {
  Launch(CopyScaledKernel, ElementsShape(count), stream, source, scale, count, target);
}

void AddGated(const AddGatedLaunch& launch, Stream stream) {
  Launch(AddGatedKernel, RowsShape(launch.num_rows), stream, launch);
}
void Scale(float scale, int64_t count, float* target, Stream stream) {
  Launch(ScaleKernel, ElementsShape(count), stream, scale, count, target);
}
void ScaleBy(const float* scale, int64_t count, float* target, Stream stream) {
  Launch(ScaleByKernel, ElementsShape(count), stream, scale, count, target);
}
void MoveWeights(int64_t num_rows, int64_t dim, float* x, float* weights, Stream stream) {
  Launch(MoveWeightsKernel, RowsShape(num_rows), stream, dim, x, weights);
}
void SoftCap(float cap, int64_t count, float* x, Stream stream) {
  Launch(SoftCapKernel, ElementsShape(count), stream, cap, count, x);
}

void ArgMax(const float* x, int64_t num_rows, int64_t dim, int32_t* best, Stream stream) {
  Launch(ArgMaxKernel,
         {.grid = dim3(static_cast<uint32_t>(num_rows)), .block = dim3(kRowThreads), .shared_bytes = 12 * kRowWarps},
         stream, x, dim, best);
}

void Clear(float* target, int64_t count, Stream stream) {
  Launch(ClearKernel, ElementsShape(count), stream, target, count);
}

}  // namespace penstock::cuda
