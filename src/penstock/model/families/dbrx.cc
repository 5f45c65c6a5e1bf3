// DBRX (Databricks 2024): LayerNorm without biases; q, k and v in one matrix and clamped; all experts of a layer in
// three matrices.
#include <algorithm>
#include <iterator>

#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr FieldName kDbrxFieldNames[] = {
    {"hidden_size", "d_model"},
    {"num_hidden_layers", "n_layers"},
    {"num_attention_heads", "n_heads"},
    {"num_key_value_heads", "attn_config.kv_n_heads"},
    {"max_position_embeddings", "max_seq_len"},
    {"rope_theta", "attn_config.rope_theta"},
    {"clip_qkv", "attn_config.clip_qkv"},
    {"num_experts", "ffn_config.moe_num_experts"},
    {"num_experts_per_tok", "ffn_config.moe_top_k"},
    {"expert_dim", "ffn_config.ffn_hidden_size"},
    {"hidden_act", "ffn_config.ffn_act_fn.name"},
    {"moe_normalize_expert_weights", "ffn_config.moe_normalize_expert_weights"},
};

constexpr StoredName kDbrxStoredNames[] = {
    {"model.embed_tokens.weight", "transformer.wte.weight"},
    {"model.norm.weight", "transformer.norm_f.weight"},
    {"input_layernorm.weight", "norm_attn_norm.norm_1.weight"},
    {"self_attn.q_proj.weight", "norm_attn_norm.attn.Wqkv.weight"},
    {"self_attn.k_proj.weight", "norm_attn_norm.attn.Wqkv.weight"},
    {"self_attn.v_proj.weight", "norm_attn_norm.attn.Wqkv.weight"},
    {"self_attn.o_proj.weight", "norm_attn_norm.attn.out_proj.weight"},
    {"post_attention_layernorm.weight", "norm_attn_norm.norm_2.weight"},
    {"mlp.gate.weight", "ffn.router.layer.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "ffn.experts.mlp.w1"},
    {"mlp.experts.{expert}.up_proj.weight", "ffn.experts.mlp.v1"},
    {"mlp.experts.{expert}.down_proj.weight", "ffn.experts.mlp.w2", /*is_transposed=*/true},
};

void ReadDbrxConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("expert_dim", 1, kMaxModelDim);
  config.norm = Norm::kLayer;
  config.norm_eps = 1e-5f;
  config.clip_qkv = static_cast<float>(reader.NumberOr("clip_qkv", 0.0, 1e-6, 1e6));
  // The p of the norm that divides the top-k weights. Null: the weights are not divided. Absent: p is 1.
  const char* const fields[] = {"moe_normalize_expert_weights", "ffn_config.moe_normalize_expert_weights"};
  const bool is_given =
      std::any_of(std::begin(fields), std::end(fields), [&](auto field) { return reader.Has(field); });
  config.router.renormalises = !is_given || reader.Find(fields[0]) != nullptr;
  if (reader.NumberOr("moe_normalize_expert_weights", 1, 0, 1e6) != 1) {
    reader.Fail("moe_normalize_expert_weights", "1 or null", "another norm");
  }
}

}  // namespace

const Family kDbrx = {
    .name = "dbrx",
    .architecture = "DbrxForCausalLM",
    .comes_with_code = true,
    .field_names = kDbrxFieldNames,
    .layer_prefix = "transformer.blocks.{layer}.",
    .stored_names = kDbrxStoredNames,
    .gguf = {.architecture = "dbrx"},
    .read_config = ReadDbrxConfig,
};

}  // namespace penstock
