// Maps the tensors of the checkpoint to the weights of the model, and checks every shape.
//
// A weight has one name, whatever its family's checkpoints call it: `model.embed_tokens.weight`, `model.norm.weight`,
// `lm_head.weight`, and below `model.layers.{layer}.`
//
//   input_layernorm, post_attention_layernorm, residual_layernorm          .weight, .bias
//   self_attn.q_proj, k_proj, v_proj, o_proj                               .weight, .bias
//   self_attn.q_norm, k_norm                                               .weight
//   self_attn.q_a_proj, kv_a_proj_with_mqa                                 .weight, .bias
//   self_attn.q_a_layernorm, kv_a_layernorm, q_b_proj, k_up_proj, v_up_proj  .weight
//   self_attn.indexer.q_proj, k_proj, weights_proj, k_norm                 .weight; k_norm.bias
//   self_attn.sinks
//   attention_output_norm, shared_output_norm, expert_output_norm, ffn_output_norm  .weight
//   self_attn.gate_proj                                                    .weight; per head: one row for each
//   linear_attn.q_proj, k_proj, v_proj, gate_proj, beta_proj, decay_proj, o_proj  .weight, in recurrent layers
//   linear_attn.gate_a_proj, decay_a_proj, conv, conv_k, conv_v, norm, q_norm, k_norm, decay_norm  .weight
//   linear_attn.conv.bias, decay_bias, decay_log, skip
//   cross_attn.q_proj, k_proj, v_proj, o_proj; cross_layernorm             .weight, in layers of a decoder
//   mlp.gate                                                               .weight, .bias, .e_score_correction_bias
//   mlp.gate.norm                                                          .weight
//   mlp.expert_scales, layer_scale
//   mlp.latent_in_proj, latent_out_proj                                    .weight
//   mlp.gate_proj, up_proj, down_proj                                      .weight
//   mlp.shared_expert.gate_proj, up_proj, down_proj; mlp.shared_expert_gate  .weight
//   mlp.experts.{expert}.gate_proj, up_proj, down_proj                     .weight
//   mlp.experts.gate_proj, up_proj, down_proj                              .bias, of all experts
//
// and, of encoder-decoder models, `model.encoder.norm.weight` and `model.encoder.relative_bias.weight`,
// `model.decoder.relative_bias.weight`.
//
// A packed store uses these names.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/model/model_config.h"

