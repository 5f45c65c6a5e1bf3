// The cost of each operation of a model: multiplications and additions, and the bytes that a processor reads from or
// writes to its memory. Weights count once for each operation, KV as often as it is read. Activations do not count
// because they stay in caches.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/model/model_config.h"
#include "penstock/tensor/kv_block.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {

struct OperationCost {
  double flops = 0;
  uint64_t bytes = 0;
  uint64_t kv_bytes = 0;       // the part of `bytes` that is KV cache
  double kv_flops = 0;         // the part of `flops` that works on KV entries
  uint64_t packed_bytes = 0;   // the part of `bytes` that becomes panels
  uint64_t decoded_bytes = 0;  // the part of `bytes` that is decompressed first
  int32_t ready_experts = 0;   // experts that become panels or are decompressed, which threads share
  // Work beside products and attention, which models with small matrices notice: the beginning of a pass; rows that
  // are embedded, that go through attention of a layer, and that are routed to experts and combined again; entries of
  // logits from which tokens are drawn, and their rows.
  bool begins_pass = false;
  double embedded_rows = 0;
  double attention_rows = 0;
  double routed_rows = 0;
  double drawn_entries = 0;
  uint16_t drawn_rows = 0;

  OperationCost& operator+=(const OperationCost& other) {
    flops += other.flops;
    bytes += other.bytes;
    kv_bytes += other.kv_bytes;
    kv_flops += other.kv_flops;
    packed_bytes += other.packed_bytes;
    decoded_bytes += other.decoded_bytes;
    ready_experts += other.ready_experts;
    begins_pass = begins_pass || other.begins_pass;
    embedded_rows += other.embedded_rows;
    attention_rows += other.attention_rows;
    routed_rows += other.routed_rows;
    drawn_entries += other.drawn_entries;
    drawn_rows = static_cast<uint16_t>(drawn_rows + other.drawn_rows);
    return *this;
  }
};

// The part of a kind of matrix that has one format.
struct FormatShare {
  WeightFormat format = WeightFormat::kF32;
  double weights = 0;  // its share of the weights
  double bytes = 0;    // its share of the bytes
};

// The formats in memory: one for each kind of matrix, that with the most bytes, and one for the KV cache.
struct ModelFormats {
  WeightFormat attention = WeightFormat::kF32;
  WeightFormat ffn = WeightFormat::kF32;
  WeightFormat lm_head = WeightFormat::kF32;
  KvFormat kv = KvFormat::kF32;
  // All formats of a kind whose matrices differ. Empty: all have the one format.
  std::vector<FormatShare> attention_shares = {}, ffn_shares = {};
};

class ModelCost {
 public:
  ModelCost(const ModelConfig& config, const ModelFormats& formats);

  // Norm, projections, attention and output projection of one layer, together and in parts. Rows of one sequence share
  // their reads of K and V.
  struct Context {
    int64_t seen_tokens = 0;  // positions that each row sees, summed up over all rows
    int64_t read_tokens = 0;  // positions that are read, summed up over the sequences
    // In a layer with an indexer: positions that rows score to choose those they see, summed up over the rows, and
    // those whose index keys are read, summed up over the sequences.
    bool has_indexer = false;
    int64_t scored_tokens = 0;
    int64_t scanned_tokens = 0;
    // In a recurrent layer instead: rows, and sequences whose states are read and written.
    int64_t recurrent_rows = 0;
    int64_t num_states = 0;
  };
  OperationCost Attention(int64_t layer_idx, int64_t num_rows, const Context& context) const;
  OperationCost PreAttention(int64_t layer_idx, int64_t num_rows, const Context& context) const;
  OperationCost AttentionCore(int64_t layer_idx, const Context& context) const;
  // The part of AttentionCore() that scores positions.
  OperationCost IndexScores(const Context& context) const;
  OperationCost PostAttention(int64_t layer_idx, int64_t num_rows) const {
    return Product(attention_[layer_idx].out, num_rows);
  }
  // Returns what rows of different sequences see, each of which has `num_positions`.
  Context ContextOfRows(int64_t num_rows, int64_t num_positions) const;
  // Cross-attention of one layer of a decoder: the projections of queries and of outputs around its AttentionCore(),
  // and the K and V of a prompt's rows.
  OperationCost CrossProjections(int64_t num_rows) const;
  OperationCost CrossKv(int64_t num_rows) const { return Product(cross_kv_, num_rows); }
  OperationCost Route(int64_t num_rows) const;
  // One expert, for the rows that chose it.
  OperationCost Expert(int64_t num_rows) const;
  // All experts of a layer, when every row chooses at random: of S that have weights, S (1 - (1 - k/E)^m) are read
  // (EPS-MoE).
  OperationCost ExpertsOfUniformRouting(int64_t num_rows) const;
  OperationCost DenseFfn(int64_t num_rows) const;
  OperationCost SharedFfn(int64_t num_rows) const;
  // Adds up the experts' outputs of each row. Route() and Combine() include the projections to experts and back.
  OperationCost Combine(int64_t num_rows) const;
  OperationCost Logits(int64_t num_rows) const;
  // Draws a token from each row of logits. (The largest logit alone is found in a tenth of the time.) Counts entries
  // and rows alone.
  OperationCost Draw(int64_t num_rows) const;

  // Returns the bytes of a matrix set as stored in memory.
  uint64_t expert_bytes() const { return expert_.bytes; }
  uint64_t kv_bytes_per_token(int64_t layer_idx) const { return attention_[layer_idx].kv_bytes; }

 private:
  // A set of matrices: the number of its values and its bytes.
  struct Matrices {
    double values = 0;
    uint64_t bytes = 0;
    void Add(WeightFormat format, int64_t num_cols, int64_t inner_dim, const std::vector<FormatShare>& shares = {});
  };
  // Attention of one layer, or what a recurrent layer has in its place.
  struct LayerAttention {
    Matrices in, out;      // the projections before and after it
    double kv_values = 0;  // sum over heads of the dims of q and of attention's output
    uint64_t kv_bytes = 0;
  };
  static LayerAttention AttentionOf(const ModelConfig& config, const ModelFormats& formats, int64_t layer_idx);
  static OperationCost Product(const Matrices& matrices, int64_t num_rows) {
    return {2 * matrices.values * static_cast<double>(num_rows), matrices.bytes};
  }

  int64_t expert_row_dim_;
  int64_t vocab_size_;
  int64_t num_topk_;
  int64_t num_experts_, num_stored_experts_;
  int64_t index_topk_ = 0;                 // 0: rows see all positions
  int64_t index_dim_ = 0;                  // of all index heads
  uint64_t index_bytes_ = 0;               // of an index key
  double state_values_ = 0;                // of a sequence in one recurrent layer
  std::vector<LayerAttention> attention_;  // [num_layers]
  Matrices index_, cross_q_, cross_kv_, cross_out_, router_, expert_, dense_ffn_, shared_ffn_, lm_head_;
  Matrices latent_in_, latent_out_;
};

}  // namespace penstock
