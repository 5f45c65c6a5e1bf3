// Kernels of recurrent layers that handle rows: the convolution, gates, and norms. recurrent_states.cu has the rules
// that change states.
#include "penstock/kernels/cuda/recurrent.h"

#include "penstock/kernels/cuda/recurrent.cuh"
#include "penstock/kernels/cuda/rows.cuh"

namespace penstock::cuda {
namespace {

constexpr int kConvThreads = 128;   // channels of a block
constexpr int kConvRowsAtOnce = 8;  // rows whose inputs are loaded before they are convolved

// Each thread has one channel. kMaxWidth: the most positions, so that all arrays are registers.
template <int kMaxWidth>
PENSTOCK_KERNEL(kConvThreads)
ShortConvKernel(const ShortConvLaunch args, const int64_t blocks_of_part) {
  const StatePlace place = PlaceOf(args.runs, blockIdx.x / blocks_of_part);
  const int64_t of_part = static_cast<int64_t>(blockIdx.x % blocks_of_part) * kConvThreads + threadIdx.x;
  const int64_t first = place.part * args.part_channels, channel = first + of_part;
  if (of_part >= args.part_channels || channel >= args.num_channels) return;
  const int64_t left = args.num_channels - first, stride = left < args.part_channels ? left : args.part_channels;
  int input_idx = 0;
  int64_t col = channel;  // of the input
  for (; col >= args.inputs[input_idx].count; ++input_idx) col -= args.inputs[input_idx].count;
  const ShortConvLaunch::Input input = args.inputs[input_idx];
  float* const out = args.out == nullptr ? input.x : args.out;
  const int64_t num_kept = args.width - 1;
  float kept[kMaxWidth], weight[kMaxWidth];
#pragma unroll
  for (int i = 0; i < kMaxWidth; ++i) {
    if (i < num_kept) kept[i] = place.state[i * stride + of_part];
    if (i < args.width) weight[i] = input.weight[i * input.weight_stride + col];
  }
  const auto store_to = [&](float* state) {
#pragma unroll
    for (int i = 0; i < kMaxWidth; ++i) {
      if (i < num_kept) state[i * stride + of_part] = kept[i];
    }
  };
  const float bias = args.bias == nullptr ? 0.0f : args.bias[channel];
  DueCopies copies(args.runs, place);
  for (int64_t begin = place.begin; begin < place.end; begin += kConvRowsAtOnce) {
    float x[kConvRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kConvRowsAtOnce; ++i) {
      if (begin + i < place.end) x[i] = input.x[(begin + i) * input.count + col];
    }
#pragma unroll
    for (int i = 0; i < kConvRowsAtOnce; ++i) {
      if (begin + i >= place.end) break;
      float sum = bias;
#pragma unroll
      for (int j = 0; j < kMaxWidth - 1; ++j) {
        if (j >= num_kept) break;
        sum = __fmaf_rn(weight[j], kept[j], sum);
        kept[j] = j + 1 < num_kept ? kept[j + 1] : x[i];
      }
      float last = weight[0];  // a constant index keeps the weights in registers
#pragma unroll
      for (int j = 1; j < kMaxWidth; ++j) {
        if (j == num_kept) last = weight[j];
      }
      sum = __fmaf_rn(last, x[i], sum);
      if (args.has_silu) sum = sum * Sigmoid(sum);
      out[(begin + i) * input.count + col] = sum;
      copies.After(begin + i, store_to);
    }
  }
  store_to(place.state);
}

// Computes log(1 + exp(x)) by the same steps as cpu/recurrent-inl.h.
PENSTOCK_DEVICE float Softplus(float x) {
  const float y = Exp(0.0f - __uint_as_float(__float_as_uint(x) & 0x7FFFFFFFu));
  const float z = __fdiv_rn(y, 2.0f + y), z2 = z * z;
  float sum = 1.0f / 13;
  sum = __fmaf_rn(sum, z2, 1.0f / 11);
  sum = __fmaf_rn(sum, z2, 1.0f / 9);
  sum = __fmaf_rn(sum, z2, 1.0f / 7);
  sum = __fmaf_rn(sum, z2, 1.0f / 5);
  sum = __fmaf_rn(sum, z2, 1.0f / 3);
  sum = __fmaf_rn(sum, z2, 1.0f);
  return __fmaf_rn(z + z, sum, Larger(0.0f, x));
}

// Each block handles one row.
PENSTOCK_KERNEL(kRowThreads) RecurrentGatesKernel(const kernels::RecurrentGatesArgs args) {
  float* const decay = args.decay + blockIdx.x * args.num_decays;
  float* const beta = args.beta + blockIdx.x * args.num_betas;
  for (int64_t i = threadIdx.x; i < args.num_decays; i += kRowThreads) {
    const float sum = decay[i] + args.decay_bias[i];
    const float rate = args.decay_log == nullptr ? 0.0f : Exp(args.decay_log[i / args.decays_of_log]);
    if (args.decay_floor < 0) {
      decay[i] = Exp(args.decay_floor * Sigmoid(rate * sum));
      continue;
    }
    const float step = Softplus(sum);
    if (args.beta_is_step) beta[i] = step;
    decay[i] = args.decay_log == nullptr ? step : Exp(0.0f - rate * step);
  }
  if (args.beta_is_step) return;
  for (int64_t i = threadIdx.x; i < args.num_betas; i += kRowThreads) beta[i] = Sigmoid(beta[i]);
}

// Each warp handles one vector.
PENSTOCK_KERNEL(kRowThreads) NormVectorsKernel(const NormVectorsLaunch args) {
  const int64_t idx = static_cast<int64_t>(blockIdx.x) * kRowWarps + Warp();
  if (idx >= args.num_vectors) return;
  float* const x = args.x + idx * args.dim;
  const float scale = NormScale(x, args.dim, 0, args.eps);
  __syncwarp();
  for (int64_t i = Lane(); i < args.dim; i += kWarpThreads) {
    x[i] = x[i] * scale * (args.weight == nullptr ? args.factor : args.weight[i]);
  }
}

PENSTOCK_DEVICE float Gated(GateRule rule, float gate, float x) {
  switch (rule) {
    case GateRule::kSigmoid: return x * Sigmoid(gate);
    case GateRule::kSilu: return Glu({}, gate, x);
    case GateRule::kSoftplus: return x * Softplus(gate);
    case GateRule::kProduct: break;
  }
  return x * gate;
}

// Grid: rows, parts of a row.
PENSTOCK_KERNEL(kRowThreads) GateKernel(const GateLaunch args) {
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x;
  if (i >= args.dim) return;
  float& x = args.x[blockIdx.x * args.x_stride + i];
  x = Gated(args.rule, args.gate[blockIdx.x * args.gate_stride + i / args.dims_of_gate], x);
}

// Each block holds one row in shared memory, and each warp norms vectors of it.
PENSTOCK_KERNEL(kRowThreads) GateRowsKernel(const GateRowsLaunch args) {
  float* const row = reinterpret_cast<float*>(SharedMemory());  // [dim]
  const float* const x = args.x + blockIdx.x * args.dim;
  const float* const gate = args.gate + blockIdx.x * args.dim;
  for (int64_t i = threadIdx.x; i < args.dim; i += kRowThreads) {
    row[i] = args.norms_last ? Gated(args.rule, gate[i], x[i]) : x[i];
  }
  __syncthreads();
  for (int64_t first = static_cast<int64_t>(Warp()) * args.norm_dim; args.norm_dim > 0 && first < args.dim;
       first += kRowWarps * args.norm_dim) {
    const float scale = NormScale(row + first, args.norm_dim, 0, args.eps);
    __syncwarp();
    for (int64_t i = Lane(); i < args.norm_dim; i += kWarpThreads) {
      row[first + i] = row[first + i] * scale * args.norm_weight[(args.norm_weight_is_shared ? 0 : first) + i];
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < args.dim && !args.norms_last; i += kRowThreads) {
    row[i] = Gated(args.rule, gate[i], row[i]);
  }
  __syncthreads();
  PrepareRow(args.format, row, args.dim, args.prepared + blockIdx.x * args.prepared_stride_bytes);
}

}  // namespace

void ShortConv(const ShortConvLaunch& launch, Stream stream) {
  const int64_t blocks_of_part = BlocksFor(launch.part_channels, kConvThreads);
  const auto give = [&](auto kernel) {
    Launch(kernel, BlocksShape(launch.runs.num_runs * launch.runs.num_parts * blocks_of_part, kConvThreads), stream,
           launch, blocks_of_part);
  };
  constexpr int kUsualWidth = 4;
  launch.width <= kUsualWidth ? give(ShortConvKernel<kUsualWidth>) : give(ShortConvKernel<kernels::kMaxConvWidth>);
}

void RecurrentGates(const kernels::RecurrentGatesArgs& first, int64_t num_rows, Stream stream) {
  Launch(RecurrentGatesKernel, BlocksShape(num_rows, kRowThreads), stream, first);
}

void NormVectors(const NormVectorsLaunch& launch, Stream stream) {
  Launch(NormVectorsKernel, BlocksShape(BlocksFor(launch.num_vectors, kRowWarps), kRowThreads), stream, launch);
}

void Gate(const GateLaunch& launch, Stream stream) {
  LaunchShape shape = BlocksShape(launch.num_rows, kRowThreads);
  shape.grid.y = static_cast<uint32_t>(BlocksFor(launch.dim, kRowThreads));
  Launch(GateKernel, shape, stream, launch);
}

void GateRows(const GateRowsLaunch& launch, Stream stream) {
  Launch(GateRowsKernel, BlocksShape(launch.num_rows, kRowThreads, launch.dim), stream, launch);
}

}  // namespace penstock::cuda
