// Attention over KV pages in the host's order of sums, so with the host's bits. Three kernels follow each other. The
// first computes scores, which are independent of each other. The second computes softmax. The third computes p . V: it
// adds positions one after another, but dimensions are independent. If neighbouring rows are of one sequence, as in
// prompts, a block has several rows and reads K and V once for all of them.
#include <algorithm>

#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/math.cuh"
#include "penstock/tensor/kv_block.h"

namespace penstock::cuda {
namespace {

constexpr int kStoreThreads = 128;
constexpr int kScoreThreads = 128;  // positions of a block
constexpr int kSoftmaxThreads = 256;
constexpr int kValueDims = 32;  // dimensions of a block
constexpr int kQueriesAtOnce = 8;
constexpr int kDimsAhead = 16;
constexpr int kMaxRowsOfBlock = 8;
constexpr size_t kMaxQueryBytes = 40 * 1024;  // of shared memory

PENSTOCK_HOST_DEVICE KvBlock KvBlockOf(const KvRows& rows) {
  return {rows.format, rows.head_dim, rows.values_in_key, false, rows.own_values};
}

PENSTOCK_DEVICE std::byte* BlockOf(const KvRows& rows, int64_t row, int64_t page, int64_t head) {
  return rows.pages[rows.first_page[row] + page] + rows.first_block_bytes + head * rows.block_bytes;
}

// Returns the scale of a K, V or q; all lanes of a warp take part.
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

// Each warp handles one row and one head.
PENSTOCK_KERNEL(kStoreThreads) StoreKvKernel(const StoreKvLaunch args) {
  const KvRows& rows = args.rows;
  const int64_t idx = static_cast<int64_t>(blockIdx.x) * (kStoreThreads / kWarpThreads) + Warp();
  if (idx >= rows.num_rows * rows.num_kv_heads) return;
  const int64_t row = idx / rows.num_kv_heads, head = idx % rows.num_kv_heads, pos = rows.positions[row];
  const int64_t token = pos % kKvPageTokens;
  const KvBlock block = KvBlockOf(rows);
  std::byte* const target = BlockOf(rows, row, pos / kKvPageTokens, head);
  const float* const own_k = args.k + row * args.k_stride + head * rows.head_dim;
  CodeScale k_scale = {1, 1, true}, v_scale = {1, 1, true};
  if (rows.format == KvFormat::kInt8) {
    k_scale = ScaleOfWarp(own_k, rows.head_dim);
    if (Lane() == 0) reinterpret_cast<float*>(target + block.k_scales_offset())[token] = k_scale.scale;
  }
  for (int64_t d = Lane(); d < rows.head_dim; d += kWarpThreads) {
    StoreKvValue(rows.format, own_k[d], k_scale, kKvCodeOffset, target + block.k_offset(d, token));
  }
  if (rows.values_in_key > 0) return;
  const int64_t value_dim = block.value_dim();
  const float* const own_v = args.v + row * args.v_stride + head * value_dim;
  if (rows.format == KvFormat::kInt8) {
    v_scale = ScaleOfWarp(own_v, value_dim);
    if (Lane() == 0) reinterpret_cast<float*>(target + block.v_scales_offset())[token] = v_scale.scale;
  }
  for (int64_t d = Lane(); d < block.padded_dim(); d += kWarpThreads) {
    StoreKvValue(rows.format, d < value_dim ? own_v[d] : 0.0f, v_scale, 0,
                 target + block.v_offset() + token * block.v_stride() + d * block.size());
  }
}

// The positions [first, end) that a row attends to; scores are counted from `base`, the first position of its first
// page.
struct Attended {
  int64_t first, end, base;
};
PENSTOCK_DEVICE Attended AttendedBy(const AttentionLaunch& args, int64_t row) {
  const int64_t end = args.rows.positions[row] + 1;
  const int64_t first = args.rows.firsts != nullptr            ? args.rows.firsts[row]
                        : args.window > 0 && end > args.window ? end - args.window
                                                               : 0;
  return {first, end, first / kKvPageTokens * kKvPageTokens};
}
PENSTOCK_DEVICE float* ScoresOf(const AttentionLaunch& args, int64_t row, int64_t head) {
  return args.scores + (row * args.num_heads + head) * args.max_positions;
}

PENSTOCK_DEVICE float KvFloat(KvFormat format, const std::byte* source) {
  return format == KvFormat::kF32 ? *reinterpret_cast<const float*>(source)
                                  : FromBf16Bits(*reinterpret_cast<const uint16_t*>(source));
}

// Rows [begin, end) see the same pages; first_row and last_row are the positions that the first and the last of them
// attend to.
struct RowRun {
  int64_t begin, end;
  Attended first_row, last_row;
};
PENSTOCK_DEVICE RowRun RunFrom(const AttentionLaunch& args, int64_t begin, int64_t limit) {
  int64_t end = begin + 1;
  while (end < limit && args.rows.first_page[end] == args.rows.first_page[begin]) ++end;
  return {begin, end, AttendedBy(args, begin), AttendedBy(args, end - 1)};
}

// Query heads with the same K and V that a block handles: [first, first + count).
struct QueryHeads {
  int64_t kv_head;
  int64_t first;
  int count;
};
// The heads of one KV head are cut into `num_parts` parts, so that their queries fit into shared memory. Divisions of
// 32 bits are several times as fast as those of 64, and these kernels have many.
PENSTOCK_DEVICE QueryHeads HeadsOfBlock(const AttentionLaunch& args, int num_parts) {
  const int group = static_cast<int>(args.num_heads) / static_cast<int>(args.rows.num_kv_heads);
  const int kv_head = static_cast<int>(blockIdx.y) / num_parts, size = (group + num_parts - 1) / num_parts;
  const int first = static_cast<int>(blockIdx.y) % num_parts * size;
  return {kv_head, static_cast<int64_t>(kv_head) * group + first, group - first < size ? group - first : size};
}

// A query of a run: a row's heads one after another, row after row.
struct Query {
  int64_t row, head;
};
PENSTOCK_DEVICE Query QueryAt(const RowRun& run, const QueryHeads& heads, int idx) {
  return {run.begin + idx / heads.count, heads.first + idx % heads.count};
}

// The queries [first, first + count) of a run, at most kQueriesAtOnce.
struct SomeQueries {
  int first, count;
};

// Scores one position, whose codes of K begin at `k`; q as ScoresKernel leaves it.
PENSTOCK_DEVICE void ScoreCodes(const std::byte* k, int64_t step_bytes, float k_scale, const float* q, int num_queries,
                                int code_dims, const SomeQueries& some, float (&scores)[kQueriesAtOnce]) {
  const int8_t* const codes = reinterpret_cast<const int8_t*>(q + 2 * num_queries);
  int32_t dots[kQueriesAtOnce] = {};
  for (int d = 0; d < code_dims; d += 4) {
    const std::byte* const step = k + d / 4 * step_bytes;
#pragma unroll
    for (int i = 0; i < kQueriesAtOnce; ++i) {
      if (i >= some.count) break;
      const int8_t* const own = codes + (some.first + i) * code_dims + d;
      for (int j = 0; j < 4; ++j) dots[i] += static_cast<int32_t>(static_cast<uint8_t>(step[j])) * own[j];
    }
  }
#pragma unroll
  for (int i = 0; i < kQueriesAtOnce; ++i) {
    if (i >= some.count) break;
    const int32_t dot = dots[i] + reinterpret_cast<const int32_t*>(q)[2 * (some.first + i) + 1];
    scores[i] = __int2float_rn(dot) * (k_scale * q[2 * (some.first + i)]);
  }
}

// Adds kDimsAhead dimensions from `d` on, or those for which has_dim() is true, to the scores.
template <typename HasDim>
PENSTOCK_DEVICE void AddDims(const float (&values)[kDimsAhead], const float* q, int code_dims, int d,
                             const SomeQueries& some, const HasDim& has_dim, float (&scores)[kQueriesAtOnce]) {
#pragma unroll
  for (int j = 0; j < kDimsAhead; j += 4) {
    if (!has_dim(j)) break;
#pragma unroll
    for (int i = 0; i < kQueriesAtOnce; ++i) {
      // Beyond the last query, repeats the last one: a branch for each would cost more.
      const int query = some.first + (i < some.count ? i : some.count - 1);
      const float4 own = *reinterpret_cast<const float4*>(q + query * code_dims + d + j);
      scores[i] = __fmaf_rn(own.x, values[j], scores[i]);
      if (has_dim(j + 1)) scores[i] = __fmaf_rn(own.y, values[j + 1], scores[i]);
      if (has_dim(j + 2)) scores[i] = __fmaf_rn(own.z, values[j + 2], scores[i]);
      if (has_dim(j + 3)) scores[i] = __fmaf_rn(own.w, values[j + 3], scores[i]);
    }
  }
}

// Like ScoreCodes(), for a K of floats.
PENSTOCK_DEVICE void ScoreFloats(KvFormat format, const std::byte* k, int64_t step_bytes, const float* q, int head_dim,
                                 int code_dims, const SomeQueries& some, float (&scores)[kQueriesAtOnce]) {
  for (int d = 0; d < head_dim; d += kDimsAhead) {
    float values[kDimsAhead];  // loaded before the first of them is multiplied
#pragma unroll
    for (int j = 0; j < kDimsAhead; ++j) {
      values[j] = d + j < head_dim ? KvFloat(format, k + (d + j) * step_bytes) : 0.0f;
    }
    const int num_dims = head_dim - d;
    if (num_dims >= kDimsAhead) {
      AddDims(
          values, q, code_dims, d, some, [](int) { return true; }, scores);
    } else {
      AddDims(
          values, q, code_dims, d, some, [&](int j) { return j < num_dims; }, scores);
    }
  }
}

// Scores one position for all queries of a run; q as ScoresKernel leaves it.
PENSTOCK_DEVICE void ScorePosition(const AttentionLaunch& args, const RowRun& run, const QueryHeads& heads,
                                   const float* q, int64_t pos) {
  const int head_dim = static_cast<int>(args.rows.head_dim), code_dims = (head_dim + 3) / 4 * 4;
  const int num_queries = static_cast<int>(run.end - run.begin) * heads.count;
  const int64_t token = pos % kKvPageTokens;
  const KvBlock block = KvBlockOf(args.rows);
  // K has one step of dimensions after another; a division for each offset would take longer than its product.
  const int64_t step_bytes = block.k_step_bytes();
  const std::byte* const data = BlockOf(args.rows, run.begin, pos / kKvPageTokens, heads.kv_head);
  const std::byte* const k = data + block.k_offset(0, token);
  for (int first = 0; first < num_queries; first += kQueriesAtOnce) {
    const SomeQueries some = {first, num_queries - first < kQueriesAtOnce ? num_queries - first : kQueriesAtOnce};
    float scores[kQueriesAtOnce] = {};
    if (args.rows.format == KvFormat::kInt8) {
      const float k_scale = reinterpret_cast<const float*>(data + block.k_scales_offset())[token];
      ScoreCodes(k, step_bytes, k_scale, q, num_queries, code_dims, some, scores);
    } else {
      ScoreFloats(args.rows.format, k, step_bytes, q, head_dim, code_dims, some, scores);
    }
#pragma unroll
    for (int i = 0; i < kQueriesAtOnce; ++i) {
      if (i >= some.count) break;
      const Query query = QueryAt(run, heads, first + i);
      const Attended attended = AttendedBy(args, query.row);
      if (pos < attended.first || pos >= attended.end) continue;
      ScoresOf(args, query.row, query.head)[pos - attended.base] = scores[i];
    }
  }
}

// Grid: positions, parts of the heads, blocks of rows. A thread handles one position and all queries of a run.
PENSTOCK_KERNEL(kScoreThreads) ScoresKernel(const AttentionLaunch args, int rows_of_block, int parts_of_heads) {
  const QueryHeads heads = HeadsOfBlock(args, parts_of_heads);
  const int head_dim = static_cast<int>(args.rows.head_dim);
  const int code_dims = (head_dim + 3) / 4 * 4;
  const int64_t first_row = static_cast<int64_t>(blockIdx.z) * rows_of_block;
  const int64_t limit = first_row + rows_of_block < args.rows.num_rows ? first_row + rows_of_block : args.rows.num_rows;
  float* const q = reinterpret_cast<float*>(SharedMemory());
  for (int64_t begin = first_row; begin < limit;) {
    const RowRun run = RunFrom(args, begin, limit);
    begin = run.end;
    const int64_t first_pos = run.first_row.base + static_cast<int64_t>(blockIdx.x) * kScoreThreads;
    if (first_pos >= run.last_row.end) continue;
    const int num_queries = static_cast<int>(run.end - run.begin) * heads.count;
    // Shared memory holds q [num_queries, code_dims]. For int8 it holds, for each query, its scale and the number that
    // removes kKvCodeOffset, then codes [num_queries, code_dims].
    __syncthreads();
    if (args.rows.format == KvFormat::kInt8) {
      int8_t* const codes = reinterpret_cast<int8_t*>(q + 2 * num_queries);
      for (int i = Warp(); i < num_queries; i += kScoreThreads / kWarpThreads) {
        const Query query = QueryAt(run, heads, i);
        const float* const source = args.q + query.row * args.q_stride + query.head * head_dim;
        const CodeScale scale = ScaleOfWarp(source, head_dim);
        int32_t sum = 0;
        for (int d = Lane(); d < code_dims; d += kWarpThreads) {
          const int32_t code = d < head_dim ? CodeOf(source[d], scale) : 0;
          codes[i * code_dims + d] = static_cast<int8_t>(code);
          sum += code;
        }
        sum = SumOfWarp(sum);
        if (Lane() == 0) {
          q[2 * i] = scale.scale;
          reinterpret_cast<int32_t*>(q)[2 * i + 1] = -kKvCodeOffset * sum;
        }
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < num_queries * code_dims; i += kScoreThreads) {
        const Query query = QueryAt(run, heads, i / code_dims);
        const int d = i % code_dims;
        q[i] = d < head_dim ? args.q[query.row * args.q_stride + query.head * head_dim + d] : 0.0f;
      }
    }
    __syncthreads();
    const int64_t pos = first_pos + threadIdx.x;
    if (pos >= run.first_row.first && pos < run.last_row.end) ScorePosition(args, run, heads, q, pos);
  }
}

// Grid: heads, rows. Computes p of the attended positions, and their total. For int8, p includes the scale of V.
PENSTOCK_KERNEL(kSoftmaxThreads) SoftmaxKernel(const AttentionLaunch args) {
  const int64_t head = blockIdx.x, row = blockIdx.y;
  const Attended attended = AttendedBy(args, row);
  const int64_t count = attended.end - attended.first;
  float* const p = ScoresOf(args, row, head) + (attended.first - attended.base);
  float* const shared = reinterpret_cast<float*>(SharedMemory());  // one for each warp
  float largest = -__uint_as_float(0x7F800000u);
  for (int64_t i = threadIdx.x; i < count; i += kSoftmaxThreads) {
    const float scaled = p[i] * args.scale;
    p[i] = scaled;
    largest = Larger(scaled, largest);
  }
  // A sink acts as one more position without a V. The row has room for it.
  const bool has_sink = args.sinks != nullptr;
  if (has_sink) {
    const float sink = __fdiv_rn(args.sinks[head], args.scale) * args.scale;
    if (threadIdx.x == 0) p[count] = sink;
    largest = Larger(sink, largest);
  }
  largest = MaxOfWarp(largest);
  if (Lane() == 0) shared[Warp()] = largest;
  __syncthreads();
  for (int warp = 0; warp < kSoftmaxThreads / kWarpThreads; ++warp) largest = Larger(shared[warp], largest);
  const int64_t num_weights = count + (has_sink ? 1 : 0);
  for (int64_t i = threadIdx.x; i < num_weights; i += kSoftmaxThreads) p[i] = Exp(p[i] - largest);
  __syncthreads();
  if (Warp() == 0) {
    float sum = 0;
    for (int64_t i = Lane() % 16; i < num_weights; i += 16) sum += p[i];
    sum = SumOf16Lanes(sum);
    if (Lane() == 0) args.totals[row * args.num_heads + head] = sum;
  }
  if (args.rows.format != KvFormat::kInt8) return;
  __syncthreads();
  const KvBlock block = KvBlockOf(args.rows);
  const int64_t scales_at = block.values_in_key > 0 ? block.k_scales_offset() : block.v_scales_offset();
  const int64_t kv_head = head / (args.num_heads / args.rows.num_kv_heads);
  for (int64_t i = threadIdx.x; i < count; i += kSoftmaxThreads) {
    const int64_t pos = attended.first + i;
    const std::byte* const data = BlockOf(args.rows, row, pos / kKvPageTokens, kv_head);
    p[i] *= reinterpret_cast<const float*>(data + scales_at)[pos % kKvPageTokens];
  }
}

// Returns a code of V, which may be one of K (kKvCodeOffset).
PENSTOCK_DEVICE int32_t CodeOfValue(const std::byte* element, bool is_in_key) {
  return is_in_key ? static_cast<int32_t>(static_cast<uint8_t>(*element)) - kKvCodeOffset
                   : static_cast<int32_t>(static_cast<int8_t>(*element));
}

// Adds one dimension of neighbouring tokens to the sums of the queries for which attends(query, token) is true.
template <int kQueries, int kTokens, typename Attends>
PENSTOCK_DEVICE void AddTokens(const float4 (&weights)[kQueries][kTokens / 4], const float (&values)[kTokens],
                               const Attends& attends, float (&sums)[kQueries]) {
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
      const float4& four = weights[i][j / 4];
      const float weight = j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
      if (attends(i, j)) sums[i] = __fmaf_rn(weight, values[j], sums[i]);
    }
  }
}

