// A model's dims and switches under this project's names, whatever its family calls them.
//
// Immutable after LoadModelConfig: every value has been checked against base/limits.h and against the others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/model/coded_weights.h"
#include "penstock/model/rope.h"
#include "penstock/model/rules.h"
#include "penstock/token_id.h"

namespace penstock {

struct Family;

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,           // RMSNorm over head_dim of each head (Qwen3)
  kPerHeadAfterRope,  // RMSNorm over head_dim of each head after RoPE (Hunyuan); the other kinds come before RoPE
  kWhole,             // RMSNorm over all heads of a row at once (OLMoE)
  kUnitAfterRope,     // as kPerHeadAfterRope, but without weights, and only in layers that rotate (Llama 4)
};

// Multi-head latent attention (DeepSeek-V2, section 2.1). A position's K and V are stored as one compressed vector for
// all heads, [kv_lora_rank], and a part that RoPE rotates, [rope_dim]. Together they are K with one KV head of
// kv_lora_rank + rope_dim dimensions; the first kv_lora_rank are also V. The up-projections of K and V are applied to
// queries and to attention's output ("absorbed"). Prompts and single tokens use the same form, so both have the same
// bits.
struct Mla {
  int64_t q_lora_rank = 0;   // 0: q is projected in one step
  int64_t kv_lora_rank = 0;  // 0: no MLA
  int64_t nope_dim = 0;      // the part of a head's q without positions
  int64_t rope_dim = 0;
  int64_t value_dim = 0;  // dims of a head's V
  float norm_eps = 1e-6f;
  float kv_scale = 1;  // factor of the compressed vector behind its norm (LongCat-Flash)

  bool is_on() const { return kv_lora_rank > 0; }
};

// The lightning indexer (DeepSeek-V3.2-Exp 2025, section 2.1), which chooses the positions that a row of an MLA layer
// attends to. A position has one index key for all index heads:
//   score[pos] = sum over heads of weight[head] * max(0, q[head] . k[pos]).
// The num_topk positions with the largest scores are chosen; of equal scores the earlier position's counts more. q
// comes from the normed q of MLA's q_a_proj, k and the weights from the layer's input. RoPE rotates the first rope_dim
// dims.
//
// The published code multiplies q and k by a Hadamard matrix before it rounds both to FP8. The matrix is orthogonal, so
// without that rounding it changes nothing, and it is left out.
struct Indexer {
  int64_t num_heads = 0;  // 0: rows attend to all positions
  int64_t head_dim = 0;
  int64_t num_topk = 0;
  bool is_interleaved = false;  // how RoPE rotates
  std::vector<bool> is_shared;  // [num_layers]: uses the choices of the last layer that makes its own; empty: none
  static constexpr float kNormEps = 1e-6f;  // of the LayerNorm of k

  bool is_on() const { return num_heads > 0; }
  int64_t q_dim() const { return num_heads * head_dim; }
};

inline constexpr int8_t kNoRope = -1;

// The heads of attention in one layer.
struct LayerHeads {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool keys_are_values = false;  // V is K's projection, before K's norm and RoPE
  int64_t num_heads = 0;         // of queries; 0: ModelConfig::num_heads
  int64_t value_dim = 0;         // dims of a head's V, at most head_dim; 0: head_dim
};

// The outputs that are normed before they are added to the residual.
enum class OutputNorms : uint8_t {
  kNone,
  kAll,      // those of attention and of FFNs; of experts and shared FFN together (AFMoE)
  kExperts,  // those of FFNs in layers with experts only (A.X K1)
  // As kAll. The shared FFN has a norm of its own before it, and one after it, as the experts together have; then their
  // sum is normed (Gemma).
  kParts,
};

// How recurrent layers mix positions, in place of attention. The inputs of a position go through a short convolution
// over the positions before. Then they change a matrix S [key_dim, value_dim] of each value head, which is kept instead
// of the K and V of all positions:
enum class RecurrentKind : uint8_t {
  // Gated DeltaNet (Yang et al. 2025, equation 10), with two numbers of each head, decay and beta:
  //   S = decay * S + k (beta * (v - decay * S^T k))^T,   out = S^T q.   q and k have length 1.
  kDeltaNet,
  kKimiDelta,  // Kimi Linear (Moonshot 2025): the same with a decay for each of the key's dims
  // Mamba-2 (Dao and Gu 2024), with k, q and v for its B, C and x:
  //   S = decay * S + k (step * v)^T,   out = S^T q + skip * v.
  kMamba2,
  kMamba1,     // Mamba (Gu and Dao 2023): the same with a step for each value, and a decay for each element of S
  kShortConv,  // LFM2 (Liquid AI 2025): no matrix; out = gate * convolution of (k * v)
  // Lightning attention (Qin et al. 2024), with a decay of each head and layer that is not learned:
  //   S = decay * S + k v^T,   out = S^T q.   There is no convolution.
  kLightning,
};

