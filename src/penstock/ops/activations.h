// The buffers of one pass over the model, sized once for the largest pass.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "penstock/kernels/kernel_table.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/weights.h"
#include "penstock/model/model_config.h"
#include "penstock/model/weight_map.h"
#include "penstock/routing/routing_source.h"

namespace penstock {

struct ActivationDims {
  int64_t max_rows = 0;        // rows of one pass
  int64_t max_logit_rows = 0;  // rows whose logits are wanted at once
  int64_t context_length = 0;
  int num_workers = 1;
  int num_ranks = 1;             // whose rows come to this rank's experts
  int64_t experts_of_layer = 0;  // of this rank; only if there are several
  bool cuts_experts = false;     // this rank has a part of every expert

  // Returns the maximum rows of one expert.
  int64_t max_expert_rows() const { return max_rows * num_ranks; }
  // kHost: the buffers that the host needs to embed, attend and sample while a device computes the layers.
  // kHostExperts: also those to compute experts.
  // kHeads: those of attention between norm and output projection, for the rows of all ranks (ConfigOfHeads()).
  enum class Part : uint8_t { kAll, kHost, kHostExperts, kHeads } part = Part::kAll;
};

// The formats of rows that a model's GEMMs take, one for each kind of matrix. They follow from the formats in which the
// weights lie in memory: rows are codes if all matrices of the kind can be multiplied by codes.
struct RowFormats {
  kernels::RowFormat attention = kernels::RowFormat::kF32;
  kernels::RowFormat ffn = kernels::RowFormat::kF32;
  kernels::RowFormat lm_head = kernels::RowFormat::kF32;
};
RowFormats RowFormatsOf(const WeightMap& map, ComputeDtype dtype, ActivationFormat activations);

// Returns the number of query heads of one KV head that attention of a layer takes at once: all of them, but at
// most 32. (With MLA all heads have the same KV head.)
int64_t AttentionHeads(const ModelConfig& config, int64_t layer_idx);

// Returns the number of parts into which attention of a layer splits the query heads of one KV head.
int64_t PartsOfKvHead(const ModelConfig& config, int64_t layer_idx);

// Returns the number of rows of one sequence that attention of a layer takes at once.
int64_t AttentionRows(const ModelConfig& config, int64_t layer_idx);

// Returns the floats of one worker's scratch memory for attention of these rows and heads, in any layer.
int64_t AttentionScratchFloats(const ModelConfig& config, int64_t context_length);

// A message of experts' outputs between ranks ends with a trailer of at most RankTrailerBytes(): which experts it
// holds, which of them failed, and why.
constexpr int64_t kMaxReasonBytes = 1000;
int64_t RankTrailerBytes(const ModelConfig& config);

// FFNs compute gate and up for this many columns at a time, or for a multiple if there are few rows. They keep them in
// one worker's scratch memory, which stays in a cache. All columns of all assignments would not fit there. Rows are
// padded so that they do not collide in the cache.
constexpr int64_t kFfnScratchCols = 128;
constexpr int64_t kFfnScratchPadding = 16;
int64_t FfnScratchFloats(int64_t max_rows);

// Rows of recurrent layers. They have buffers of their own, because micro-batches may be in different layers.
struct RecurrentRows {
  std::span<float> q;        // [num_rows, keys_dim]
  std::span<float> k;        // [num_rows, k_cols]
  std::span<float> v;        // [num_rows, values_dim]
  std::span<float> beta;     // [num_rows, beta_cols]
  std::span<float> decay;    // [num_rows, decay_cols]
  std::span<float> gate;     // [num_rows, values_dim]
  std::span<float> out;      // [num_rows, values_dim]
  std::span<float> decay_a;  // [num_rows, rank]: what decays are projected from
  std::span<float> gate_a;   // [num_rows, rank]: what gates are projected from (kKimiDelta)
};

// Rows of layers with an indexer. Positions are chosen, and their KV entries gathered, for num_workers rows at a time.
struct IndexerRows {
  std::span<float> q;             // [num_rows, num_heads * head_dim]
  std::span<float> k;             // [num_rows, head_dim]
  std::span<float> weights;       // [num_rows, num_heads]
  std::span<int32_t> selected;    // [num_rows, MaxSelected]: places in the pages that a row sees, in increasing order
  std::span<float> scores;        // [num_workers, positions in whole pages]
  std::span<float> scratch;       // [num_workers, IndexScratchFloats]
  std::span<std::byte> gathered;  // [num_workers, pages of MaxSelected, a block in f32]
};

// Returns how many positions a row attends to at most.
int64_t MaxSelected(const ModelConfig& config, int64_t context_length);

// Spans have room for max_rows (or max_rows * num_topk assignments). GEMMs take prepared rows (kernels/kernel_table.h).
struct Activations {
  static uint64_t Bytes(const ModelConfig& config, const RowFormats& formats, const ActivationDims& dims);
  static absl::StatusOr<Activations> Create(Memory& memory, const ModelConfig& config, const RowFormats& formats,
                                            const ActivationDims& dims);