// Computes one dimension of p . V for kQueries queries of a run from `first` on.
template <int kQueries>
PENSTOCK_DEVICE void SumValues(const AttentionLaunch& args, const RowRun& run, const QueryHeads& heads, int first,
                               int64_t d) {
  const int num_queries = static_cast<int>(run.end - run.begin) * heads.count;
  const KvBlock block = KvBlockOf(args.rows);
  const bool is_in_key = block.values_in_key > 0;
  constexpr int kTokensAhead = kQueries == 1 ? 16 : 8;
  static_assert(kKvPageTokens % kTokensAhead == 0);
  Attended attended[kQueries];
  const float* p[kQueries];
  float sums[kQueries] = {};
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    // Beyond the last query, repeats the last one.
    const Query query = QueryAt(run, heads, first + i < num_queries ? first + i : num_queries - 1);
    attended[i] = AttendedBy(args, query.row);
    p[i] = ScoresOf(args, query.row, query.head) - attended[i].base;
  }
  const int64_t begin = attended[0].first, end = attended[kQueries - 1].end;
  // All queries attend to the positions [all_from, all_until).
  const int64_t all_from = attended[kQueries - 1].first, all_until = attended[0].end;
  const int64_t num_pages = (end + kKvPageTokens - 1) / kKvPageTokens;
  const int64_t v_stride = is_in_key ? block.k_offset(0, 1) : block.v_stride();
  const int64_t in_page = is_in_key ? block.k_offset(d, 0) : block.v_offset() + d * block.size();
  // The address of the next page is loaded while the current one is added.
  const std::byte* next = BlockOf(args.rows, run.begin, begin / kKvPageTokens, heads.kv_head) + in_page;
  for (int64_t page = begin / kKvPageTokens; page < num_pages; ++page) {
    const std::byte* const v = next;
    if (page + 1 < num_pages) next = BlockOf(args.rows, run.begin, page + 1, heads.kv_head) + in_page;
#pragma unroll
    for (int part = 0; part < kKvPageTokens; part += kTokensAhead) {
      const int64_t pos = page * kKvPageTokens + part;
      if (pos + kTokensAhead <= begin || pos >= end) continue;
      // All loads come before the first product. Beyond the attended positions they read memory that exists but means
      // nothing.
      float values[kTokensAhead];
      float4 weights[kQueries][kTokensAhead / 4];
#pragma unroll
      for (int j = 0; j < kTokensAhead; ++j) {
        const std::byte* const element = v + (part + j) * v_stride;
        values[j] = args.rows.format == KvFormat::kInt8 ? __int2float_rn(CodeOfValue(element, is_in_key))
                                                        : KvFloat(args.rows.format, element);
      }
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
#pragma unroll
        for (int j = 0; j < kTokensAhead; j += 4) {
          weights[i][j / 4] = *reinterpret_cast<const float4*>(p[i] + pos + j);
        }
      }
      if (pos >= all_from && pos + kTokensAhead <= all_until) {
        AddTokens<kQueries, kTokensAhead>(
            weights, values, [](int, int) { return true; }, sums);
      } else {
        const auto attends = [&](int i, int j) { return pos + j >= attended[i].first && pos + j < attended[i].end; };
        AddTokens<kQueries, kTokensAhead>(weights, values, attends, sums);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    if (first + i >= num_queries) break;
    const Query query = QueryAt(run, heads, first + i);
    const float total = args.totals[query.row * args.num_heads + query.head];
    args.out[query.row * args.out_stride + query.head * block.value_dim() + d] = __fdiv_rn(sums[i], total);
  }
}

