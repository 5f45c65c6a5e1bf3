// The operations that schedules issue to one processor. host_operations.h computes them with the host's kernels, and
// cuda_operations.h with a device's.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "penstock/memory/kv_cache.h"
#include "penstock/memory/kv_window.h"
#include "penstock/memory/weights.h"
#include "penstock/model/model_config.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/ops/activations.h"
#include "penstock/routing/routing_source.h"

namespace penstock {

// The rows of one pass: (sequence, position) pairs. Rows of one sequence come in increasing position. All earlier
// positions of the sequence are in the KV cache or among the rows before.
// Rows of a sequence that will probably come in a later pass. Their tokens are known.
struct NextRows {
  uint32_t sequence_id = 0;
  int64_t first_pos = 0;
  std::span<const TokenId> token_ids;
  bool encodes = false;  // they go through an encoder
  bool is_soon = true;   // they probably come in one of the next two passes
};

// A sequence's recurrent state as it is after a row, to be kept in other pages.
struct StateCopy {
  int64_t row = 0;
  std::vector<std::byte*> pages;
};

struct RowBatch {
  std::vector<TokenId> token_ids;                        // [num_rows]
  std::vector<int64_t> positions;                        // [num_rows]
  std::vector<int64_t> kv_positions;                     // [num_rows]: the positions' places in kv_pages
  std::vector<std::span<std::byte* const>> kv_pages;     // [num_rows]: the pages of its sequence that a row sees
  std::vector<std::span<std::byte* const>> state_pages;  // [num_rows]: those of its sequence's recurrent state
  std::vector<uint32_t> sequence_ids;                    // [num_rows]: rows of one sequence are neighbours
  std::vector<char> has_kv;             // [num_rows]: 1 if the row's KV entries exist, and only the state advances
  std::vector<StateCopy> state_copies;  // in the order of their rows
  // [num_rows]: how long the rows' sequences may get, prompt and answer together. With an encoder, the length of the
  // prompt without what the decoder begins with.
  std::vector<int64_t> sequence_lengths;
  std::vector<int64_t> logit_rows;  // rows whose logits are wanted
  bool wants_best_only = false;     // only the token with the largest logit is wanted
  bool draws_tokens = false;        // in a simulation: tokens are drawn at random
  bool next_encodes = false;        // the next pass probably goes through the encoder (LayersOf())
  std::vector<NextRows> next_rows;  // for predictors that work ahead, in the order of their passes

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  void Clear();
  // `pages` and `state_pages` are the sequence's and outlive the batch; empty in a simulation.
  void AddRow(TokenId token_id, int64_t pos, std::span<std::byte* const> pages, uint32_t sequence_id,
              const KvWindow& window, int64_t sequence_length = 0, std::span<std::byte* const> of_state = {});

 private:
  std::deque<std::vector<std::byte*>> windows_;  // the lists of pages that rows with a window see
  int64_t last_first_page_ = -1;                 // first page of the row added last
};

// The KV entries of a layer for some rows, in pages of the cache itself or in copies of their blocks.
struct KvView {
  KvLayer layer;
  std::span<const std::span<std::byte* const>> pages;  // [rows.size()]: the pages of each row's sequence
  bool is_copy = false;                    // of blocks: all rows' entries are written, also those that exist
  const RecurrentState* states = nullptr;  // where RowBatch::state_pages hold what
};

struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool Contains(int64_t idx) const { return idx >= begin && idx < end; }
  bool operator==(const IndexRange&) const = default;
};
using RowRange = IndexRange;  // consecutive rows of a batch

// The layers that a batch goes through: all of them, or one side of an encoder-decoder model. A batch has whole prompts
// for the encoder, or rows of the decoder.
IndexRange LayersOf(const ModelConfig& config, bool encodes);
// Whether these are rows for an encoder.
bool Encodes(const ModelConfig& config, const RowBatch& batch);

inline const float* DataOrNull(std::span<const float> span) { return span.empty() ? nullptr : span.data(); }

// An expert that is ready to be computed.
struct ExpertToRun {
  int64_t expert_idx = 0;
  FfnWeights weights;
};

// The assignments of several ranks' rows to this rank's experts.
struct RankAssignments {
  std::vector<int64_t> group_offsets;  // [num_experts + 1]: the places of each expert's assignments
  std::vector<int64_t> input_rows;     // [num_places]: rows of ffn_input
};

// Operations on some rows of a pass. They leave the data of other rows as they are. Between Route() and Combine() of a
// layer, nothing else may write to the rows' routing. Before Experts(), one Group() must cover all rows whose experts
// are computed.
class Operations {
 public:
  virtual ~Operations() = default;

  // Returns the buffers of the pass, in the processor's memory.
  virtual Activations& activations() = 0;

  // residual = embedding[token_ids]; cos and sin of the rows' positions.
  virtual void Embed(const RowBatch& batch, RowRange rows) = 0;

  // residual += o_proj(attention(norm(residual))) of one layer, in four parts:
  // - PreAttention() computes q, k and v, with RoPE.
  // - StoreKv() writes K and V to the KV cache.
  // - Attend() computes attended.
  // - PostAttention() computes the output projection and adds it.
  // StoreKv() and Attend() may run on another processor, which has the KV cache in its memory.
  // In a recurrent layer, Attend() changes the sequences' states, and there is no StoreKv().
  virtual void PreAttention(RowRange rows, int64_t layer_idx) = 0;
  virtual void StoreKv(const RowBatch& batch, RowRange rows, const KvView& kv) = 0;
  virtual void Attend(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) = 0;
  virtual void PostAttention(RowRange rows, int64_t layer_idx) = 0;

