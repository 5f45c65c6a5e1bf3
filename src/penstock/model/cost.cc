#include "penstock/model/cost.h"

#include <algorithm>
#include <cmath>

namespace penstock {

// With shares, the mean of such matrices.
void ModelCost::Matrices::Add(WeightFormat format, int64_t num_cols, int64_t inner_dim,
                              const std::vector<FormatShare>& shares) {
  if (num_cols == 0 || inner_dim == 0) return;
  values += static_cast<double>(num_cols) * static_cast<double>(inner_dim);
  if (shares.empty()) bytes += PackedBytes(format, num_cols, inner_dim);
  double mean = 0;
  for (const FormatShare& share : shares) {
    mean += share.weights * static_cast<double>(PackedBytes(share.format, num_cols, inner_dim));
  }
  bytes += static_cast<uint64_t>(mean);
}

ModelCost::LayerAttention ModelCost::AttentionOf(const ModelConfig& config, const ModelFormats& formats,
                                                 int64_t layer_idx) {
  LayerAttention layer;
  const int64_t dim = config.model_dim;
  const auto add = [&](Matrices& matrices, int64_t num_cols, int64_t inner_dim) {
    matrices.Add(formats.attention, num_cols, inner_dim, formats.attention_shares);
  };
  if (config.num_layers > 0 && !config.has_mixer(layer_idx)) return layer;
  if (config.is_recurrent(layer_idx)) {
    const Recurrent& r = config.recurrent;
    const auto add_all = [&](std::initializer_list<int64_t> cols, int64_t inner_dim) {
      for (const int64_t count : cols) add(layer.in, count, inner_dim);
    };
    const int64_t keys = r.keys_dim(), values = r.values_dim();
    switch (r.kind) {
      case RecurrentKind::kDeltaNet: add_all({keys, keys, values, values, r.beta_cols(), r.decay_cols()}, dim); break;
      case RecurrentKind::kKimiDelta:
        add_all({keys, keys, values, r.beta_cols(), r.rank, r.rank}, dim);
        add_all({values, r.decay_cols()}, r.rank > 0 ? r.rank : dim);
        break;
      case RecurrentKind::kMamba2: add_all({keys, keys, values, values, r.decay_cols()}, dim); break;
      case RecurrentKind::kMamba1:
        add_all({values, values}, dim);
        add_all({r.rank, keys, keys}, values);
        add_all({values}, r.rank);
        break;
      case RecurrentKind::kLightning: add_all({keys, keys, values, values}, dim); break;
      case RecurrentKind::kShortConv: add_all({values, values, values}, dim); break;
    }
    add(layer.out, dim, values);
    return layer;
  }
  const LayerHeads heads = config.heads_of(layer_idx);
  const int64_t kv_dim = config.kv_dim(layer_idx);
  layer.kv_values = static_cast<double>(config.q_dim(layer_idx) + config.attended_dim(layer_idx));
  layer.kv_bytes =
      static_cast<uint64_t>(heads.num_kv_heads * KvBlock{formats.kv, heads.head_dim, config.values_in_key(),
                                                         config.indexer.is_on(), heads.value_dim}
                                                     .bytes()) /
      static_cast<uint64_t>(kKvPageTokens);
  if (const Mla& mla = config.mla; mla.is_on()) {
    const int64_t q_dim = config.num_heads * (mla.nope_dim + mla.rope_dim);
    add(layer.in, mla.q_lora_rank, dim);
    add(layer.in, q_dim, mla.q_lora_rank > 0 ? mla.q_lora_rank : dim);
    add(layer.in, kv_dim + config.gate_dim(layer_idx), dim);
    add(layer.in, config.num_heads * mla.kv_lora_rank, mla.nope_dim);
    add(layer.out, config.num_heads * mla.value_dim, mla.kv_lora_rank);
    add(layer.out, dim, config.num_heads * mla.value_dim);
    return layer;
  }
  add(layer.in, config.q_dim(layer_idx), dim);
  add(layer.in, kv_dim, dim);
  add(layer.in, heads.keys_are_values ? 0 : config.v_dim(layer_idx), dim);
  add(layer.in, config.gate_dim(layer_idx), dim);
  add(layer.out, dim, config.attended_dim(layer_idx));
  return layer;
}

ModelCost::ModelCost(const ModelConfig& config, const ModelFormats& formats)
    : expert_row_dim_(config.expert_row_dim()),
      vocab_size_(config.vocab_size),
      num_topk_(config.num_topk),
      num_experts_(config.num_experts),
      num_stored_experts_(config.num_stored_experts()) {
  const int64_t dim = config.model_dim;
  // Models are also described without layers, to measure operations.
  for (int64_t layer_idx = 0; layer_idx < std::max<int64_t>(1, config.num_layers); ++layer_idx) {
    attention_.push_back(AttentionOf(config, formats, layer_idx));
  }
  if (const Indexer& indexer = config.indexer; indexer.is_on()) {
    index_.Add(formats.attention, indexer.q_dim(), config.mla.q_lora_rank);
    index_.Add(formats.attention, indexer.head_dim, dim);
    index_.Add(WeightFormat::kF32, indexer.num_heads, dim);
    index_topk_ = indexer.num_topk;
    index_dim_ = indexer.q_dim();
    index_bytes_ = static_cast<uint64_t>(KvBlock{formats.kv, indexer.head_dim, indexer.head_dim}.bytes()) /
                   static_cast<uint64_t>(kKvPageTokens);
  }
  if (const Recurrent& r = config.recurrent; r.is_on()) {
    state_values_ = static_cast<double>(r.num_value_heads * r.key_dim * r.value_dim);
  }
  if (config.encoder.is_on()) {
    cross_q_.Add(formats.attention, config.q_dim(), dim);
    cross_kv_.Add(formats.attention, config.kv_dim(), dim);
    cross_kv_.Add(formats.attention, config.kv_dim(), dim);
    cross_out_.Add(formats.attention, dim, config.q_dim());
  }
  router_.Add(WeightFormat::kF32, config.num_experts, dim);
  router_.Add(WeightFormat::kF32, config.shared_gate ? 1 : 0, dim);
  latent_in_.Add(formats.ffn, config.latent_dim, dim);
  latent_out_.Add(formats.ffn, dim, config.latent_dim);
  const auto add_ffn = [&](Matrices& ffn, int64_t ffn_dim, int64_t row_dim) {
    for (int i = 0; i < (config.is_gated ? 2 : 1); ++i) ffn.Add(formats.ffn, ffn_dim, row_dim, formats.ffn_shares);
    ffn.Add(formats.ffn, row_dim, ffn_dim, formats.ffn_shares);
  };
  add_ffn(expert_, config.expert_dim, config.expert_row_dim());
  add_ffn(dense_ffn_, config.dense_ffn_dim, dim);
  add_ffn(shared_ffn_, config.shared_ffn_dim, dim);
  lm_head_.Add(formats.lm_head, config.vocab_size, dim);
}

OperationCost ModelCost::Attention(int64_t layer_idx, int64_t num_rows, const Context& context) const {
  OperationCost cost = PreAttention(layer_idx, num_rows, context);
  cost += AttentionCore(layer_idx, context);
  cost += PostAttention(layer_idx, num_rows);
  return cost;
}

OperationCost ModelCost::PreAttention(int64_t layer_idx, int64_t num_rows, const Context& context) const {
  OperationCost cost = Product(attention_[layer_idx].in, num_rows);
  cost.attention_rows = static_cast<double>(num_rows);
  if (context.has_indexer) cost += Product(index_, num_rows);
  return cost;
}

ModelCost::Context ModelCost::ContextOfRows(int64_t num_rows, int64_t num_positions) const {
  if (index_topk_ == 0 || num_positions <= index_topk_) {
    return {.seen_tokens = num_rows * num_positions,
            .read_tokens = num_rows * num_positions,
            .has_indexer = index_topk_ > 0};
  }
  return {.seen_tokens = num_rows * index_topk_,
          .read_tokens = num_rows * index_topk_,
          .has_indexer = true,
          .scored_tokens = num_rows * num_positions,
          .scanned_tokens = num_rows * num_positions};
}

OperationCost ModelCost::IndexScores(const Context& context) const {
  const uint64_t bytes = index_bytes_ * static_cast<uint64_t>(context.scanned_tokens);
  const double flops = 2.0 * static_cast<double>(index_dim_) * static_cast<double>(context.scored_tokens);
  return {flops, bytes, bytes, flops};
}

OperationCost ModelCost::CrossProjections(int64_t num_rows) const {
  OperationCost cost = Product(cross_q_, num_rows);
  cost += Product(cross_out_, num_rows);
  return cost;
}

OperationCost ModelCost::AttentionCore(int64_t layer_idx, const Context& context) const {
  if (context.recurrent_rows > 0) {
    // S^T k, S^T q and the update of S: seven operations for each value. Each sequence's S is read and written.
    const double flops = 7 * state_values_ * static_cast<double>(context.recurrent_rows);
    const auto bytes = static_cast<uint64_t>(8 * state_values_ * static_cast<double>(context.num_states));
    return {flops, bytes, bytes, flops};
  }
  // Counts q . k and p . v of every head.
  const LayerAttention& layer = attention_[layer_idx];
  const uint64_t kv_bytes = layer.kv_bytes * static_cast<uint64_t>(context.read_tokens);
  const double flops = 2 * layer.kv_values * static_cast<double>(context.seen_tokens);
  OperationCost cost = {flops, kv_bytes, kv_bytes, flops};
  cost += IndexScores(context);
  return cost;
}

OperationCost ModelCost::ExpertsOfUniformRouting(int64_t num_rows) const {
  if (num_experts_ == 0) return {};
  const auto num_experts = static_cast<double>(num_experts_);
  const double unused = std::pow(1 - static_cast<double>(num_topk_) / num_experts, static_cast<double>(num_rows));
  const auto num_stored = static_cast<double>(num_stored_experts_);
  return {2 * expert_.values * static_cast<double>(num_rows * num_topk_) * (num_stored / num_experts),
          static_cast<uint64_t>(num_stored * (1 - unused) * static_cast<double>(expert_.bytes))};
}

OperationCost ModelCost::Route(int64_t num_rows) const {
  OperationCost cost = Product(router_, num_rows);
  cost.routed_rows = static_cast<double>(num_rows);
  cost += Product(latent_in_, num_rows);
  return cost;
}

OperationCost ModelCost::Expert(int64_t num_rows) const { return Product(expert_, num_rows); }

OperationCost ModelCost::DenseFfn(int64_t num_rows) const { return Product(dense_ffn_, num_rows); }

OperationCost ModelCost::SharedFfn(int64_t num_rows) const { return Product(shared_ffn_, num_rows); }

OperationCost ModelCost::Combine(int64_t num_rows) const {
  const double values = static_cast<double>(num_rows * num_topk_) * static_cast<double>(expert_row_dim_);
  OperationCost cost = {2 * values, static_cast<uint64_t>(4 * values)};
  cost += Product(latent_out_, num_rows);
  return cost;
}

OperationCost ModelCost::Draw(int64_t num_rows) const {
  return {.drawn_entries = static_cast<double>(num_rows * vocab_size_), .drawn_rows = static_cast<uint16_t>(num_rows)};
}

OperationCost ModelCost::Logits(int64_t num_rows) const { return Product(lm_head_, num_rows); }

}  // namespace penstock
