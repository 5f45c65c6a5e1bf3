// Kernels of recurrent layers. A state changes row by row, so the rows of a sequence follow each other in one block.
// Sequences, heads and columns are independent: a block has 32 columns of one matrix, one for each lane, and keeps them
// in shared memory.
#include "penstock/kernels/cuda/recurrent.h"

#include "penstock/kernels/cuda/rows.cuh"

namespace penstock::cuda {
namespace {

constexpr int kConvThreads = 128;   // channels of a block
constexpr int kConvRowsAtOnce = 8;  // rows whose inputs are loaded before they are convolved
constexpr int kRowBuffers = 3;      // the row at hand, the next one, and the one that is being loaded

// The part of a run's state that a block changes.
struct StatePlace {
  int64_t begin, end;  // rows
  int64_t part;
  float* state;
};
PENSTOCK_DEVICE StatePlace PlaceOf(const StateRuns& runs, int64_t idx) {
  const int64_t run = idx / runs.num_parts, part = idx % runs.num_parts;
  return {runs.begins[run], runs.begins[run + 1], part, runs.parts[idx]};
}

// The copies of a state that are due after some rows.
class DueCopies {
 public:
  PENSTOCK_DEVICE DueCopies(const StateRuns& runs, const StatePlace& place) : runs_(runs), part_(place.part) {
    while (next_ < runs.num_copies && runs.copy_rows[next_] < place.begin) ++next_;
  }
  // Calls copy(target) for each copy of the state as it is after `row`. Rows increase.
  template <typename Copy>
  PENSTOCK_DEVICE void After(int64_t row, const Copy& copy) {
    for (; next_ < runs_.num_copies && runs_.copy_rows[next_] == row; ++next_) {
      copy(runs_.copy_parts[next_ * runs_.num_parts + part_]);
    }
  }

 private:
  const StateRuns& runs_;
  int64_t part_;
  int64_t next_ = 0;
};

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

// Begins to copy floats into shared memory; a warp does it. `source` is aligned to 16 bytes if `count` is a multiple of
// four.
PENSTOCK_DEVICE void Fetch(const float* source, int64_t count, float* shared) {
  if (count % 4 != 0) {
    for (int64_t i = Lane(); i < count; i += kWarpThreads) shared[i] = source[i];
    return;
  }
  for (int64_t i = 4 * Lane(); i < count; i += 4 * kWarpThreads) {
    CopyPiece(reinterpret_cast<std::byte*>(shared + i), reinterpret_cast<const std::byte*>(source + i));
  }
}

// Begins to copy `count` columns of a state, [key_dim, stride], to shared memory [key_dim, 32].
PENSTOCK_DEVICE void FetchColumns(const float* state, int64_t key_dim, int64_t stride, int64_t count, float* shared) {
  if (stride % 4 != 0) {
    for (int64_t dim = 0; dim < key_dim && Lane() < count; ++dim) {
      shared[dim * kWarpThreads + Lane()] = state[dim * stride + Lane()];
    }
    return;
  }
  const int64_t pieces = count / 4;
  for (int64_t i = Lane(); i < key_dim * pieces; i += kWarpThreads) {
    const int64_t dim = i / pieces, col = i % pieces * 4;
    CopyPiece(reinterpret_cast<std::byte*>(shared + dim * kWarpThreads + col),
              reinterpret_cast<const std::byte*>(state + dim * stride + col));
  }
}

enum class StateKind : uint8_t { kDelta, kDeltaOfDims, kNoDelta };

constexpr int kDimsAtOnce = 8;  // of keys, loaded while those before are computed

// Consecutive dims of a vector in shared memory, of which the last ones may lie beyond its end.
struct alignas(16) Dims {
  float of[kDimsAtOnce];
};

// Keys, queries and, for kDeltaOfDims, decays of a row, in shared memory.
template <StateKind kKind>
struct RowInputs {
  static constexpr int64_t kNumVectors = kKind == StateKind::kDeltaOfDims ? 3 : 2;

  // Returns the floats of a vector with its padding.
  PENSTOCK_HOST_DEVICE static int64_t Stride(int64_t key_dim) {
    return (key_dim + kDimsAtOnce - 1) / kDimsAtOnce * kDimsAtOnce;
  }
  PENSTOCK_DEVICE RowInputs(float* buffers, int64_t key_dim, int64_t row)
      : k(buffers + row % kRowBuffers * kNumVectors * Stride(key_dim)),
        q(k + Stride(key_dim)),
        decays(q + Stride(key_dim)) {}

