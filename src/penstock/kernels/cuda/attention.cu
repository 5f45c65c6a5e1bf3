// Attention over KV pages: the host's order of sums, so its bits. Three kernels: scores, which are independent of each
// other; softmax; p . V, whose positions come one after the other, but whose dimensions are independent.
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/math.cuh"
#include "penstock/tensor/kv_block.h"

namespace penstock::cuda {
namespace {

constexpr int kStoreThreads = 128;
constexpr int kScoreThreads = 128;  // positions of a block
constexpr int kSoftmaxThreads = 256;
constexpr int kValueDims = 32;  // dimensions of a block
constexpr int kHeadsAtOnce = 8;

PENSTOCK_DEVICE std::byte* BlockOf(const KvRows& rows, int64_t row, int64_t page, int64_t head) {
  return rows.pages[rows.first_page[row] + page] + rows.first_block_bytes + head * rows.block_bytes;
}

// The scale of a K, V or q of a warp.
PENSTOCK_DEVICE CodeScale ScaleOfWarp(const float* x, int64_t dim) {
  float largest = 0;
  int32_t num_infinite = 0;
  for (int64_t d = Lane(); d < dim; d += kWarpThreads) {
    largest = Larger(__uint_as_float(__float_as_uint(x[d]) & 0x7FFFFFFFu), largest);
    num_infinite += IsFinite(x[d]) ? 0 : 1;
  }
  return CodeScaleOf(MaxOfWarp(largest), SumOfWarp(num_infinite) == 0);
}

PENSTOCK_DEVICE void StoreKvValue(KvFormat format, float x, const CodeScale& scale, int code_offset,
                                  std::byte* target) {
  switch (format) {
    case KvFormat::kF32: *reinterpret_cast<float*>(target) = x; break;
    case KvFormat::kBF16: *reinterpret_cast<uint16_t*>(target) = static_cast<uint16_t>(ToBf16Bits(x)); break;
    case KvFormat::kInt8: *target = static_cast<std::byte>((CodeOf(x, scale) + code_offset) & 0xFF); break;
  }
}

// A warp has a row and a head.
PENSTOCK_KERNEL(kStoreThreads) StoreKvKernel(const KvRows rows, const float* k, const float* v) {
  const int64_t idx = static_cast<int64_t>(blockIdx.x) * (kStoreThreads / kWarpThreads) + Warp();
  if (idx >= rows.num_rows * rows.num_kv_heads) return;
  const int64_t row = idx / rows.num_kv_heads, head = idx % rows.num_kv_heads, pos = rows.positions[row];
  const int64_t token = pos % kKvPageTokens;
  const KvBlock block = {rows.format, rows.head_dim};
  std::byte* const target = BlockOf(rows, row, pos / kKvPageTokens, head);
  const float* const own_k = k + idx * rows.head_dim;
  const float* const own_v = v + idx * rows.head_dim;
  CodeScale k_scale = {1, 1, true}, v_scale = {1, 1, true};
  if (rows.format == KvFormat::kInt8) {
    k_scale = ScaleOfWarp(own_k, rows.head_dim);
    v_scale = ScaleOfWarp(own_v, rows.head_dim);
    if (Lane() == 0) {
      reinterpret_cast<float*>(target + block.k_scales_offset())[token] = k_scale.scale;
      reinterpret_cast<float*>(target + block.v_scales_offset())[token] = v_scale.scale;
    }
  }
  for (int64_t d = Lane(); d < rows.head_dim; d += kWarpThreads) {
    StoreKvValue(rows.format, own_k[d], k_scale, kKvCodeOffset, target + block.k_offset(d, token));
  }
  for (int64_t d = Lane(); d < block.padded_dim(); d += kWarpThreads) {
    StoreKvValue(rows.format, d < rows.head_dim ? own_v[d] : 0.0f, v_scale, 0,
                 target + block.v_offset() + token * block.v_stride() + d * block.size());
  }
}

// What a row attends to: positions [first, end), scores counted from `base`, the first of its first page.
struct Attended {
  int64_t first, end, base;
};
PENSTOCK_DEVICE Attended AttendedBy(const AttentionLaunch& args, int64_t row) {
  const int64_t end = args.rows.positions[row] + 1;
  const int64_t first = args.window > 0 && end > args.window ? end - args.window : 0;
  return {first, end, first / kKvPageTokens * kKvPageTokens};
}
PENSTOCK_DEVICE float* ScoresOf(const AttentionLaunch& args, int64_t row, int64_t head) {
  return args.scores + (row * args.num_heads + head) * args.max_positions;
}

PENSTOCK_DEVICE float KvFloat(KvFormat format, const std::byte* source) {
  return format == KvFormat::kF32 ? *reinterpret_cast<const float*>(source)
                                  : FromBf16Bits(*reinterpret_cast<const uint16_t*>(source));
}

// Grid: positions, KV heads, rows. A thread has a position and all query heads of its KV head.
PENSTOCK_KERNEL(kScoreThreads) ScoresKernel(const AttentionLaunch args) {
  const int64_t row = blockIdx.z, kv_head = blockIdx.y, group = args.num_heads / args.rows.num_kv_heads;
  const int64_t head_dim = args.rows.head_dim;
  const Attended attended = AttendedBy(args, row);
  const KvBlock block = {args.rows.format, head_dim};
  const bool is_int8 = args.rows.format == KvFormat::kInt8;
  const int64_t code_dims = (head_dim + 3) / 4 * 4;
  // q [group, head_dim]; for int8 codes [group, code_dims] and for each head its scale and what takes kKvCodeOffset
  // out.
  float* const q = reinterpret_cast<float*>(SharedMemory());
  int8_t* const codes = reinterpret_cast<int8_t*>(q + 2 * group);
  const float* const source = args.q + (row * args.num_heads + kv_head * group) * head_dim;
  if (attended.base + static_cast<int64_t>(blockIdx.x) * kScoreThreads >= attended.end) return;
  if (is_int8) {
    for (int64_t g = Warp(); g < group; g += kScoreThreads / kWarpThreads) {
      const CodeScale scale = ScaleOfWarp(source + g * head_dim, head_dim);
      int32_t sum = 0;
      for (int64_t d = Lane(); d < code_dims; d += kWarpThreads) {
        const int32_t code = d < head_dim ? CodeOf(source[g * head_dim + d], scale) : 0;
        codes[g * code_dims + d] = static_cast<int8_t>(code);
        sum += code;
      }
      sum = SumOfWarp(sum);
      if (Lane() == 0) {
        q[2 * g] = scale.scale;
        reinterpret_cast<int32_t*>(q)[2 * g + 1] = -kKvCodeOffset * sum;
      }
    }
  } else {
    for (int64_t i = threadIdx.x; i < group * head_dim; i += kScoreThreads) q[i] = source[i];
  }
  __syncthreads();
  const int64_t pos = attended.base + static_cast<int64_t>(blockIdx.x) * kScoreThreads + threadIdx.x;
  if (pos < attended.first || pos >= attended.end) return;
  const int64_t token = pos % kKvPageTokens;
  const std::byte* const k = BlockOf(args.rows, row, pos / kKvPageTokens, kv_head);
  for (int64_t first = 0; first < group; first += kHeadsAtOnce) {
    const int num_heads = static_cast<int>(group - first < kHeadsAtOnce ? group - first : kHeadsAtOnce);
    if (is_int8) {
      int32_t dots[kHeadsAtOnce] = {};
      for (int64_t d = 0; d < code_dims; d += 4) {
        const std::byte* const step = k + block.k_offset(d, token);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          if (h >= num_heads) break;
          const int8_t* const own = codes + (first + h) * code_dims + d;
          for (int i = 0; i < 4; ++i) dots[h] += static_cast<int32_t>(static_cast<uint8_t>(step[i])) * own[i];
        }
      }
      const float k_scale = reinterpret_cast<const float*>(k + block.k_scales_offset())[token];
      for (int h = 0; h < num_heads; ++h) {
        const int32_t dot = dots[h] + reinterpret_cast<const int32_t*>(q)[2 * (first + h) + 1];
        ScoresOf(args, row, kv_head * group + first + h)[pos - attended.base] =
            __int2float_rn(dot) * (k_scale * q[2 * (first + h)]);
      }
    } else {
      float sums[kHeadsAtOnce] = {};
      for (int64_t d = 0; d < head_dim; ++d) {
        const float value = KvFloat(args.rows.format, k + block.k_offset(d, token));
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          if (h < num_heads) sums[h] = __fmaf_rn(q[(first + h) * head_dim + d], value, sums[h]);
        }
      }
      for (int h = 0; h < num_heads; ++h)
        ScoresOf(args, row, kv_head * group + first + h)[pos - attended.base] = sums[h];
    }
  }
}