// The dims of recurrent layers. Each key head belongs to num_value_heads / num_key_heads value heads.
struct Recurrent {
  int64_t num_key_heads = 0;
  int64_t num_value_heads = 0;
  int64_t key_dim = 0;  // of one head, like value_dim
  int64_t value_dim = 0;
  // Positions that the convolution sees, the row's own included. 0: there are no such layers. 1: no convolution.
  int64_t conv_width = 0;
  RecurrentKind kind = RecurrentKind::kDeltaNet;
  bool conv_bias = false;
  // Low ranks through which the gate and the decay are projected (kKimiDelta; 0: they are not), or the steps (kMamba1).
  int64_t rank = 0;
  float decay_floor = 0;  // kKimiDelta: RecurrentGatesArgs::decay_floor (Ling 3)
  // How GGUF files of some families differ. Value head v belongs to key head v % num_key_heads, not to the one of its
  // neighbours; and the weights of the decay are stored as rates, -exp(weight).
  bool heads_alternate = false;
  bool decay_is_rate = false;

  bool is_on() const { return conv_width > 0; }
  bool has_matrix() const { return kind != RecurrentKind::kShortConv; }
  bool is_delta() const { return kind == RecurrentKind::kDeltaNet || kind == RecurrentKind::kKimiDelta; }
  // Whether q and k are projected from a layer's input, and go through the convolution. kMamba1 projects them, and the
  // steps, from what the convolution makes of v.
  bool convolves_keys() const { return is_delta() || kind == RecurrentKind::kMamba2; }
  bool projects_values() const { return kind == RecurrentKind::kMamba1; }
  int64_t keys_dim() const { return num_key_heads * key_dim; }
  int64_t values_dim() const { return num_value_heads * value_dim; }
  int64_t num_channels() const {
    if (kind == RecurrentKind::kLightning) return 0;
    return values_dim() + (convolves_keys() ? 2 * keys_dim() : 0);
  }
  int64_t key_head_of(int64_t value_head) const {
    return heads_alternate ? value_head % num_key_heads : value_head / (num_value_heads / num_key_heads);
  }
  // Columns of a row's k, beta (kMamba2: the steps) and decays (kMamba1: the steps).
  int64_t k_cols() const { return has_matrix() ? keys_dim() : values_dim(); }
  int64_t beta_cols() const { return convolves_keys() ? num_value_heads : 0; }
  int64_t decay_cols() const {
    if (kind == RecurrentKind::kKimiDelta) return keys_dim();
    if (kind == RecurrentKind::kMamba1) return values_dim();
    return has_matrix() && kind != RecurrentKind::kLightning ? num_value_heads : 0;
  }
};

// The encoder of an encoder-decoder model (T5; Raffel et al. 2020, section 2.1), and what its decoder has beside a
// decoder-only model's layers. The encoder's layers come first among ModelConfig's layers, the decoder's follow.
//
// The prompt goes through the encoder, where every position sees the whole prompt. The decoder begins with start_id and
// generates the answer. A layer of the decoder attends to the positions of the decoder, then to the encoder's output
// (cross-attention). Nothing rotates: a learned number for each head and each bucket of distances is added to scores of
// self-attention (model/relative_bias.h).
struct Encoder {
  int64_t num_layers = 0;  // 0: there is no encoder
  TokenId start_id = 0;    // decoder_start_token_id
  int64_t num_buckets = 0;
  int64_t max_distance = 0;
  // The maximum rows of one sequence for each expert of a layer of the encoder, in the order of the prompt. Rows beyond
  // it get nothing from the layer's experts. Rows of the decoder are never beyond it, as in transformers with a KV
  // cache.
  int64_t expert_capacity = 0;

  bool is_on() const { return num_layers > 0; }
};

// The temperature of attention (Nakanishi 2025): q at a position is multiplied by
// 1 + factor * log(1 + floor((position + offset) / period)).
struct QueryScale {
  float factor = 0;  // 0: no such scale
  int64_t period = 1;
  int64_t offset = 0;
  bool is_for_rotating = false;  // layers with RoPE have it, too

  bool is_on() const { return factor != 0; }
  float At(int64_t position) const;
};

