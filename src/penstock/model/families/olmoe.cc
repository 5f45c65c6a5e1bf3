// OLMoE (Muennighoff et al. 2024): experts in every layer, RMSNorm over all of q and k, optional clamp of q, k, v.
// FlexOlmo (Ai2 2025): the outputs of attention and experts are normed, not their inputs.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

void ReadOlmoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.router.renormalises = reader.BoolOr("norm_topk_prob", false);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.clip_qkv = static_cast<float>(reader.NumberOr("clip_qkv", 0.0, 1e-6, 1e6));
  config.qk_norm = QkNorm::kWhole;
}

constexpr StoredName kFlexNames[] = {
    {"attention_output_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_output_norm.weight", "post_feedforward_layernorm.weight"},
};

void ReadFlexConfig(ConfigReader& reader, ModelConfig& config) {
  ReadOlmoeConfig(reader, config);
  config.input_norms = false;
  config.output_norms = OutputNorms::kAll;
}

}  // namespace

const Family kOlmoe = {
    .name = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .gguf = {.architecture = "olmoe"},
    .read_config = ReadOlmoeConfig,
};

const Family kFlexOlmo = {
    .name = "flex_olmo",
    .architecture = "FlexOlmoForCausalLM",
    .default_max_positions = 4096,
    .default_rope_theta = 5e5,
    .default_norm_eps = 1e-6,
    .stored_names = kFlexNames,
    .default_topk = 5,
    .read_config = ReadFlexConfig,
};

}  // namespace penstock
