// LongCat-Flash (Meituan 2025): MLA; two layers share a number. The first has a dense FFN and experts, whose sum is
// added behind the second. Experts beyond `n_routed_experts` return their input.
#include <algorithm>
#include <cmath>

#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kLongcatFlashFieldNames[] = {{"num_hidden_layers", "num_layers"},
                                                 {"num_experts_per_tok", "moe_topk"}};

constexpr StoredName kLongcatFlashStoredNames[] = {
    {"input_layernorm.weight", "input_layernorm.{part}.weight"},
    {"post_attention_layernorm.weight", "post_attention_layernorm.{part}.weight"},
    {"self_attn.q_a_proj.weight", "self_attn.{part}.q_a_proj.weight"},
    {"self_attn.q_a_proj.bias", "self_attn.{part}.q_a_proj.bias"},
    {"self_attn.q_a_layernorm.weight", "self_attn.{part}.q_a_layernorm.weight"},
    {"self_attn.q_b_proj.weight", "self_attn.{part}.q_b_proj.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "self_attn.{part}.kv_a_proj_with_mqa.weight"},
    {"self_attn.kv_a_proj_with_mqa.bias", "self_attn.{part}.kv_a_proj_with_mqa.bias"},
    {"self_attn.kv_a_layernorm.weight", "self_attn.{part}.kv_a_layernorm.weight"},
    {"self_attn.k_up_proj.weight", "self_attn.{part}.kv_b_proj.weight", /*is_transposed=*/true},
    {"self_attn.v_up_proj.weight", "self_attn.{part}.kv_b_proj.weight"},
    {"self_attn.o_proj.weight", "self_attn.{part}.o_proj.weight"},
    {"self_attn.o_proj.bias", "self_attn.{part}.o_proj.bias"},
    {"mlp.gate.weight", "mlp.router.classifier.weight"},
    {"mlp.gate.e_score_correction_bias", "mlp.router.e_score_correction_bias"},
    {"mlp.shared_expert.gate_proj.weight", "mlps.0.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlps.0.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlps.0.down_proj.weight"},
    {"mlp.gate_proj.weight", "mlps.1.gate_proj.weight"},
    {"mlp.up_proj.weight", "mlps.1.up_proj.weight"},
    {"mlp.down_proj.weight", "mlps.1.down_proj.weight"},
};
constexpr std::string_view kLongcatFlashMtpPrefixes[] = {"model.mtp."};

// The config counts pairs of layers.
void CountLayers(json::object& config) {
  const json::value* pairs = config.if_contains("num_layers");
  if (pairs == nullptr || !pairs->is_int64()) return;
  config["num_hidden_layers"] = 2 * std::clamp<int64_t>(pairs->get_int64(), 0, kMaxLayers);
}

void ReadLongcatFlashConfig(ConfigReader& reader, ModelConfig& config) {
  if (config.num_layers % 2 != 0) reader.FailRelation("an odd number of layers: expected pairs of them");
  const int64_t num_stored = reader.IntOr("n_routed_experts", 512, 1, kMaxExperts / 2);
  config.num_identity_experts = reader.IntOr("zero_expert_num", 256, 0, kMaxExperts / 2);
  config.num_experts = num_stored + config.num_identity_experts;
  const std::string kind = reader.StringOr("zero_expert_type", "identity");
  if (kind != "identity") reader.Fail("zero_expert_type", "'identity'", fmt::format("'{}'", kind));
  config.expert_dim = reader.IntOr("expert_ffn_hidden_size", 2048, 1, kMaxModelDim);
  config.dense_ffn_dim = config.shared_ffn_dim = reader.IntOr("ffn_hidden_size", 12288, 1, kMaxModelDim);
  config.defers_experts = true;
  for (int64_t layer_idx = 1; layer_idx < config.num_layers; layer_idx += 2) {
    config.layer_has_experts[layer_idx] = false;
  }
  config.router = {.renormalises = false,
                   .scale = static_cast<float>(reader.NumberOr("routed_scaling_factor", 6.0, 1e-6, 1e6))};
  config.router_selection_bias = true;
  for (const char* field : {"router_bias", "norm_topk_prob"}) {
    if (reader.BoolOr(field, false)) reader.Fail(field, "false", "true");
  }
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  ReadMla(reader, config);
  config.rope.is_interleaved = true;
  const int64_t q_rank = reader.Int("q_lora_rank", 1, kMaxModelDim),
                head_dim = config.mla.nope_dim + config.mla.rope_dim;
  reader.IntOr("qk_head_dim", head_dim, head_dim, head_dim);
  for (const char* field : {"mla_scale_q_lora", "mla_scale_kv_lora"}) {
    if (!reader.BoolOr(field, true)) reader.Fail(field, "true", "false");
  }
  const auto scale_of = [&](int64_t rank) {
    return std::sqrt(static_cast<float>(config.model_dim) / static_cast<float>(rank));
  };
  config.attention_scale *= scale_of(q_rank);
  config.mla.kv_scale = scale_of(config.mla.kv_lora_rank);
}

}  // namespace

const Family kLongcatFlash = {
    .name = "longcat_flash",
    .architecture = "LongcatFlashForCausalLM",
    .comes_with_code = true,
    .default_max_positions = 131072,
    .default_rope_theta = 1e7,
    .default_norm_eps = 1e-5,
    .yarn_scales_attention = true,
    .field_names = kLongcatFlashFieldNames,
    .layers_of_number = 2,
    .stored_names = kLongcatFlashStoredNames,
    .ignored_prefixes = kLongcatFlashMtpPrefixes,
    .default_topk = 12,
    .rewrite = CountLayers,
    .read_config = ReadLongcatFlashConfig,
};

}  // namespace penstock