  // Begins to fetch a row. `first`: where its vectors begin in those of all rows.
  PENSTOCK_DEVICE void Fetch(const StateRuleLaunch& args, int64_t first) const {
    cuda::Fetch(args.k + first, args.key_dim, k);
    cuda::Fetch(args.q + first, args.key_dim, q);
    if constexpr (kKind == StateKind::kDeltaOfDims) cuda::Fetch(args.decay + first, args.key_dim, decays);
  }
  // Returns k . q; all lanes get it.
  PENSTOCK_DEVICE float KeyQuery(int64_t key_dim) const {
    float products = 0;
    for (int64_t i = 0; i < key_dim; i += 16) {
      const int64_t dim = i + Lane() % 16;
      products = __fmaf_rn(dim < key_dim ? k[dim] : 0.0f, dim < key_dim ? q[dim] : 0.0f, products);
    }
    return SumOf16Lanes(products);
  }
  PENSTOCK_DEVICE static Dims Load(const float* vector, int64_t dim) {
    return *reinterpret_cast<const Dims*>(vector + dim);
  }

  float *k, *q, *decays;
};

// S^T k and S^T q of one column.
template <StateKind kKind>
struct ColumnSums {
  float of_key = 0, of_query = 0;

  PENSTOCK_DEVICE void Add(float k, float q, float decay, float s) {
    if constexpr (kKind == StateKind::kDeltaOfDims) {
      k *= decay;
      q *= decay;
    }
    if constexpr (kKind != StateKind::kNoDelta) of_key = __fmaf_rn(k, s, of_key);
    of_query = __fmaf_rn(q, s, of_query);
  }
};

// The inputs of a walk through a column of a state for some dims: the column, the row's k, and the next row's k and q.
template <StateKind kKind>
struct WalkInputs {
  static constexpr bool kDecaysDims = kKind == StateKind::kDeltaOfDims;

  PENSTOCK_DEVICE WalkInputs(const float* column, const RowInputs<kKind>& row, const RowInputs<kKind>& next,
                             int64_t dim) {
#pragma unroll
    for (int i = 0; i < kDimsAtOnce; ++i) s[i] = column[(dim + i) * kWarpThreads];
    k = RowInputs<kKind>::Load(row.k, dim);
    next_k = RowInputs<kKind>::Load(next.k, dim);
    next_q = RowInputs<kKind>::Load(next.q, dim);
    if constexpr (kDecaysDims) {
      decays = RowInputs<kKind>::Load(row.decays, dim);
      next_decays = RowInputs<kKind>::Load(next.decays, dim);
    }
  }