// Grid: dimensions, parts of the heads, blocks of rows. A warp handles kQueries queries of a run; a lane handles one
// dimension.
template <int kQueries>
PENSTOCK_KERNEL(kQueries == 1 ? 1024 : 256)
ValuesKernel(const AttentionLaunch args, int rows_of_block, int parts_of_heads) {
  const QueryHeads heads = HeadsOfBlock(args, parts_of_heads);
  const int64_t d = static_cast<int64_t>(blockIdx.x) * kValueDims + Lane();
  const int64_t first_row = static_cast<int64_t>(blockIdx.z) * rows_of_block;
  const int64_t limit = first_row + rows_of_block < args.rows.num_rows ? first_row + rows_of_block : args.rows.num_rows;
  if (d >= KvBlockOf(args.rows).value_dim()) return;
  for (int64_t begin = first_row; begin < limit;) {
    const RowRun run = RunFrom(args, begin, limit);
    begin = run.end;
    const int num_queries = static_cast<int>(run.end - run.begin) * heads.count;
    const int num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
    for (int i = Warp() * kQueries; i < num_queries; i += num_warps * kQueries) {
      SumValues<kQueries>(args, run, heads, i, d);
    }
  }
}

}  // namespace

void StoreKv(const StoreKvLaunch& launch, Stream stream) {
  constexpr int kWarps = kStoreThreads / kWarpThreads;
  const int64_t num_blocks = (launch.rows.num_rows * launch.rows.num_kv_heads + kWarps - 1) / kWarps;
  Launch(StoreKvKernel, {.grid = dim3(static_cast<uint32_t>(num_blocks)), .block = dim3(kStoreThreads)}, stream,
         launch);
}

