// The operations that schedules issue. Each checks shapes, splits its work over the pool and calls kernels on the
// parts.
//
// Results do not depend on the split: every output's bits are decided by its own row (kernels/kernel_table.h).
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "penstock/base/thread_pool.h"
#include "penstock/kernels/kernel_table.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/memory/kv_window.h"
#include "penstock/model/model_config.h"
#include "penstock/schedule/activations.h"

namespace penstock {

// The rows of one pass: (sequence, position) pairs. Rows of one sequence are in increasing position, and all earlier
// positions of the sequence are in the KV cache or among the rows before.
struct RowBatch {
  std::vector<TokenId> token_ids;                     // [num_rows]
  std::vector<int64_t> positions;                     // [num_rows]
  std::vector<int64_t> kv_positions;                  // [num_rows]: where they lie in kv_pages
  std::vector<std::span<std::byte* const>> kv_pages;  // [num_rows]: what the row sees of its sequence's KV pages
  std::vector<uint32_t> sequence_ids;                 // [num_rows]: rows of one sequence are neighbours
  std::vector<int64_t> logit_rows;                    // rows whose logits are wanted

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  void Clear();
  // `pages` (of the sequence) outlive the batch; none in a simulation.
  void AddRow(TokenId token_id, int64_t pos, std::span<std::byte* const> pages, uint32_t sequence_id,
              const KvWindow& window);

 private:
  std::deque<std::vector<std::byte*>> windows_;  // pages that rows of a window see
  int64_t last_first_page_ = -1;                 // of the row added last
};

// What all operations of a pass share. References outlive the pass.
struct OpContext {
  const ModelConfig& config;
  const kernels::KernelTable& kernels;
  ThreadPool& pool;
  RowFormats row_formats;
  const DenseWeights& weights;
  Activations& activations;
};

// The KV entries of a layer for some rows, in pages of the cache itself or in copies of their blocks.
struct KvView {
  KvLayer layer;
  std::span<const std::span<std::byte* const>> pages;  // [rows.size()]: the pages of each row's sequence
};

struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};
using RowRange = IndexRange;  // consecutive rows of a batch

// An expert that is ready to be computed.
struct ExpertToRun {
  int64_t expert_idx = 0;
  FfnWeights weights;
};

// Operations on some rows of a pass; what they keep of other rows stays as it is. Between Route() and Combine() of a
// layer nothing else may write to the rows' routing, and Experts() wants Group() of all rows that it is to serve.
namespace ops {

// residual = embedding[token_ids]; cos and sin of the rows' positions.
void Embed(const OpContext& context, const RowBatch& batch, RowRange rows);

// residual += o_proj(attention(norm(residual))) of one layer, in parts, of which those in the middle may be done where
// the KV cache lies: q, k and v with RoPE; K and V into the KV cache; attended; the output projection.
void PreAttention(const OpContext& context, RowRange rows, int64_t layer_idx);
void StoreKv(const OpContext& context, const RowBatch& batch, RowRange rows, const KvView& kv);
void Attend(const OpContext& context, const RowBatch& batch, RowRange rows, const KvView& kv);
void PostAttention(const OpContext& context, RowRange rows, int64_t layer_idx);

// normed = norm(residual); router scores and top-k.
void Route(const OpContext& context, RowRange rows, int64_t layer_idx);

// topk_ahead(ahead): what the gate of a later layer would choose from the residual as it is. What Route() of these rows
// found stays as it is.
void RouteAhead(const OpContext& context, RowRange rows, int64_t target_idx, int64_t ahead);

// Sorts the assignments of these rows by expert and gathers what the experts take.
void Group(const OpContext& context, RowRange rows);

// expert_output of the assignments of these experts, of the rows that were grouped last.
void Experts(const OpContext& context, std::span<const ExpertToRun> experts);

// residual += weighted expert_output of each row.
void Combine(const OpContext& context, RowRange rows);

// residual += ffn(norm(residual)) of a layer without experts.
void DenseFfn(const OpContext& context, RowRange rows, int64_t layer_idx);

// logits[i] = lm_head(norm(residual[rows[i]])). REQUIRES: rows.size() <= max_logit_rows.
void Logits(const OpContext& context, std::span<const int64_t> rows);

}  // namespace ops
}  // namespace penstock