  float s[kDimsAtOnce];
  Dims k, next_k, next_q, decays, next_decays;
};

// The numbers of a row that belong to a column or a head.
struct RowNumbers {
  float v, decay, beta;
};

// Each block is one warp, with 32 columns of a head's matrix. One walk through them changes them for a row, and sums
// them up for the next row.
template <StateKind kKind>
PENSTOCK_KERNEL(kWarpThreads)
StateRuleKernel(const StateRuleLaunch args, const int64_t blocks_of_part) {
  constexpr bool kHasDelta = kKind != StateKind::kNoDelta, kDecaysDims = kKind == StateKind::kDeltaOfDims;
  const StatePlace place = PlaceOf(args.runs, blockIdx.x / blocks_of_part);
  const int64_t first_col = static_cast<int64_t>(blockIdx.x % blocks_of_part) * kWarpThreads;
  const int64_t cols_left = args.part_cols - first_col, num_cols = cols_left < kWarpThreads ? cols_left : kWarpThreads;
  const bool has_col = Lane() < num_cols;
  const int64_t values_dim = args.num_value_heads * args.value_dim, keys_dim = args.num_key_heads * args.key_dim;
  const int64_t col = place.part * args.part_cols + first_col + (has_col ? Lane() : 0);  // among those of all heads
  const int64_t head = col / args.value_dim;
  const int64_t key_head =
      args.heads_alternate ? head % args.num_key_heads : head / (args.num_value_heads / args.num_key_heads);
  const int64_t key_dim = args.key_dim, padded_dim = RowInputs<kKind>::Stride(key_dim), last_row = place.end - 1;
  float* const state = place.state + first_col;
  float* const shared = reinterpret_cast<float*>(SharedMemory());  // [padded_dim, 32], then the inputs of rows
  float* const own = shared + Lane();
  float* const buffers = shared + padded_dim * kWarpThreads;
  const auto inputs_of = [&](int64_t row) { return RowInputs<kKind>(buffers, key_dim, row - place.begin); };
  const auto fetch = [&](int64_t row) {
    if (row <= last_row) inputs_of(row).Fetch(args, row * keys_dim + key_head * key_dim);
    EndCopies();
  };
  const auto numbers_of = [&](int64_t row) -> RowNumbers {
    const int64_t of_head = row * args.num_value_heads + head;
    return {args.v[row * values_dim + col], kDecaysDims ? 1.0f : args.decay[args.decay_is_constant ? head : of_head],
            args.beta == nullptr ? 1.0f : args.beta[of_head]};
  };
  const float skip = args.skip == nullptr ? 0.0f : args.skip[head];
  FetchColumns(state, key_dim, args.part_cols, num_cols, shared);
  fetch(place.begin);
  RowNumbers numbers = numbers_of(place.begin);
  WaitForCopies<0>();
  __syncwarp();
  fetch(place.begin + 1);
  ColumnSums<kKind> sums;  // of the row at hand
  {
    const RowInputs<kKind> first = inputs_of(place.begin);
#pragma unroll 16
    for (int64_t dim = 0; dim < key_dim; ++dim) {
      sums.Add(first.k[dim], first.q[dim], kDecaysDims ? first.decays[dim] : 1.0f, own[dim * kWarpThreads]);
    }
  }
  DueCopies copies(args.runs, place);
  for (int64_t row = place.begin; row <= last_row; ++row) {
    WaitForCopies<0>();  // of the next row
    __syncwarp();
    fetch(row + 2);
    const bool is_last = row == last_row;
    const RowInputs<kKind> now = inputs_of(row), next = is_last ? now : inputs_of(row + 1);
    const RowNumbers next_numbers = is_last ? numbers : numbers_of(row + 1);
    const float product = numbers.decay * sums.of_key;
    const float delta = (kHasDelta ? numbers.v - product : numbers.v) * numbers.beta;
    float out = __fmaf_rn(now.KeyQuery(key_dim), delta, numbers.decay * sums.of_query);
    if (!kHasDelta) out = __fmaf_rn(skip, numbers.v, out);
    if (has_col) args.out[row * values_dim + col] = out;
    sums = {};
    WalkInputs<kKind> inputs(own, now, next, 0);
    for (int64_t dim = 0; dim < key_dim; dim += kDimsAtOnce) {
      const WalkInputs<kKind> ahead(own, now, next, dim + kDimsAtOnce < padded_dim ? dim + kDimsAtOnce : dim);
#pragma unroll
      for (int i = 0; i < kDimsAtOnce; ++i) {
        if (dim + i >= key_dim) break;
        const float decay = kDecaysDims ? inputs.decays.of[i] : numbers.decay;
        const float s = __fmaf_rn(inputs.k.of[i], delta, decay * inputs.s[i]);
        own[(dim + i) * kWarpThreads] = s;
        if (is_last && has_col) state[(dim + i) * args.part_cols + Lane()] = s;
        sums.Add(inputs.next_k.of[i], inputs.next_q.of[i], kDecaysDims ? inputs.next_decays.of[i] : 1.0f, s);
      }
      inputs = ahead;
    }
    copies.After(row, [&](float* target) {
      for (int64_t dim = 0; dim < key_dim && has_col; ++dim) {
        target[dim * args.part_cols + first_col + Lane()] = own[dim * kWarpThreads];
      }
    });
    numbers = next_numbers;
  }
}

// Each block is one warp, with 32 columns.
PENSTOCK_KERNEL(kWarpThreads) SelectiveScanKernel(const SelectiveScanLaunch args, const int64_t blocks_of_part) {
  const StatePlace place = PlaceOf(args.runs, blockIdx.x / blocks_of_part);
  const int64_t first_col = static_cast<int64_t>(blockIdx.x % blocks_of_part) * kWarpThreads;
  if (Lane() >= args.part_cols - first_col) return;
  const int64_t col = place.part * args.part_cols + first_col + Lane(), key_dim = args.key_dim;
  float* const state = reinterpret_cast<float*>(SharedMemory()) + Lane();  // [key_dim, 32]
  float* const rates = state + key_dim * kWarpThreads;                     // [key_dim, 32]
  float* const kept = place.state + first_col + Lane();
  for (int64_t dim = 0; dim < key_dim; ++dim) {
    state[dim * kWarpThreads] = kept[dim * args.part_cols];
    rates[dim * kWarpThreads] = 0.0f - Exp(args.decay_log[dim * args.num_cols + col]);
  }
  const auto store_to = [&](float* target) {
    for (int64_t dim = 0; dim < key_dim; ++dim) target[dim * args.part_cols] = state[dim * kWarpThreads];
  };
  const float skip = args.skip[col];
  DueCopies copies(args.runs, place);
  for (int64_t row = place.begin; row < place.end; ++row) {
    const float v = args.v[row * args.num_cols + col], step = args.step[row * args.num_cols + col], input = step * v;
    float sum = 0;
    for (int64_t dim = 0; dim < key_dim; ++dim) {
      float* const own = state + dim * kWarpThreads;
      *own = __fmaf_rn(args.k[row * key_dim + dim], input, Exp(rates[dim * kWarpThreads] * step) * *own);
      sum = __fmaf_rn(args.q[row * key_dim + dim], *own, sum);
    }
    args.out[row * args.num_cols + col] = __fmaf_rn(skip, v, sum);
    copies.After(row, [&](float* target) { store_to(target + first_col + Lane()); });
  }
  store_to(kept);
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

// Grid: parts of a row, rows.
PENSTOCK_KERNEL(kRowThreads) GateKernel(const GateLaunch args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= args.dim) return;
  float& x = args.x[blockIdx.y * args.x_stride + i];
  x = Gated(args.rule, args.gate[blockIdx.y * args.gate_stride + i / args.dims_of_gate], x);
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

LaunchShape ShapeOf(int64_t num_blocks, int num_threads, int64_t shared_floats = 0) {
  return {.grid = dim3(static_cast<uint32_t>(num_blocks)),
          .block = dim3(static_cast<uint32_t>(num_threads)),
          .shared_bytes = sizeof(float) * static_cast<size_t>(shared_floats)};
}

int64_t BlocksFor(int64_t count, int64_t of_block) { return (count + of_block - 1) / of_block; }

template <StateKind kKind>
void LaunchStateRule(const StateRuleLaunch& launch, Stream stream) {
  const int64_t blocks_of_part = BlocksFor(launch.part_cols, kWarpThreads);
  Launch(
      StateRuleKernel<kKind>,
      ShapeOf(launch.runs.num_runs * launch.runs.num_parts * blocks_of_part, kWarpThreads,
              RowInputs<kKind>::Stride(launch.key_dim) * (kWarpThreads + kRowBuffers * RowInputs<kKind>::kNumVectors)),
      stream, launch, blocks_of_part);
}

}  // namespace

void ShortConv(const ShortConvLaunch& launch, Stream stream) {
  const int64_t blocks_of_part = BlocksFor(launch.part_channels, kConvThreads);
  const auto give = [&](auto kernel) {
    Launch(kernel, ShapeOf(launch.runs.num_runs * launch.runs.num_parts * blocks_of_part, kConvThreads), stream, launch,
           blocks_of_part);
  };
  constexpr int kUsualWidth = 4;
  launch.width <= kUsualWidth ? give(ShortConvKernel<kUsualWidth>) : give(ShortConvKernel<kernels::kMaxConvWidth>);
}

void RecurrentGates(const kernels::RecurrentGatesArgs& first, int64_t num_rows, Stream stream) {
  Launch(RecurrentGatesKernel, ShapeOf(num_rows, kRowThreads), stream, first);
}

void NormVectors(const NormVectorsLaunch& launch, Stream stream) {
  Launch(NormVectorsKernel, ShapeOf(BlocksFor(launch.num_vectors, kRowWarps), kRowThreads), stream, launch);
}

void StateRule(const StateRuleLaunch& launch, Stream stream) {
  if (!launch.has_delta) return LaunchStateRule<StateKind::kNoDelta>(launch, stream);
  if (launch.decays_dims) return LaunchStateRule<StateKind::kDeltaOfDims>(launch, stream);
  LaunchStateRule<StateKind::kDelta>(launch, stream);
}

void SelectiveScan(const SelectiveScanLaunch& launch, Stream stream) {
  const int64_t blocks_of_part = BlocksFor(launch.part_cols, kWarpThreads);
  Launch(SelectiveScanKernel,
         ShapeOf(launch.runs.num_runs * launch.runs.num_parts * blocks_of_part, kWarpThreads,
                 2 * launch.key_dim * kWarpThreads),
         stream, launch, blocks_of_part);
}

void Gate(const GateLaunch& launch, Stream stream) {
  LaunchShape shape = ShapeOf(BlocksFor(launch.dim, kRowThreads), kRowThreads);
  shape.grid.y = static_cast<uint32_t>(launch.num_rows);
  Launch(GateKernel, shape, stream, launch);
}

void GateRows(const GateRowsLaunch& launch, Stream stream) {
  Launch(GateRowsKernel, ShapeOf(launch.num_rows, kRowThreads, launch.dim), stream, launch);
}

}  // namespace penstock::cuda
