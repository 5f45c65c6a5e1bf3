// The operations that schedules issue, on one processor: host_operations.h computes them with the host's kernels.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "penstock/memory/kv_cache.h"
#include "penstock/memory/kv_window.h"
#include "penstock/memory/weights.h"
#include "penstock/model/model_config.h"
#include "penstock/ops/activations.h"

namespace penstock {

// The rows of one pass: (sequence, position) pairs. Rows of one sequence are in increasing position, and all earlier
// positions of the sequence are in the KV cache or among the rows before.
struct RowBatch {
  std::vector<TokenId> token_ids;                     // [num_rows]
  std::vector<int64_t> positions;                     // [num_rows]
  std::vector<int64_t> kv_positions;                  // [num_rows]: where they lie in kv_pages
  std::vector<std::span<std::byte* const>> kv_pages;  // [num_rows]: what the row sees of its sequence's KV pages
  std::vector<uint32_t> sequence_ids;                 // [num_rows]: rows of one sequence are neighbours
  std::vector<int64_t> prompt_lengths;                // [num_rows]: of their sequences
  std::vector<int64_t> logit_rows;                    // rows whose logits are wanted
  bool wants_best_only = false;                       // of the logits: only which token has the largest

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  void Clear();
  // `pages` (of the sequence) outlive the batch; none in a simulation.
  void AddRow(TokenId token_id, int64_t pos, std::span<std::byte* const> pages, uint32_t sequence_id,
              const KvWindow& window, int64_t prompt_length = 0);

 private:
  std::deque<std::vector<std::byte*>> windows_;  // pages that rows of a window see
  int64_t last_first_page_ = -1;                 // of the row added last
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
class Operations {
 public:
  virtual ~Operations() = default;

  // The buffers of the pass, in the processor's memory.
  virtual Activations& activations() = 0;

  // residual = embedding[token_ids]; cos and sin of the rows' positions.
  virtual void Embed(const RowBatch& batch, RowRange rows) = 0;

  // residual += o_proj(attention(norm(residual))) of one layer, in parts, of which those in the middle may be done
  // where the KV cache lies: q, k and v with RoPE; K and V into the KV cache; attended; the output projection.
  virtual void PreAttention(RowRange rows, int64_t layer_idx) = 0;
  virtual void StoreKv(const RowBatch& batch, RowRange rows, const KvView& kv) = 0;
  virtual void Attend(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) = 0;
  virtual void PostAttention(RowRange rows, int64_t layer_idx) = 0;

  // normed = norm(residual); router scores and top-k.
  virtual void Route(RowRange rows, int64_t layer_idx) = 0;

  // topk_ahead(ahead): what the gate of a later layer would choose from the residual as it is. What Route() of these
  // rows found stays as it is.
  virtual void RouteAhead(RowRange rows, int64_t target_idx, int64_t ahead) = 0;

  // What Route() chose for these rows, [rows.size(), num_topk], to be read by the host.
  virtual std::span<const int32_t> Choices(RowRange rows) = 0;

  // Sorts the assignments of these rows by expert and gathers what the experts take.
  virtual void Group(RowRange rows) = 0;

  // residual += what all rows take of a layer beside their experts. REQUIRES: config.shared_ffn_dim > 0; after Route(),
  // before Combine().
  virtual void SharedFfn(RowRange rows, int64_t layer_idx) = 0;

  // expert_output of the assignments of these experts, of the rows that were grouped last.
  virtual void Experts(int64_t layer_idx, std::span<const ExpertToRun> experts) = 0;

  // expert_output of an expert that cannot be computed is zeros, so that nothing that follows meets numbers that nobody
  // wrote. Returns the rows that chose it, of those that were grouped last.
  virtual std::vector<int64_t> ClearExpert(int64_t expert_idx) = 0;

  // residual += weighted expert_output of each row.
  virtual void Combine(RowRange rows) = 0;

  // residual += ffn(norm(residual)) of a layer without experts.
  virtual void DenseFfn(RowRange rows, int64_t layer_idx) = 0;

  // logits[i] = lm_head(norm(residual[rows[i]])). REQUIRES: rows.size() <= max_logit_rows.
  virtual void Logits(std::span<const int64_t> rows) = 0;

  // Whether it is worth finding the largest of the logits here, so that they need not cross a link.
  virtual bool picks_best() const { return false; }
  // best[i] = the token with the largest of logits[i], i < num_rows: as the sampler's greedy choice, -1 for logits that
  // are no numbers. REQUIRES: picks_best().
  virtual void PickBest(int64_t) {}
};

}  // namespace penstock