  Arena arena;
  ActivationDims dims;

  std::span<float> residual;        // [num_rows, model_dim]
  std::span<float> normed;          // [num_rows, model_dim]
  std::span<float> layer_input;     // [num_rows, model_dim]: the residual before attention, if FFNs take that
  std::span<float> shared_gate;     // [num_rows]: only if the shared FFN has a gate
  std::span<float> shared_output;   // [num_rows, model_dim]: only if it is normed, alone or with experts' outputs
  std::span<std::byte> gemm_input;  // [num_rows]: prepared rows of normed or attended
  // [num_rows]: prepared rows of normed, kept from Route() to Group(). With several ranks [max_expert_rows()]: those of
  // other ranks follow from max_rows on.
  std::span<std::byte> ffn_input;
  // Rows of the widest layer, like the next three; ModelConfig::q_dim() and so on.
  std::span<float> q;               // [num_rows, num_heads * head_dim]
  std::span<float> k;               // [num_rows, num_kv_heads * head_dim]
  std::span<float> v;               // [num_rows, num_kv_heads * value_dim]
  std::span<float> attended;        // [num_rows, num_heads * value_dim]
  std::span<float> attention_gate;  // [num_rows, gate_dim]: only if attention has a gate
  std::span<float> q_compressed;    // [num_rows, q_lora_rank]: only with MLA, like the next two
  std::span<float> q_heads;         // [num_rows, num_heads, nope_dim + rope_dim]: q before K's up-projection
  std::span<float> value_heads;     // [num_rows, num_heads, value_dim]: V's up-projection of attended
  IndexerRows indexer;
  RecurrentRows recurrent;
  std::span<float> cos;                // [num_rows, num_angles]
  std::span<float> sin;                // [num_rows, num_angles]
  std::span<float> query_scales;       // [num_rows]: QueryScale of the rows' positions, if the model has it
  std::span<float> attention_scratch;  // [num_workers, AttentionScratchFloats]
  std::span<float> router_logits;      // [num_rows, num_experts]; probabilities after Route()
  std::span<int32_t> topk_idx;         // [num_rows, num_topk]
  std::span<float> topk_weights;       // [num_rows, num_topk]
  std::span<int32_t> topk_ahead_;      // [kMaxAhead, num_rows, num_topk]: the choices of RouteAhead()
  std::span<float> ahead_scores;       // [num_rows, num_experts]: the scores of RouteAhead()
  std::span<float> ahead_weights;      // [num_rows, num_topk]
  std::span<int64_t> assignments;      // [num_rows, num_topk]: place among the assignments sorted by expert
  std::span<int64_t> assigned_row;     // [num_assignments]: the row of each place
  std::span<int64_t> group_offsets;    // [num_experts + 1]
  std::span<std::byte> expert_input;   // [num_assignments]: prepared rows of normed
  std::span<float> ffn_scratch;        // [num_workers, FfnScratchFloats]: gate and up of some columns
  std::span<std::byte> hidden;         // [num_assignments]: prepared rows of glu(gate, up)
  // [num_rows, model_dim]: what identity experts return, from Route() to Group(). With defers_experts, what experts
  // return, from Combine() to the next layer's FFN.
  std::span<float> deferred;
  std::span<float> latent;  // [num_rows, latent_dim]: inputs of experts, later the sums of their outputs
  // [num_assignments, expert_row_dim]. With several ranks, the outputs of other ranks' experts follow. If ranks cut the
  // experts, sums of outputs follow: those of all ranks' rows, and those of the other ranks for own rows.
  std::span<float> expert_output;
  std::span<std::byte> to_rank;  // only with several ranks: a message to one of them
  std::span<float> logits;       // [max_logit_rows, vocab_size]
  std::span<TokenId> best;       // [max_logit_rows]: the token with the largest logit

  // Returns where the outputs of a row's experts are summed up, [num_rows, expert_row_dim]: in the residual, or apart
  // if something comes before they are added to it. `is_normed`: the sums have a norm.
  std::span<float> ExpertSums(const ModelConfig& config, bool is_normed) const {
    if (config.latent_dim > 0) return latent;
    if (is_normed) return normed;
    return config.defers_experts ? deferred : residual;
  }
  // Returns [num_rows, num_topk]. REQUIRES: 1 <= ahead <= kMaxAhead.
  std::span<int32_t> topk_ahead(int64_t ahead) const {
    const size_t size = topk_ahead_.size() / kMaxAhead;
    return topk_ahead_.subspan(static_cast<size_t>(ahead - 1) * size, size);
  }
};

}  // namespace penstock
