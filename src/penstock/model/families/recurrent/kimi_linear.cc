// Kimi Linear (Moonshot 2025): Kimi Delta Attention in most layers, MLA without positions in the others, and experts as
// in DeepSeek-V3.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kKimiLinearFieldNames[] = {{"max_position_embeddings", "model_max_length"},
                                               {"num_experts", "num_local_experts"},
                                               {"num_experts_per_tok", "num_experts_per_token"},
                                               {"n_shared_experts", "num_shared_experts"},
                                               {"norm_topk_prob", "moe_renormalize"},
                                               {"n_group", "num_expert_group"},
                                               {"linear_head_dim", "linear_attn_config.head_dim"},
                                               {"linear_num_heads", "linear_attn_config.num_heads"},
                                               {"linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size"}};

constexpr StoredName kKimiLinearStoredNames[] = {
    {"self_attn.k_up_proj.weight", "self_attn.kv_b_proj.weight", /*is_transposed=*/true},
    {"self_attn.v_up_proj.weight", "self_attn.kv_b_proj.weight"},
    {"linear_attn.q_proj.weight", "self_attn.q_proj.weight"},
    {"linear_attn.k_proj.weight", "self_attn.k_proj.weight"},
    {"linear_attn.v_proj.weight", "self_attn.v_proj.weight"},
    {"linear_attn.beta_proj.weight", "self_attn.b_proj.weight"},
    {"linear_attn.decay_a_proj.weight", "self_attn.f_a_proj.weight"},
    {"linear_attn.decay_proj.weight", "self_attn.f_b_proj.weight"},
    {"linear_attn.gate_a_proj.weight", "self_attn.g_a_proj.weight"},
    {"linear_attn.gate_proj.weight", "self_attn.g_b_proj.weight"},
    {.name = "linear_attn.conv.weight", .stored = "self_attn.q_conv1d.weight", .is_transposed = true},
    {.name = "linear_attn.conv_k.weight", .stored = "self_attn.k_conv1d.weight", .is_transposed = true},
    {.name = "linear_attn.conv_v.weight", .stored = "self_attn.v_conv1d.weight", .is_transposed = true},
    {"linear_attn.decay_bias", "self_attn.dt_bias"},
    {"linear_attn.decay_log", "self_attn.A_log"},
    {"linear_attn.norm.weight", "self_attn.o_norm.weight"},
    {"linear_attn.o_proj.weight", "self_attn.o_proj.weight"},
    // Published checkpoints call a dense FFN mlp; transformers saves it under the name of experts.
    {"mlp.gate_proj.weight", "mlp.gate_proj.weight"},
    {"mlp.up_proj.weight", "mlp.up_proj.weight"},
    {"mlp.down_proj.weight", "mlp.down_proj.weight"},
    {"mlp.gate_proj.weight", "block_sparse_moe.gate_proj.weight"},
    {"mlp.up_proj.weight", "block_sparse_moe.up_proj.weight"},
    {"mlp.down_proj.weight", "block_sparse_moe.down_proj.weight"},
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"mlp.gate.e_score_correction_bias", "block_sparse_moe.gate.e_score_correction_bias"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.experts.{expert}.w1.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.experts.{expert}.w3.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.experts.{expert}.w2.weight"},
    {"mlp.shared_expert.gate_proj.weight", "block_sparse_moe.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "block_sparse_moe.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "block_sparse_moe.shared_experts.down_proj.weight"},
};

constexpr StoredName kKimiLinearGgufNames[] = {
    {"linear_attn.q_proj.weight", "attn_q.weight"},
    {"linear_attn.k_proj.weight", "attn_k.weight"},
    {"linear_attn.v_proj.weight", "attn_v.weight"},
    {"linear_attn.decay_a_proj.weight", "ssm_f_a.weight"},
    {"linear_attn.decay_proj.weight", "ssm_f_b.weight"},
    {"linear_attn.gate_a_proj.weight", "ssm_g_a.weight"},
    {"linear_attn.gate_proj.weight", "ssm_g_b.weight"},
    {.name = "linear_attn.conv.weight", .stored = "ssm_conv1d_q.weight", .is_transposed = true},
    {.name = "linear_attn.conv_k.weight", .stored = "ssm_conv1d_k.weight", .is_transposed = true},
    {.name = "linear_attn.conv_v.weight", .stored = "ssm_conv1d_v.weight", .is_transposed = true},
    {"linear_attn.o_proj.weight", "attn_output.weight"},
};

// Reads `layer_types`, or else the lists of `linear_attn_config`, whose numbers begin at 1.
void ReadKimiLinearLayers(ConfigReader& reader, ModelConfig& config) {
  constexpr LayerName kNames[] = {{"linear_attention", 1}, {"full_attention", 0}};
  const std::vector<int> kinds = ReadLayerNames(reader, "layer_types", kNames, config.num_layers);
  config.layer_is_recurrent.assign(kinds.begin(), kinds.end());
  if (!kinds.empty()) return;
  const json::value* lists = reader.Find("linear_attn_config");
  const json::value* full =
      lists == nullptr || !lists->is_object() ? nullptr : lists->get_object().if_contains("full_attn_layers");
  if (full == nullptr) {
    for (int64_t i = 0; i < config.num_layers; ++i) config.layer_is_recurrent.push_back(i == 0 || i % 4 != 0);
    return;
  }
  config.layer_is_recurrent.assign(config.num_layers, true);
  const json::array* numbers = full->if_array();
  for (size_t i = 0; numbers != nullptr && i < numbers->size(); ++i) {
    const int64_t* number = (*numbers)[i].if_int64();
    if (number == nullptr || *number < 1 || *number > config.num_layers) {
      numbers = nullptr;
    } else {
      config.layer_is_recurrent[*number - 1] = false;
    }
  }
  if (numbers == nullptr) {
    reader.Fail("linear_attn_config", "full_attn_layers with numbers from 1 to num_hidden_layers",
                json::serialize(*full).substr(0, 60));
  }
}

void ReadKimiLinearConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.tie_embeddings = false;  // whatever tie_word_embeddings says, as in transformers
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 1, 1, 64) * config.expert_dim;
  ReadDenseFirstLayers(reader, config, 1);
  if (reader.Find("mlp_layer_types") != nullptr) config.layer_has_experts.assign(config.num_layers, true);
  ReadMlpLayerTypes(reader, config);
  ReadNoauxRouter(reader, config, {.scale = 2.446});
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  ReadMla(reader, config);
  const int64_t num_heads = reader.IntOr("linear_num_heads", 32, 1, kMaxHeads);
  const int64_t head_dim = reader.IntOr("linear_head_dim", 128, 1, kMaxHeadDim);
  config.recurrent = {.num_key_heads = num_heads,
                      .num_value_heads = num_heads,
                      .key_dim = head_dim,
                      .value_dim = head_dim,
                      .conv_width = reader.IntOr("linear_conv_kernel_dim", 4, 2, 16),
                      .kind = RecurrentKind::kKimiDelta,
                      .rank = head_dim};
  ReadKimiLinearLayers(reader, config);
}

}  // namespace

const Family kKimiLinear = {
    .name = "kimi_linear",
    .architecture = "KimiLinearForCausalLM",
    .comes_with_code = true,
    .default_norm_eps = 1e-5,
    .layer_ropes = LayerRopes::kNone,
    .field_names = kKimiLinearFieldNames,
    .stored_names = kKimiLinearStoredNames,
    .gguf = {.architecture = "kimi-linear", .stored_names = kKimiLinearGgufNames},
    .read_config = ReadKimiLinearConfig,
};

}  // namespace penstock