void Attention(const AttentionLaunch& launch, Stream stream) {
  const int64_t group = launch.num_heads / launch.rows.num_kv_heads;
  const auto num_rows = static_cast<uint32_t>(launch.rows.num_rows);
  const auto blocks = [](int64_t count, int64_t each) { return static_cast<uint32_t>((count + each - 1) / each); };
  const auto head_bytes = static_cast<size_t>(8 + 4 * (launch.rows.head_dim + 3));
  const int64_t max_heads = std::max<int64_t>(1, kMaxQueryBytes / head_bytes);
  const int parts_of_heads = static_cast<int>(blocks(group, max_heads));
  const size_t query_bytes = blocks(group, parts_of_heads) * head_bytes;
  const auto room = static_cast<int>(kMaxQueryBytes / query_bytes);
  const int rows_of_block = launch.rows_share_pages ? std::clamp(room, 1, kMaxRowsOfBlock) : 1;
  const uint32_t row_blocks = blocks(launch.rows.num_rows, rows_of_block);
  const auto num_parts = static_cast<uint32_t>(launch.rows.num_kv_heads * parts_of_heads);
  Launch(ScoresKernel,
         {.grid = dim3(blocks(launch.max_positions, kScoreThreads), num_parts, row_blocks),
          .block = dim3(kScoreThreads),
          .shared_bytes = static_cast<size_t>(rows_of_block) * query_bytes},
         stream, launch, rows_of_block, parts_of_heads);
  Launch(SoftmaxKernel,
         {.grid = dim3(static_cast<uint32_t>(launch.num_heads), num_rows),
          .block = dim3(kSoftmaxThreads),
          .shared_bytes = sizeof(float) * kSoftmaxThreads / kWarpThreads},
         stream, launch);
  const auto values = [&](auto kernel, int64_t queries_at_once, int64_t max_warps) {
    const int64_t num_warps = blocks(rows_of_block * blocks(group, parts_of_heads), queries_at_once);
    Launch(kernel,
           {.grid = dim3(blocks(KvBlockOf(launch.rows).value_dim(), kValueDims), num_parts, row_blocks),
            .block = dim3(static_cast<uint32_t>((num_warps < max_warps ? num_warps : max_warps) * kWarpThreads))},
           stream, launch, rows_of_block, parts_of_heads);
  };
  if (rows_of_block == 1) {
    values(ValuesKernel<1>, 1, 32);
  } else {
    values(ValuesKernel<4>, 4, 8);
  }
}

}  // namespace penstock::cuda