namespace penstock {

template <class Matrix>
struct FfnParts {
  Matrix gate_proj = {};  // [ffn_dim, model_dim]; empty if FFNs are not gated. Experts have expert_row_dim inputs.
  Matrix up_proj = {};    // [ffn_dim, model_dim]
  Matrix down_proj = {};  // [model_dim, ffn_dim]
};

// The parts of a layer that every row uses. Matrices are [outputs, inputs]; a part that the model does not have is
// empty.
template <class Vector, class Matrix>
struct LayerParts {
  Vector attention_norm = {};  // [model_dim]
  Vector attention_norm_bias = {};
  Matrix q_proj = {};  // [num_heads * head_dim, model_dim]
  Matrix k_proj = {};  // [num_kv_heads * head_dim, model_dim]
  Matrix v_proj = {};  // [num_kv_heads * value_dim, model_dim]
  Matrix o_proj = {};  // [model_dim, num_heads * value_dim]
  Vector q_bias = {};
  Vector k_bias = {};
  Vector v_bias = {};
  Vector o_bias = {};
  Vector q_norm = {};    // [head_dim] or [num_heads * head_dim]; head_dim and KV heads are those of the layer
  Vector k_norm = {};    // [head_dim] or [num_kv_heads * head_dim]; MLA: [kv_lora_rank]
  Matrix q_a_proj = {};  // MLA: [q_lora_rank, model_dim], and q_proj [num_heads * (nope_dim + rope_dim), q_lora_rank]
  Vector q_a_bias = {};
  Vector q_a_norm = {};   // [q_lora_rank]
  Matrix k_up_proj = {};  // MLA: [num_heads, kv_lora_rank, nope_dim]
  Matrix v_up_proj = {};  // MLA: [num_heads, value_dim, kv_lora_rank]
  // The indexer: [num_heads * head_dim, q_lora_rank], [head_dim, model_dim], [num_heads, model_dim].
  Matrix index_q_proj = {};
  Matrix index_k_proj = {};
  Matrix index_weights_proj = {};
  Vector index_k_norm = {};  // [head_dim]
  Vector index_k_norm_bias = {};
  Vector sinks = {};  // [num_heads]
  // The gate of attention's output, [gate_dim, model_dim], or of a recurrent layer's, [values_dim, model_dim]. In a
  // recurrent layer, q_proj, k_proj and v_proj are [keys_dim or values_dim, model_dim]. kMamba1 projects q, k and
  // decay_a from the values: [key_dim or rank, values_dim].
  Matrix gate_proj = {};
  Matrix beta_proj = {};   // [num_value_heads, model_dim]
  Matrix decay_proj = {};  // [decay_cols, model_dim]; with a rank: [decay_cols, rank]
  Matrix gate_a_proj =
      {};  // kKimiDelta with a rank: [rank, model_dim], like decay_a_proj; gate_proj [values_dim, rank]
  Matrix decay_a_proj = {};
  Vector conv_weight = {};    // [conv_width, num_channels]: of q, k, v; of v, k, q (kMamba2); of v; or of q
  Vector conv_k_weight = {};  // kKimiDelta: [conv_width, keys_dim], like the part of q in conv_weight
  Vector conv_v_weight = {};  // kKimiDelta: [conv_width, values_dim]
  Vector conv_bias = {};      // [num_channels]
  Vector decay_bias = {};     // [decay_cols]
  Vector decay_log = {};      // [num_value_heads]; kMamba1: [key_dim, values_dim]
  Vector decay_norm = {};     // kMamba1: [rank]; with q_norm and k_norm [key_dim]
  Vector skip = {};           // kMamba2: [num_value_heads]; kMamba1: [values_dim]
  Vector mixer_norm = {};     // of the output: [value_dim]; kMamba2: [values_dim]
  Vector cross_norm = {};     // [model_dim]; of a decoder's layer, like the next four
  Matrix cross_q_proj = {};   // [num_heads * head_dim, model_dim]
  Matrix cross_k_proj = {};   // [num_kv_heads * head_dim, model_dim], of the encoder's output, like cross_v_proj
  Matrix cross_v_proj = {};
  Matrix cross_o_proj = {};           // [model_dim, num_heads * head_dim]
  Vector attention_output_norm = {};  // [model_dim]; with OutputNorms, like the next three
  Vector shared_output_norm = {};
  Vector expert_output_norm = {};
  Vector ffn_output_norm = {};
  Vector layer_scale = {};  // [1]
  Vector ffn_norm = {};     // [model_dim]
  Vector ffn_norm_bias = {};
  Matrix router_proj = {};  // [num_experts, model_dim]
  Vector router_bias = {};  // [num_experts]
  Vector router_selection_bias = {};
  Vector router_norm = {};           // [model_dim], where the router has its own norm
  Vector expert_scales = {};         // [num_experts]
  Matrix latent_in_proj = {};        // [latent_dim, model_dim]
  Matrix latent_out_proj = {};       // [model_dim, latent_dim]
  FfnParts<Matrix> dense_ffn = {};   // in a layer without experts
  Vector shared_norm = {};           // [model_dim], where shared_ffn has its own norm
  FfnParts<Matrix> shared_ffn = {};  // used beside the experts
  Matrix shared_gate_proj = {};      // [1, model_dim]
  Vector expert_gate_bias = {};      // [num_experts, expert_dim]
  Vector expert_up_bias = {};        // [num_experts, expert_dim]
  Vector expert_down_bias = {};      // [num_experts, expert_row_dim]
};

enum class MatrixKind : uint8_t { kAttention, kRouter, kFfn };

// Calls on_vector(a.x, b.x) and on_matrix(a.y, b.y, kind) for every part of two descriptions of a layer.
template <class A, class B, class OnVector, class OnMatrix>
void ForEachPart(A& a, B& b, const OnVector& on_vector, const OnMatrix& on_matrix) {
  on_vector(a.attention_norm, b.attention_norm);
  on_vector(a.attention_norm_bias, b.attention_norm_bias);
  on_matrix(a.q_proj, b.q_proj, MatrixKind::kAttention);
  on_matrix(a.k_proj, b.k_proj, MatrixKind::kAttention);
  on_matrix(a.v_proj, b.v_proj, MatrixKind::kAttention);
  on_matrix(a.o_proj, b.o_proj, MatrixKind::kAttention);
  on_vector(a.q_bias, b.q_bias);
  on_vector(a.k_bias, b.k_bias);
  on_vector(a.v_bias, b.v_bias);
  on_vector(a.o_bias, b.o_bias);
  on_vector(a.q_norm, b.q_norm);
  on_vector(a.k_norm, b.k_norm);
  on_matrix(a.q_a_proj, b.q_a_proj, MatrixKind::kAttention);
  on_vector(a.q_a_bias, b.q_a_bias);
  on_vector(a.q_a_norm, b.q_a_norm);
  on_matrix(a.k_up_proj, b.k_up_proj, MatrixKind::kAttention);
  on_matrix(a.v_up_proj, b.v_up_proj, MatrixKind::kAttention);
  on_matrix(a.index_q_proj, b.index_q_proj, MatrixKind::kAttention);
  on_matrix(a.index_k_proj, b.index_k_proj, MatrixKind::kAttention);
  on_matrix(a.index_weights_proj, b.index_weights_proj, MatrixKind::kRouter);
  on_vector(a.index_k_norm, b.index_k_norm);
  on_vector(a.index_k_norm_bias, b.index_k_norm_bias);
  on_vector(a.sinks, b.sinks);
  on_matrix(a.gate_proj, b.gate_proj, MatrixKind::kAttention);
  on_matrix(a.beta_proj, b.beta_proj, MatrixKind::kAttention);
  on_matrix(a.decay_proj, b.decay_proj, MatrixKind::kAttention);
  on_matrix(a.gate_a_proj, b.gate_a_proj, MatrixKind::kAttention);
  on_matrix(a.decay_a_proj, b.decay_a_proj, MatrixKind::kAttention);
  on_vector(a.conv_weight, b.conv_weight);
  on_vector(a.conv_k_weight, b.conv_k_weight);
  on_vector(a.conv_v_weight, b.conv_v_weight);
  on_vector(a.conv_bias, b.conv_bias);
  on_vector(a.decay_bias, b.decay_bias);
  on_vector(a.decay_log, b.decay_log);
  on_vector(a.decay_norm, b.decay_norm);
  on_vector(a.skip, b.skip);
  on_vector(a.mixer_norm, b.mixer_norm);
  on_vector(a.cross_norm, b.cross_norm);
  on_matrix(a.cross_q_proj, b.cross_q_proj, MatrixKind::kAttention);
  on_matrix(a.cross_k_proj, b.cross_k_proj, MatrixKind::kAttention);
  on_matrix(a.cross_v_proj, b.cross_v_proj, MatrixKind::kAttention);
  on_matrix(a.cross_o_proj, b.cross_o_proj, MatrixKind::kAttention);
  on_vector(a.attention_output_norm, b.attention_output_norm);
  on_vector(a.shared_output_norm, b.shared_output_norm);
  on_vector(a.expert_output_norm, b.expert_output_norm);
  on_vector(a.ffn_output_norm, b.ffn_output_norm);
  on_vector(a.layer_scale, b.layer_scale);
  on_vector(a.ffn_norm, b.ffn_norm);
  on_vector(a.ffn_norm_bias, b.ffn_norm_bias);
  on_matrix(a.router_proj, b.router_proj, MatrixKind::kRouter);
  on_vector(a.router_bias, b.router_bias);
  on_vector(a.router_selection_bias, b.router_selection_bias);
  on_vector(a.router_norm, b.router_norm);
  on_vector(a.expert_scales, b.expert_scales);
  on_matrix(a.latent_in_proj, b.latent_in_proj, MatrixKind::kFfn);
  on_matrix(a.latent_out_proj, b.latent_out_proj, MatrixKind::kFfn);
  on_vector(a.shared_norm, b.shared_norm);
  on_matrix(a.shared_gate_proj, b.shared_gate_proj, MatrixKind::kRouter);
  on_vector(a.expert_gate_bias, b.expert_gate_bias);
  on_vector(a.expert_up_bias, b.expert_up_bias);
  on_vector(a.expert_down_bias, b.expert_down_bias);
  for (auto [ffn_a, ffn_b] : {std::pair(&a.dense_ffn, &b.dense_ffn), std::pair(&a.shared_ffn, &b.shared_ffn)}) {
    on_matrix(ffn_a->gate_proj, ffn_b->gate_proj, MatrixKind::kFfn);
    on_matrix(ffn_a->up_proj, ffn_b->up_proj, MatrixKind::kFfn);
    on_matrix(ffn_a->down_proj, ffn_b->down_proj, MatrixKind::kFfn);
  }
}

// Pointers point into the Checkpoint or the map; nullptr where a model has no such tensor.
struct FfnTensors : FfnParts<const TensorInfo*> {
  uint64_t total_bytes() const;
  // Visits every existing tensor.
  template <class OnTensor>
  void ForEach(const OnTensor& on_tensor) const {
    for (const TensorInfo* tensor : {gate_proj, up_proj, down_proj}) {
      if (tensor != nullptr) on_tensor(*tensor);
    }
  }
};

struct LayerTensors : LayerParts<const TensorInfo*, const TensorInfo*> {
  std::vector<FfnTensors> experts;  // [num_stored_experts]; empty without experts

