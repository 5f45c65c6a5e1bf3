// The operations that schedules issue. Each checks shapes, splits its work over the pool and calls kernels on the
// parts.
//
// Results do not depend on the split: every output's bits are decided by its own row (kernels/kernel_table.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/base/thread_pool.h"
#include "penstock/kernels/kernel_table.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/memory/expert_cache.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/model/model_config.h"
#include "penstock/schedule/activations.h"

namespace penstock {

// The rows of one pass: (sequence, position) pairs. Rows of one sequence are in increasing position, and all earlier
// positions of the sequence are in the KV cache or among the rows before.
struct RowBatch {
  std::vector<TokenId> token_ids;                     // [num_rows]
  std::vector<int64_t> positions;                     // [num_rows]
  std::vector<std::span<std::byte* const>> kv_pages;  // [num_rows]: the KV pages of the row's sequence
  std::vector<int64_t> logit_rows;                    // rows whose logits are wanted

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  void Clear();
};

// What all operations of a pass share. References outlive the pass.
struct OpContext {
  const ModelConfig& config;
  const kernels::KernelTable& kernels;
  ThreadPool& pool;
  RowFormats row_formats;
  const DenseWeights& weights;
  KvCache& kv_cache;
  Activations& activations;
};

namespace ops {

// residual = embedding[token_ids]; cos and sin of the rows' positions.
void Embed(const OpContext& context, const RowBatch& batch);

// residual += o_proj(attention(norm(residual))) of one layer; writes the rows' K and V to the KV cache.
void Attention(const OpContext& context, const RowBatch& batch, int64_t layer_idx);

// normed = norm(residual); router scores, top-k, and the assignments sorted by expert.
// Returns the experts that at least one row chose, in increasing index.
std::vector<int32_t> Route(const OpContext& context, int64_t num_rows, int64_t layer_idx);

// expert_output of the assignments of the leased experts. REQUIRES: Route() of this layer came before.
void Experts(const OpContext& context, std::span<const ExpertLease> leases);

// residual += weighted expert_output of each row.
void Combine(const OpContext& context, int64_t num_rows);

// residual += ffn(norm(residual)) of a layer without experts.
void DenseFfn(const OpContext& context, int64_t num_rows, int64_t layer_idx);

// logits[i] = lm_head(norm(residual[rows[i]])). REQUIRES: rows.size() <= max_logit_rows.
void Logits(const OpContext& context, std::span<const int64_t> rows);

}  // namespace ops
}  // namespace penstock