// Grid: heads, rows. p of the positions that are attended to, and their total; p of int8 V takes in the scale of V.
PENSTOCK_KERNEL(kSoftmaxThreads) SoftmaxKernel(const AttentionLaunch args) {
  const int64_t head = blockIdx.x, row = blockIdx.y;
  const Attended attended = AttendedBy(args, row);
  const int64_t count = attended.end - attended.first;
  float* const p = ScoresOf(args, row, head) + (attended.first - attended.base);
  float* const shared = reinterpret_cast<float*>(SharedMemory());  // of each warp
  float largest = -__uint_as_float(0x7F800000u);
  for (int64_t i = threadIdx.x; i < count; i += kSoftmaxThreads) {
    const float scaled = p[i] * args.scale;
    p[i] = scaled;
    largest = Larger(scaled, largest);
  }
  largest = MaxOfWarp(largest);
  if (Lane() == 0) shared[Warp()] = largest;
  __syncthreads();
  for (int warp = 0; warp < kSoftmaxThreads / kWarpThreads; ++warp) largest = Larger(shared[warp], largest);
  for (int64_t i = threadIdx.x; i < count; i += kSoftmaxThreads) p[i] = Exp(p[i] - largest);
  __syncthreads();
  if (Warp() == 0) {
    float sum = 0;
    for (int64_t i = Lane() % 16; i < count; i += 16) sum += p[i];
    sum = SumOf16Lanes(sum);
    if (Lane() == 0) args.totals[row * args.num_heads + head] = sum;
  }
  if (args.rows.format != KvFormat::kInt8) return;
  __syncthreads();
  const KvBlock block = {args.rows.format, args.rows.head_dim};
  const int64_t kv_head = head / (args.num_heads / args.rows.num_kv_heads);
  for (int64_t i = threadIdx.x; i < count; i += kSoftmaxThreads) {
    const int64_t pos = attended.first + i;
    const std::byte* const v = BlockOf(args.rows, row, pos / kKvPageTokens, kv_head);
    p[i] *= reinterpret_cast<const float*>(v + block.v_scales_offset())[pos % kKvPageTokens];
  }
}

