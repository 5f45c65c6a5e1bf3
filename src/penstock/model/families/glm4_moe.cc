// GLM-4.5 and 4.6 (Zeng et al. 2025): the router of DeepSeek-V3, RoPE on half of each head, optional QK norm. GLM-4.5V
// without its vision tower: for text, the three parts of a position are equal, so RoPE is the usual one.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kGlm4MoeFieldNames[] = {{"num_experts", "n_routed_experts"},
                                            {"num_experts", "num_local_experts"},
                                            {"num_nextn_predict_layers", "num_mtp_layers"}};

constexpr StoredName kGlm4MoeStoredNames[] = {
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
};

constexpr std::string_view kGlm4MoeVisionPrefixes[] = {"model.visual."};

constexpr StoredName kGlm4MoeVisionNames[] = {
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
    {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
    {"model.norm.weight", "model.language_model.norm.weight"},
};

void ReadGlm4MoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 1, 0, 64) * config.expert_dim;
  config.num_mtp_layers = reader.IntOr("num_nextn_predict_layers", 1, 0, kMaxLayers);
  config.qkv_bias = reader.BoolOr("attention_bias", false);
  if (reader.BoolOr("use_qk_norm", false)) config.qk_norm = QkNorm::kPerHead;
  ReadNoauxRouter(reader, config);
  ReadDenseFirstLayers(reader, config, 1);
}

void ReadGlm4MoeVisionConfig(ConfigReader& reader, ModelConfig& config) {
  ReadGlm4MoeConfig(reader, config);
  config.qkv_bias = reader.BoolOr("attention_bias", true);
}

void ReadSolarConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 1, 0, 64) * config.expert_dim;
  config.qkv_bias = reader.BoolOr("attention_bias", false);
  ReadNoauxRouter(reader, config);
}

}  // namespace

const Family kGlm4Moe = {
    .name = "glm4_moe",
    .architecture = "Glm4MoeForCausalLM",
    .default_partial_rotary = 0.5,
    .takes_partial_rotary = true,
    .field_names = kGlm4MoeFieldNames,
    .stored_names = kGlm4MoeStoredNames,
    .gguf = {.architecture = "glm4moe"},
    .read_config = ReadGlm4MoeConfig,
};

const Family kGlm4vMoe = {
    .name = "glm4v_moe",
    .architecture = "Glm4vMoeForConditionalGeneration",
    .config_object = "text_config",
    .default_partial_rotary = 0.5,
    .takes_partial_rotary = true,
    .field_names = kGlm4MoeFieldNames,
    .layer_prefix = "model.language_model.layers.{layer}.",
    .stored_names = kGlm4MoeVisionNames,
    .ignored_prefixes = kGlm4MoeVisionPrefixes,
    .read_config = ReadGlm4MoeVisionConfig,
};

// Solar Open (Upstage 2025): the same router, experts in all layers.
const Family kSolarOpen = {
    .name = "solar_open",
    .architecture = "SolarOpenForCausalLM",
    .default_head_dim = 128,
    .default_rope_theta = 1e6,
    .takes_partial_rotary = true,
    .field_names = kGlm4MoeFieldNames,
    .stored_names = kGlm4MoeStoredNames,
    .read_config = ReadSolarConfig,
};

}  // namespace penstock