// Attention and FFNs are added to their own input, which was normed, times one of these factors (MiniMax). Elsewhere
// they are added to what was there before the norm.
struct NormedResidual {
  float of_attention = 0;  // 0: there is no such thing, in any layer
  float of_recurrent = 0;
  float of_ffn = 0;

  bool is_on() const { return of_attention != 0; }
};

struct ModelConfig {
  const Family* family = nullptr;
  int64_t vocab_size = 0;
  int64_t model_dim = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t num_experts = 0;
  int64_t num_topk = 0;
  int64_t num_identity_experts = 0;  // the last of num_experts: they return their input, and have no weights
  int64_t expert_dim = 0;            // FFN width of one expert
  // Experts read and return rows of this width. Projections that they share bring rows there, and back after the sum
  // (Nemotron-3 Super). 0: experts read and return rows of model_dim.
  int64_t latent_dim = 0;
  int64_t dense_ffn_dim = 0;   // FFN width of the layers without experts
  int64_t shared_ffn_dim = 0;  // FFN width of the shared experts, which all rows use; 0: none
  int64_t max_positions = 0;
  int64_t num_mtp_layers = 0;  // layers after the others in a checkpoint, which predict further tokens; not used

  Norm norm = Norm::kRms;  // of the layers and before lm_head
  bool norm_bias = false;
  bool norms_are_offsets = false;  // the weights of norms are stored as distances from 1
  float norm_eps = 0;

  Encoder encoder;
  Mla mla;
  Indexer indexer;
  Recurrent recurrent;
  std::vector<bool> layer_is_recurrent;  // [num_layers]: `recurrent` in place of attention; empty: no layer
  std::vector<LayerHeads> layer_heads;   // [num_layers]; empty: all layers have num_kv_heads and head_dim
  bool attention_gate = false;           // what attention returns is multiplied by 1 / (1 + exp(-gate . x))
  bool gate_is_softplus = false;         // by log(1 + exp(gate . x)) instead
  bool gate_is_per_head = false;         // one number for each head, not for each of its dims; always with MLA
  QkNorm qk_norm = QkNorm::kNone;
  bool v_norm = false;    // RMSNorm over head_dim of each head of V, without weights
  float value_scale = 1;  // factor of V
  bool qkv_bias = false;
  bool o_bias = false;
  float clip_qkv = 0;  // q, k and v are clamped to +-clip_qkv; 0: no clamp
  Rope rope;
  std::vector<Rope> other_ropes;       // of some layers
  std::vector<int8_t> layer_rope;      // [num_layers]: 0 for `rope`, i for other_ropes[i - 1], or kNoRope; empty: all 0
  float attention_scale = 0;           // factor of q . k; 1 / sqrt(head_dim) in most models
  bool attention_sinks = false;        // a learned number for each head joins its softmax
  bool sinks_need_window = false;      // only in layers with a window
  int64_t sliding_window = 0;          // a position sees this many positions, itself included; 0: no limit
  std::vector<bool> layer_has_window;  // [num_layers]; empty: all layers have one
  // Positions are cut into chunks of sliding_window, and a position sees those of its own chunk before it (Llama 4).
  bool windows_are_chunks = false;
  QueryScale query_scale;

  RouterRule router;
  bool router_bias = false;            // added to logits
  bool router_selection_bias = false;  // added to scores only to choose experts
  // A chosen expert's weight multiplies its input, not its output (Llama 4). Then num_topk is 1.
  bool router_scales_input = false;
  bool router_norm = false;      // the router reads the residual with a norm of its own
  float router_logit_scale = 1;  // factor of the logits
  bool expert_scales = false;    // a learned number for each expert multiplies its weight
  GluRule glu;
  bool is_gated = true;       // false: hidden = max(0, up . x), and FFNs have no gate_proj
  bool squares_relu = false;  // hidden = max(0, up . x)^2; without gates
  // [num_layers]: GluRule::output_limit of experts, and of other FFNs; empty: 0.
  std::vector<float> expert_limits;
  std::vector<float> ffn_limits;
  bool expert_bias = false;
  bool shared_gate = false;             // shared_ffn is scaled by 1 / (1 + exp(-gate . x))
  float shared_scale = 1;               // factor of shared_ffn
  std::vector<bool> layer_has_experts;  // [num_layers]; false: a dense FFN instead, or none
  // [num_layers], empty for all: layers with attention or `recurrent`, and layers with experts or a dense FFN. Each
  // part has a norm of its own.
  std::vector<bool> layer_has_mixer;
  std::vector<bool> layer_has_ffn;
  // Snowflake Arctic: after attention, a dense FFN (shared_ffn_dim) with its own norm is applied to the residual. The
  // experts read the layer's input; both outputs are added to the residual.
  bool parallel_experts = false;
  // Outputs of experts are added behind the FFN of the next layer, which has no experts (LongCat-Flash). The layer's
  // own dense FFN is its shared_ffn. There are no output norms and no latent_dim.
  bool defers_experts = false;
  bool parallel_ffn = false;  // FFNs read what attention reads, not the residual after it (Cohere)
  bool input_norms = true;    // false: attention and FFNs read the residual as it is (FlexOlmo)
  OutputNorms output_norms = OutputNorms::kNone;
  bool layer_scales = false;  // a learned number multiplies the residual after each layer

