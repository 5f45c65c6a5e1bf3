// Ling 3 (inclusionAI 2026): Kimi Delta Attention with a floor of its decays in most layers, MLA with a gate for each
// head in the others, and experts as in DeepSeek-V3.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kBailingHybridFieldNames[] = {{"max_position_embeddings", "model_max_length"},
                                                  {"num_experts", "num_local_experts"},
                                                  {"num_experts_per_tok", "num_experts_per_token"},
                                                  {"n_shared_experts", "num_shared_experts"},
                                                  {"norm_topk_prob", "moe_renormalize"},
                                                  {"n_group", "num_expert_group"},
                                                  {"num_nextn_predict_layers", "num_mtp_layers"}};

constexpr StoredName kBailingHybridStoredNames[] = {
    {"self_attn.q_proj.weight", "attention.q_proj.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attention.kv_a_proj_with_mqa.weight"},
    {"self_attn.kv_a_proj_with_mqa.bias", "attention.kv_a_proj_with_mqa.bias"},
    {"self_attn.kv_a_layernorm.weight", "attention.kv_a_layernorm.weight"},
    {"self_attn.k_up_proj.weight", "attention.kv_b_proj.weight", /*is_transposed=*/true},
    {"self_attn.v_up_proj.weight", "attention.kv_b_proj.weight"},
    {"self_attn.gate_proj.weight", "attention.g_proj.weight"},
    {"self_attn.o_proj.weight", "attention.dense.weight"},
    {"self_attn.o_proj.weight", "attention.o_proj.weight"},
    {"self_attn.o_proj.bias", "attention.dense.bias"},
    {"self_attn.o_proj.bias", "attention.o_proj.bias"},
    {"linear_attn.q_proj.weight", "attention.q_proj.weight"},
    {"linear_attn.k_proj.weight", "attention.k_proj.weight"},
    {"linear_attn.v_proj.weight", "attention.v_proj.weight"},
    {"linear_attn.beta_proj.weight", "attention.b_proj.weight"},
    {"linear_attn.decay_proj.weight", "attention.f_proj.weight"},
    {"linear_attn.gate_proj.weight", "attention.g_proj.weight"},
    {.name = "linear_attn.conv.weight", .stored = "attention.q_conv1d.weight", .is_transposed = true},
    {.name = "linear_attn.conv_k.weight", .stored = "attention.k_conv1d.weight", .is_transposed = true},
    {.name = "linear_attn.conv_v.weight", .stored = "attention.v_conv1d.weight", .is_transposed = true},
    {"linear_attn.decay_bias", "attention.dt_bias"},
    {"linear_attn.decay_log", "attention.A_log"},
    {"linear_attn.norm.weight", "attention.o_norm.weight"},
    {"linear_attn.o_proj.weight", "attention.dense.weight"},
    {"linear_attn.o_proj.weight", "attention.o_proj.weight"},
    {"mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
    {"model.embed_tokens.weight", "model.word_embeddings.weight"},
};

void ReadRecurrent(ConfigReader& reader, ModelConfig& config) {
  // transformers saves another head_dim, and this one under a name of its own.
  const int64_t head_dim = reader.IntOr("linear_head_dim", config.head_dim, 1, kMaxHeadDim);
  config.recurrent = {.num_key_heads = config.num_heads,
                      .num_value_heads = config.num_heads,
                      .key_dim = head_dim,
                      .value_dim = head_dim,
                      .conv_width = reader.IntOr("short_conv_kernel_size", 4, 2, 16),
                      .kind = RecurrentKind::kKimiDelta};
  const auto floor = static_cast<float>(reader.NumberOr("kda_lower_bound", -5, -1e3, -1e-3));
  if (reader.BoolOr("kda_safe_gate", true)) config.recurrent.decay_floor = floor;
  const int64_t group = reader.IntOr("layer_group_size", 6, 1, kMaxLayers);
  constexpr LayerName kNames[] = {{"linear_attention", 1}, {"full_attention", 0}};
  const std::vector<int> kinds = ReadLayerNames(reader, "layer_types", kNames, config.num_layers);
  config.layer_is_recurrent.assign(kinds.begin(), kinds.end());
  for (int64_t layer_idx = std::ssize(kinds); layer_idx < config.num_layers; ++layer_idx) {
    config.layer_is_recurrent.push_back((layer_idx + 1) % group != 0);
  }
}

void ReadBailingHybridConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 1, 0, 64) * config.expert_dim;
  config.num_mtp_layers = reader.IntOr("num_nextn_predict_layers", 1, 0, kMaxLayers);
  config.tie_embeddings = false;  // whatever tie_word_embeddings says, as in transformers
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.attention_gate = config.gate_is_per_head = true;
  config.rope.is_interleaved = true;
  ReadDenseFirstLayers(reader, config, 2);
  if (reader.Find("mlp_layer_types") != nullptr) config.layer_has_experts.assign(config.num_layers, true);
  ReadMlpLayerTypes(reader, config);
  ReadNoauxRouter(reader, config, {.num_groups = 8, .num_topk_groups = 4, .scale = 2.5});
  ReadRecurrent(reader, config);
  ReadMla(reader, config);
  if (config.mla.q_lora_rank > 0) reader.Fail("q_lora_rank", "null", std::to_string(config.mla.q_lora_rank));
}

}  // namespace

const Family kBailingHybrid = {
    .name = "bailing_hybrid",
    .architecture = "BailingHybridForCausalLM",
    .comes_with_code = true,
    .default_head_dim = 128,
    .default_max_positions = 262144,
    .default_rope_theta = 6e6,
    .default_norm_eps = 1e-6,
    .yarn_scales_attention = true,
    .field_names = kBailingHybridFieldNames,
    .stored_names = kBailingHybridStoredNames,
    .default_topk = 8,
    .read_config = ReadBailingHybridConfig,
};

}  // namespace penstock
