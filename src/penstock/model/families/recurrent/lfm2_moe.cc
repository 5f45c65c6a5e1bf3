// LFM2-MoE (Liquid AI 2025): gated short convolutions in most layers, attention in the others, and sigmoid routers. The
// first layers have a dense FFN.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kLfm2MoeFieldNames[] = {{"rms_norm_eps", "norm_eps"},
                                            {"tie_word_embeddings", "tie_embedding"},
                                            {"first_k_dense_replace", "num_dense_layers"}};

constexpr StoredName kLfm2MoeStoredNames[] = {
    {"model.norm.weight", "model.embedding_norm.weight"},
    {"input_layernorm.weight", "operator_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"self_attn.o_proj.weight", "self_attn.out_proj.weight"},
    {"self_attn.q_norm.weight", "self_attn.q_layernorm.weight"},
    {"self_attn.k_norm.weight", "self_attn.k_layernorm.weight"},
    {"linear_attn.k_proj.weight", "conv.in_proj.weight"},
    {"linear_attn.gate_proj.weight", "conv.in_proj.weight"},
    {"linear_attn.v_proj.weight", "conv.in_proj.weight"},
    {.name = "linear_attn.conv.weight", .stored = "conv.conv.weight", .is_transposed = true},
    {"linear_attn.o_proj.weight", "conv.out_proj.weight"},
    {"mlp.gate_proj.weight", "feed_forward.w1.weight"},
    {"mlp.up_proj.weight", "feed_forward.w3.weight"},
    {"mlp.down_proj.weight", "feed_forward.w2.weight"},
    {"mlp.gate.weight", "feed_forward.gate.weight"},
    {"mlp.gate.e_score_correction_bias", "feed_forward.expert_bias"},
    {"mlp.experts.{expert}.gate_proj.weight", "feed_forward.experts.{expert}.w1.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "feed_forward.experts.{expert}.w3.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "feed_forward.experts.{expert}.w2.weight"},
};

constexpr StoredName kLfm2MoeGgufNames[] = {
    {"model.norm.weight", "token_embd_norm.weight"},
    {"linear_attn.k_proj.weight", "shortconv.in_proj.weight"},
    {"linear_attn.gate_proj.weight", "shortconv.in_proj.weight"},
    {"linear_attn.v_proj.weight", "shortconv.in_proj.weight"},
    {.name = "linear_attn.conv.weight", .stored = "shortconv.conv.weight", .is_transposed = true},
    {"linear_attn.o_proj.weight", "shortconv.out_proj.weight"},
};

void ReadLfm2MoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.IntOr("num_experts", 32, 1, kMaxExperts);
  config.expert_dim = reader.IntOr("moe_intermediate_size", 1792, 1, kMaxModelDim);
  config.dense_ffn_dim = reader.IntOr("intermediate_size", 7168, 1, kMaxModelDim);
  ReadDenseFirstLayers(reader, config, 2);
  config.tie_embeddings = reader.BoolOr("tie_word_embeddings", true);
  config.qk_norm = QkNorm::kPerHead;
  config.router = {.scoring = RouterRule::Scoring::kSigmoid,
                   .renormalises = reader.BoolOr("norm_topk_prob", true),
                   .scale = static_cast<float>(reader.NumberOr("routed_scaling_factor", 1, 1e-6, 1e6))};
  config.router_selection_bias = reader.BoolOr("use_expert_bias", true);
  config.recurrent = {.num_key_heads = 1,
                      .num_value_heads = 1,
                      .value_dim = config.model_dim,
                      .conv_width = reader.IntOr("conv_L_cache", 3, 2, 16),
                      .kind = RecurrentKind::kShortConv};
  if (reader.BoolOr("conv_bias", false)) reader.Fail("conv_bias", "false", "true");
  constexpr LayerName kNames[] = {{"conv", 1}, {"full_attention", 0}};
  const std::vector<int> kinds = ReadLayerNames(reader, "layer_types", kNames, config.num_layers);
  if (kinds.empty()) reader.Fail("layer_types", "a list of 'conv' and 'full_attention'", "nothing");
  config.layer_is_recurrent.assign(kinds.begin(), kinds.end());
}

}  // namespace

const Family kLfm2Moe = {
    .name = "lfm2_moe",
    .architecture = "Lfm2MoeForCausalLM",
    .default_max_positions = 128'000,
    .default_rope_theta = 1e6,
    .default_norm_eps = 1e-5,
    .field_names = kLfm2MoeFieldNames,
    .stored_names = kLfm2MoeStoredNames,
    .default_topk = 4,
    .gguf = {.architecture = "lfm2moe", .stored_names = kLfm2MoeGgufNames},
    .read_config = ReadLfm2MoeConfig,
};

}  // namespace penstock
