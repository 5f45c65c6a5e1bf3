// AFMoE (Arcee 2025; Trinity): norms before and behind attention and FFNs, a gate of attention's output, sigmoid
// scores. Layers with a window alternate with layers that see all positions and use no RoPE. Kolibri 1 (Aleph Alpha
// 2026): the same norms and layers, with a choice by logits.
#include <cmath>

#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kAfmoeFieldNames[] = {{"first_k_dense_replace", "num_dense_layers"}};
constexpr FieldName kKolibriFields[] = {{"num_experts", "num_local_experts"}};

constexpr StoredName kAfmoeStoredNames[] = {
    {"attention_output_norm.weight", "post_attention_layernorm.weight"},
    {"post_attention_layernorm.weight", "pre_mlp_layernorm.weight"},
    {"ffn_output_norm.weight", "post_mlp_layernorm.weight"},
    {"mlp.gate.weight", "mlp.router.gate.weight"},
    {"mlp.gate.e_score_correction_bias", "mlp.expert_bias"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
};

constexpr StoredName kKolibriNames[] = {
    {"attention_output_norm.weight", "post_attn_norm.weight"},
    {"ffn_output_norm.weight", "post_ffn_norm.weight"},
    {"mlp.gate.e_score_correction_bias", "moe.router.expert_bias"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
};

// Reads what both have: in each period of layers, the last one sees all positions.
void ReadAfmoeCommon(ConfigReader& reader, ModelConfig& config, int64_t default_window, int64_t period) {
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.qk_norm = QkNorm::kPerHead;
  config.output_norms = OutputNorms::kAll;
  config.router_selection_bias = true;
  ReadSlidingWindow(reader, config, default_window);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_window.push_back((layer_idx + 1) % period != 0);
  }
  ReadLayerTypes(reader, config);
  RotateWithWindowOnly(config);
}

void ReadAfmoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.IntOr("num_experts", 64, 1, kMaxExperts);
  ReadAfmoeCommon(reader, config, 1024, reader.IntOr("global_attn_every_n_layers", 4, 1, kMaxLayers));
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("num_shared_experts", 2, 0, 64) * config.expert_dim;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.attention_gate = true;
  config.router = {.scoring = RouterRule::Scoring::kSigmoid,
                   .scale = static_cast<float>(reader.NumberOr("route_scale", 1, 1e-6, 1e6))};
  if (reader.BoolOr("mup_enabled", false)) {
    config.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.model_dim)));
  }
  ReadDenseFirstLayers(reader, config, 1);
}

void ReadKolibriConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  ReadAfmoeCommon(reader, config, 513, 5);
  config.shared_ffn_dim = reader.IntOr("shared_expert_intermediate_size", 512, 1, kMaxModelDim);
  config.router = {.scoring = RouterRule::Scoring::kSigmoid,
                   .renormalises = reader.BoolOr("norm_topk_prob", false),
                   .chooses_by_logits = true};
}

}  // namespace

const Family kAfmoe = {
    .name = "afmoe",
    .architecture = "AfmoeForCausalLM",
    .comes_with_code = true,
    .default_head_dim = 128,
    .field_names = kAfmoeFieldNames,
    .stored_names = kAfmoeStoredNames,
    .default_topk = 6,
    .read_config = ReadAfmoeConfig,
};

const Family kKolibri1 = {
    .name = "kolibri1",
    .architecture = "Kolibri1ForCausalLM",
    .default_head_dim = 128,
    .default_norm_eps = 1e-6,
    .field_names = kKolibriFields,
    .stored_names = kKolibriNames,
    .read_config = ReadKolibriConfig,
};

}  // namespace penstock