  // Visits every existing tensor except those of experts.
  template <class OnVector, class OnMatrix>
  void ForEachDense(const OnVector& on_vector, const OnMatrix& on_matrix) const {
    ForEachPart(
        *this, *this,
        [&](const TensorInfo* tensor, const TensorInfo*) {
          if (tensor != nullptr) on_vector(*tensor);
        },
        [&](const TensorInfo* tensor, const TensorInfo*, MatrixKind kind) {
          if (tensor != nullptr) on_matrix(*tensor, kind);
        });
  }
};

// The Checkpoint must outlive the map.
struct WeightMap {
  const TensorInfo* embedding = nullptr;   // [vocab_size, model_dim]
  const TensorInfo* final_norm = nullptr;  // [model_dim]
  const TensorInfo* final_norm_bias = nullptr;
  const TensorInfo* lm_head = nullptr;       // [vocab_size, model_dim]; the embedding when tied
  const TensorInfo* lm_head_bias = nullptr;  // [vocab_size]
  const TensorInfo* encoder_norm = nullptr;  // [model_dim]; of encoder-decoder models, like the next two
  const TensorInfo* encoder_bias = nullptr;  // [num_buckets, num_heads]: relative biases of the encoder's layers
  const TensorInfo* decoder_bias = nullptr;  // [num_buckets, num_heads]
  std::vector<LayerTensors> layers;
  std::deque<TensorInfo> own;  // tensors that are parts of stored ones, or have another name in the checkpoint

  WeightMap() = default;
  WeightMap(WeightMap&&) = default;
  WeightMap& operator=(WeightMap&&) = default;
};

// Returns kModel when tensors are missing, have another shape, or are unknown to the family (names the first 10 and
// their number). With tied embeddings it ignores an `lm_head.weight` in the checkpoint, as the reference implementation
// does.
absl::StatusOr<WeightMap> MapWeights(const ModelConfig& config, const Checkpoint& checkpoint);

// Describes the weights that a model of this config would have, without a checkpoint: a packed store of `format` made
// from a bf16 checkpoint. For plans and simulations.
WeightMap DescribeWeights(const ModelConfig& config, WeightFormat format);

}  // namespace penstock