// Grid: dimensions, KV heads, rows. A warp for each query head: a lane has a dimension.
PENSTOCK_KERNEL(1024) ValuesKernel(const AttentionLaunch args) {
  const int64_t row = blockIdx.z, kv_head = blockIdx.y, group = args.num_heads / args.rows.num_kv_heads;
  const int64_t head_dim = args.rows.head_dim, d = static_cast<int64_t>(blockIdx.x) * kValueDims + Lane();
  const Attended attended = AttendedBy(args, row);
  const KvBlock block = {args.rows.format, head_dim};
  if (d >= head_dim) return;
  for (int64_t g = Warp(); g < group; g += static_cast<int64_t>(blockDim.x) / kWarpThreads) {
    const int64_t head = kv_head * group + g;
    const float* const p = ScoresOf(args, row, head);
    float sum = 0;
    for (int64_t page = attended.base / kKvPageTokens; page * kKvPageTokens < attended.end; ++page) {
      const int64_t first_of_page = page * kKvPageTokens;
      const int64_t first = first_of_page < attended.first ? attended.first : first_of_page;
      const int64_t end = first_of_page + kKvPageTokens < attended.end ? first_of_page + kKvPageTokens : attended.end;
      const std::byte* const v = BlockOf(args.rows, row, page, kv_head) + block.v_offset() + d * block.size();
      for (int64_t pos = first; pos < end; ++pos) {
        const std::byte* const element = v + (pos - first_of_page) * block.v_stride();
        const float value = args.rows.format == KvFormat::kInt8
                                ? __int2float_rn(*reinterpret_cast<const int8_t*>(element))
                                : KvFloat(args.rows.format, element);
        sum = __fmaf_rn(p[pos - attended.base], value, sum);
      }
    }
    args.out[(row * args.num_heads + head) * head_dim + d] = __fdiv_rn(sum, args.totals[row * args.num_heads + head]);
  }
}

}  // namespace

void StoreKv(const KvRows& rows, const float* k, const float* v, Stream stream) {
  constexpr int kWarps = kStoreThreads / kWarpThreads;
  const int64_t num_blocks = (rows.num_rows * rows.num_kv_heads + kWarps - 1) / kWarps;
  Launch(StoreKvKernel, {.grid = dim3(static_cast<uint32_t>(num_blocks)), .block = dim3(kStoreThreads)}, stream, rows,
         k, v);
}

void Attention(const AttentionLaunch& launch, Stream stream) {
  const auto group = static_cast<size_t>(launch.num_heads / launch.rows.num_kv_heads);
  const auto num_rows = static_cast<uint32_t>(launch.rows.num_rows);
  const auto num_kv_heads = static_cast<uint32_t>(launch.rows.num_kv_heads);
  const auto blocks = [](int64_t count, int64_t each) { return static_cast<uint32_t>((count + each - 1) / each); };
  Launch(ScoresKernel,
         {.grid = dim3(blocks(launch.max_positions, kScoreThreads), num_kv_heads, num_rows),
          .block = dim3(kScoreThreads),
          .shared_bytes = group * (8 + 4 * static_cast<size_t>(launch.rows.head_dim + 3))},
         stream, launch);
  Launch(SoftmaxKernel,
         {.grid = dim3(static_cast<uint32_t>(launch.num_heads), num_rows),
          .block = dim3(kSoftmaxThreads),
          .shared_bytes = sizeof(float) * kSoftmaxThreads / kWarpThreads},
         stream, launch);
  const uint32_t warps = static_cast<uint32_t>(group < 32 ? group : 32);
  Launch(ValuesKernel,
         {.grid = dim3(blocks(launch.rows.head_dim, kValueDims), num_kv_heads, num_rows),
          .block = dim3(warps * kWarpThreads)},
         stream, launch);
}

}  // namespace penstock::cuda
