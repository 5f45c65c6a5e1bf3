// Attention of one query position over the pages of one KV head. Scores are a GEMM of the group's queries with the K of
// each page; p . V goes page by page, so that the second reading of a page comes from the cache.
#pragma once

#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/cpu/scores-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// The part of the range that lies in one page.
struct PageRun {
  const std::byte* k;
  const std::byte* v;
  int64_t first;  // counted from first_pos
  int64_t count;
};

template <class Visit>
inline void ForEachPageRun(const AttentionArgs& args, const Visit& visit) {
  for (int64_t pos = args.first_pos; pos < args.end_pos;) {
    const int64_t page_idx = pos / args.page_tokens;
    const int64_t page_end = (page_idx + 1) * args.page_tokens;
    const int64_t end = page_end < args.end_pos ? page_end : args.end_pos;
    const std::byte* run = args.pages[page_idx] + (pos % args.page_tokens) * args.token_stride_bytes;
    visit(PageRun{run + args.k_offset_bytes, run + args.v_offset_bytes, pos - args.first_pos, end - pos});
    pos = end;
  }
}

// out[head.., dim..] += p . V over one page, for kHeads heads and kDims pieces of 16; the last piece has `last` lanes.
template <class V, Dtype kDtype, int kHeads, int kDims>
void AccumulateTile(const AttentionArgs& args, const PageRun& run, int64_t head, int64_t dim, int64_t last) {
  constexpr int64_t kSize = kDtype == Dtype::kF32 ? 4 : 2;
  const float* p = args.scratch + head * args.scratch_stride + run.first;
  float* out = args.out + head * args.out_stride + dim;
  const std::byte* v = run.v + dim * kSize;
  V sums[kHeads][kDims];
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
    for (int d = 0; d < kDims; ++d) {
      const float* source = out + h * args.out_stride + 16 * d;
      sums[h][d] = d == kDims - 1 && last < 16 ? V::LoadPartial(source, last, 0) : V::Load(source);
    }
  }
  for (int64_t token = 0; token < run.count; ++token) {
    V pieces[kDims];
#pragma GCC unroll 8
    for (int d = 0; d < kDims; ++d) {
      const std::byte* source = v + 16 * d * kSize;
      pieces[d] = d == kDims - 1 && last < 16 ? V::template LoadPartialAs<kDtype>(source, last)
                                              : V::template LoadAs<kDtype>(source);
    }
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const V weight = V::Set(p[h * args.scratch_stride + token]);
#pragma GCC unroll 8
      for (int d = 0; d < kDims; ++d) sums[h][d] = Fma(weight, pieces[d], sums[h][d]);
    }
    v += args.token_stride_bytes;
  }
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
    for (int d = 0; d < kDims; ++d) {
      float* target = out + h * args.out_stride + 16 * d;
      if (d == kDims - 1 && last < 16) {
        sums[h][d].StorePartial(target, last);
      } else {
        sums[h][d].Store(target);
      }
    }
  }
}

template <class V, Dtype kDtype, int kHeads>
void AccumulateHeads(const AttentionArgs& args, const PageRun& run, int64_t head) {
  int64_t dim = 0;
  for (; dim + 16 * V::kDimTile <= args.head_dim; dim += 16 * V::kDimTile) {
    AccumulateTile<V, kDtype, kHeads, V::kDimTile>(args, run, head, dim, 16);
  }
  for (; dim < args.head_dim; dim += 16) {
    const int64_t left = args.head_dim - dim;
    AccumulateTile<V, kDtype, kHeads, 1>(args, run, head, dim, left < 16 ? left : 16);
  }
}

template <class V, Dtype kDtype>
void AttentionOf(const AttentionArgs& args) {
  const int64_t count = args.end_pos - args.first_pos;
  ForEachPageRun(args, [&](const PageRun& run) {
    Scores<V, kDtype>({.num_rows = args.group,
                       .num_cols = run.count,
                       .inner_dim = args.head_dim,
                       .x = args.q,
                       .x_stride = args.q_stride,
                       .w = run.k,
                       .w_stride_bytes = args.token_stride_bytes,
                       .y = args.scratch + run.first,
                       .y_stride = args.scratch_stride});
  });
  for (int64_t head = 0; head < args.group; ++head) {
    ExpMinusMax<V>(args.scratch + head * args.scratch_stride, count, args.scale);
    for (int64_t d = 0; d < args.head_dim; ++d) args.out[head * args.out_stride + d] = 0;
  }
  ForEachPageRun(args, [&](const PageRun& run) {
    int64_t head = 0;
    for (; head + V::kHeadTile <= args.group; head += V::kHeadTile) {
      AccumulateHeads<V, kDtype, V::kHeadTile>(args, run, head);
    }
    for (; head < args.group; ++head) AccumulateHeads<V, kDtype, 1>(args, run, head);
  });
  for (int64_t head = 0; head < args.group; ++head) {
    const float sum = SumOf<V>(args.scratch + head * args.scratch_stride, count);
    for (int64_t d = 0; d < args.head_dim; ++d) args.out[head * args.out_stride + d] /= sum;
  }
}

template <class V>
void Attention(const AttentionArgs& args) {
  switch (args.kv_dtype) {
    case Dtype::kF32: return AttentionOf<V, Dtype::kF32>(args);
    case Dtype::kF16: return AttentionOf<V, Dtype::kF16>(args);
    case Dtype::kBF16: return AttentionOf<V, Dtype::kBF16>(args);
  }
}

}  // namespace
}  // namespace penstock::kernels