  // Factors of the outputs of operations (Granite); 1 elsewhere.
  float embedding_scale = 1;
  float residual_scale = 1;  // of attention and FFNs, before they are added
  NormedResidual normed_residual;
  float logit_scale = 1;
  float logit_cap = 0;  // logits become logit_cap * tanh(logit / logit_cap); 0: they stay
  bool lm_head_bias = false;
  bool tie_embeddings = false;
  CodedWeights coded;
  std::vector<TokenId> eos_ids;

  LayerHeads heads_of(int64_t layer_idx) const {
    return layer_heads.empty() ? LayerHeads{.num_kv_heads = num_kv_heads, .head_dim = head_dim}
                               : layer_heads[layer_idx];
  }
  // Returns the dims of a row of Q, K, V or attention's output in a layer; without a layer those of the widest one.
  // Rows of all layers lie as far apart in buffers as those of the widest.
  int64_t num_heads_of(int64_t layer_idx) const {
    const int64_t own = heads_of(layer_idx).num_heads;
    return own > 0 ? own : num_heads;
  }
  int64_t q_dim(int64_t layer_idx) const { return num_heads_of(layer_idx) * heads_of(layer_idx).head_dim; }
  int64_t q_dim() const { return Widest(num_heads * head_dim, &ModelConfig::q_dim); }
  bool is_of_encoder(int64_t layer_idx) const { return layer_idx < encoder.num_layers; }
  bool has_cross_attention(int64_t layer_idx) const { return encoder.is_on() && layer_idx >= encoder.num_layers; }
  bool is_recurrent(int64_t layer_idx) const { return !layer_is_recurrent.empty() && layer_is_recurrent[layer_idx]; }
  bool has_mixer(int64_t layer_idx) const { return layer_has_mixer.empty() || layer_has_mixer[layer_idx]; }
  bool has_ffn(int64_t layer_idx) const { return layer_has_ffn.empty() || layer_has_ffn[layer_idx]; }
  int64_t num_recurrent_layers() const { return NumRecurrentBefore(num_layers); }
  // Returns the place of a recurrent layer among those layers.
  int64_t recurrent_layer_of(int64_t layer_idx) const { return NumRecurrentBefore(layer_idx); }
  // Returns the layers for which a KV page has room: those with attention. With an encoder these are the decoder's. In
  // the pages of the prompt they hold what cross-attention sees; the encoder's layers use them before.
  int64_t num_kv_layers() const { return NumWithKvBefore(num_layers); }
  int64_t kv_layer_of(int64_t layer_idx) const {
    if (is_of_encoder(layer_idx)) return layer_idx % num_kv_layers();
    return NumWithKvBefore(layer_idx);
  }
  // Returns whether a layer has an indexer of its own, and its place among those that have.
  bool has_indexer(int64_t layer_idx) const {
    return indexer.is_on() && (indexer.is_shared.empty() || !indexer.is_shared[layer_idx]);
  }
  int64_t num_index_layers() const { return index_layer_of(num_layers); }
  int64_t index_layer_of(int64_t layer_idx) const;
  // Returns whether the KV entries of a sequence that may get this long differ from those of a shorter one that begins
  // alike (LongRoPE).
  bool IsBeyondOriginalLength(int64_t length) const {
    const auto is_beyond = [=](const Rope& r) { return &r.Of(length) != &r.Of(0); };
    return is_beyond(rope) || std::ranges::any_of(other_ropes, is_beyond);
  }
  int64_t kv_dim(int64_t layer_idx) const {
    const LayerHeads heads = heads_of(layer_idx);
    return heads.num_kv_heads * heads.head_dim;
  }
  int64_t kv_dim() const { return Widest(num_kv_heads * head_dim, &ModelConfig::kv_dim); }
  // Returns how many of K's dimensions are also V; 0: V is stored beside K.
  int64_t values_in_key() const { return mla.kv_lora_rank; }
  int64_t value_dim(int64_t layer_idx) const {
    const LayerHeads heads = heads_of(layer_idx);
    return mla.is_on() ? mla.kv_lora_rank : heads.value_dim > 0 ? heads.value_dim : heads.head_dim;
  }
  int64_t v_dim(int64_t layer_idx) const {
    return mla.is_on() ? 0 : heads_of(layer_idx).num_kv_heads * value_dim(layer_idx);
  }
  int64_t v_dim() const { return mla.is_on() ? 0 : Widest(num_kv_heads * head_dim, &ModelConfig::v_dim); }
  int64_t attended_dim(int64_t layer_idx) const { return num_heads_of(layer_idx) * value_dim(layer_idx); }
  int64_t attended_dim() const {
    return mla.is_on() ? num_heads * mla.kv_lora_rank : Widest(num_heads * head_dim, &ModelConfig::attended_dim);
  }
  // Returns how many numbers gate what attention of a layer returns.
  int64_t gate_dim(int64_t layer_idx) const {
    if (!attention_gate) return 0;
    return gate_is_per_head ? num_heads_of(layer_idx) : attended_dim(layer_idx);
  }
  int64_t gate_dim() const {
    if (!attention_gate) return 0;
    return Widest(gate_is_per_head ? num_heads : attended_dim(), &ModelConfig::gate_dim);
  }
  bool has_sinks(int64_t layer_idx) const {
    return attention_sinks && (!sinks_need_window || window_of(layer_idx) > 0);
  }
  // Returns the rule of a layer's experts, and of its other FFNs.
  GluRule expert_glu(int64_t layer_idx) const { return Limited(expert_limits, layer_idx); }
  GluRule ffn_glu(int64_t layer_idx) const { return Limited(ffn_limits, layer_idx); }
  int64_t num_stored_experts() const { return num_experts - num_identity_experts; }
  bool takes_deferred(int64_t layer_idx) const {
    return defers_experts && layer_idx > 0 && layer_has_experts[layer_idx - 1];
  }
  // Returns the width of the rows that experts read and return.
  int64_t expert_row_dim() const { return latent_dim > 0 ? latent_dim : model_dim; }
  int64_t rope_of(int64_t layer_idx) const { return layer_rope.empty() ? 0 : layer_rope[layer_idx]; }
  // Returns how many of a head's dims rotate in a layer.
  int64_t rotary_dim_of(int64_t layer_idx) const {
    const int64_t idx = rope_of(layer_idx);
    return idx == kNoRope ? 0 : idx == 0 ? rope.rotary_dim : other_ropes[idx - 1].rotary_dim;
  }
  // Returns the number of angles of a position, for all of its RoPEs one after another; first_angle_of() is where a
  // layer's begin.
  int64_t num_angles() const { return AnglesBefore(static_cast<int64_t>(other_ropes.size()) + 1); }
  int64_t first_angle_of(int64_t layer_idx) const { return AnglesBefore(rope_of(layer_idx)); }
  // Returns how many positions a position sees in a layer; 0: no limit.
  int64_t window_of(int64_t layer_idx) const {
    return layer_has_window.empty() || layer_has_window[layer_idx] ? sliding_window : 0;
  }
  // Returns the first position that a position sees in a layer with chunks; 0 in others.
  int64_t first_of_chunk(int64_t layer_idx, int64_t pos) const {
    const int64_t chunk = windows_are_chunks ? window_of(layer_idx) : 0;
    return chunk > 0 ? pos / chunk * chunk : 0;
  }
  bool has_query_scale(int64_t layer_idx) const {
    return query_scale.is_on() && (query_scale.is_for_rotating || rope_of(layer_idx) == kNoRope);
  }
  int64_t NumRecurrentBefore(int64_t layer_idx) const;
  int64_t NumWithKvBefore(int64_t layer_idx) const;
  int64_t num_moe_layers() const;
  std::vector<int64_t> moe_layers() const;

 private:
  int64_t Widest(int64_t of_all, int64_t (ModelConfig::*dim)(int64_t) const) const;
  int64_t AnglesBefore(int64_t rope_idx) const;
  GluRule Limited(const std::vector<float>& limits, int64_t layer_idx) const {
    GluRule rule = glu;
    if (!limits.empty()) rule.output_limit = limits[layer_idx];
    return rule;
  }
};

// Reads config.json and generation_config.json. Every failure is kModel and names file and field.
absl::StatusOr<ModelConfig> LoadModelConfig(const ModelFolder& folder);

// Parses the text of config.json in the same way.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json);

// Reads the fields of config.json from any source.
class ConfigReader;
absl::StatusOr<ModelConfig> ReadModelConfig(ConfigReader& reader, const Family& family);

}  // namespace penstock