  // If several ranks share the heads, the two halves of PreAttention(): NormForAttention() computes gemm_input, and
  // ProjectQkv() q, k and v from it. Operations for some heads have activations of their own, for the rows of all
  // ranks; SetAngles() sets their cos and sin. REQUIRES: the host's operations, no MLA.
  virtual void SetAngles(const RowBatch& batch, RowRange rows);
  virtual void NormForAttention(RowRange rows, int64_t layer_idx);
  virtual void ProjectQkv(RowRange rows, int64_t layer_idx);

  // Cross-attention of a decoder's layer, in the same way: residual += o_proj(attention(norm(residual))). PreCross()
  // computes q, AttendCross() sees the K and V of the prompt, and PostCross() adds the output. REQUIRES: the host's
  // operations.
  virtual void PreCross(RowRange rows, int64_t layer_idx);
  virtual void AttendCross(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv);
  virtual void PostCross(RowRange rows, int64_t layer_idx);

  // The end of the encoder, for rows of prompts: NormEncoded() computes gemm_input, the encoder's output. From it,
  // ProjectCross() computes the k and v that cross-attention of a layer sees, for StoreKv(). REQUIRES: the host's
  // operations.
  virtual void NormEncoded(RowRange rows);
  virtual void ProjectCross(RowRange rows, int64_t layer_idx);

  // normed = norm(residual); router scores and top-k.
  virtual void Route(RowRange rows, int64_t layer_idx) = 0;

  // normed = norm(residual), as Route(). The table of all rows of the pass gives the choices and their weights.
  // REQUIRES: the host's operations.
  virtual void RouteByTable(RowRange rows, int64_t layer_idx, const ExpertTable& table);

  // Sets the weights of choices beyond Encoder::expert_capacity to 0. REQUIRES: the host's operations; Route()
  // of a layer of an encoder; `rows` hold whole prompts.
  virtual void LimitExperts(const RowBatch& batch, RowRange rows);

  // topk_ahead(ahead) = the choices of a later layer's gate for the residual as it is. The results of Route() for these
  // rows stay as they are.
  virtual void RouteAhead(RowRange rows, int64_t target_idx, int64_t ahead) = 0;

  // Returns the choices of Route() for these rows, [rows.size(), num_topk], for the host to read.
  virtual std::span<const int32_t> Choices(RowRange rows) = 0;

  // Sorts the assignments of these rows by expert, and gathers the inputs of the experts. Those of identity experts
  // become their outputs.
  virtual void Group(RowRange rows) = 0;
  // With several ranks, instead of Group(): GroupRanks() sets the assignments, GatherInputs() gathers the inputs of
  // some experts before Experts(), and PlaceOutputs() says which outputs Combine() adds: places of expert_output,
  // [rows.size(), num_topk]. REQUIRES: the host's operations.
  virtual void GroupRanks(const RankAssignments&);
  virtual void GatherInputs(std::span<const ExpertToRun> experts);
  virtual void PlaceOutputs(RowRange rows, std::span<const int64_t> places);
  // If ranks cut the experts, instead of Combine(): SumOutputs() sets rows of expert_output, from `first` on, to the
  // weighted sums of others, [num_rows, num_topk]; AddSums() adds `num_sums` of such rows to each residual.
  virtual void SumOutputs(int64_t first, std::span<const int64_t> places, std::span<const float> weights);
  virtual void AddSums(RowRange rows, int64_t layer_idx, std::span<const int64_t> sums, int num_sums);

  // residual += the shared FFN, which all rows use besides their experts. With output norms, Combine() adds it.
  // REQUIRES: config.shared_ffn_dim > 0; after Route(), before Combine().
  virtual void SharedFfn(RowRange rows, int64_t layer_idx) = 0;

  // Computes expert_output for the assignments of these experts, among the rows that were grouped last.
  virtual void Experts(int64_t layer_idx, std::span<const ExpertToRun> experts) = 0;

  // Rounds expert_output in these places as if it had travelled between ranks. REQUIRES: the host's operations.
  virtual void RoundOutputs(IndexRange places, CommFormat format);

  // Sets expert_output of an expert that cannot be computed to zeros, so that nothing reads numbers that were never
  // written. Returns the rows that chose it, among those that were grouped last.
  virtual std::vector<int64_t> ClearExpert(int64_t expert_idx) = 0;

  // residual += weighted expert_output of each row, or deferred = that sum with defers_experts. With output norms,
  // residual += norm(norm(weighted expert_output) + shared_output).
  virtual void Combine(RowRange rows, int64_t layer_idx) = 0;

  // residual += ffn(norm(residual)) of a layer without experts, and what the layer before deferred.
  virtual void DenseFfn(RowRange rows, int64_t layer_idx) = 0;

  // logits[i] = lm_head(norm(residual[rows[i]])). REQUIRES: rows.size() <= max_logit_rows.
  virtual void Logits(std::span<const int64_t> rows) = 0;

  // Whether PickBest() is worth it, because the logits then need not cross a link.
  virtual bool picks_best() const { return false; }
  // best[i] = the token with the largest of logits[i], for i < num_rows. Like the sampler's greedy choice, it is -1
  // when a logit is NaN or +inf, or none is finite. REQUIRES: picks_best().
  virtual void PickBest(int64_t) {}
};

}  // namespace penstock
