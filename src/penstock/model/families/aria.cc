// Aria (Rhymes AI 2024) without its vision tower: softmax over the chosen experts, shared experts as one FFN.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr std::string_view kAriaVisionPrefixes[] = {"vision_tower.", "multi_modal_projector."};

constexpr FieldName kAriaFieldNames[] = {{"num_experts", "moe_num_experts"},
                                         {"num_experts_per_tok", "moe_topk"},
                                         {"n_shared_experts", "moe_num_shared_experts"}};

constexpr StoredName kAriaStoredNames[] = {
    {"mlp.gate.weight", "mlp.router.weight"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
    {.name = "mlp.experts.{expert}.gate_proj.weight", .stored = "mlp.experts.fc1.weight", .is_transposed = true},
    {.name = "mlp.experts.{expert}.up_proj.weight", .stored = "mlp.experts.fc1.weight", .is_transposed = true},
    {.name = "mlp.experts.{expert}.down_proj.weight", .stored = "mlp.experts.fc2.weight", .is_transposed = true},
    {"model.embed_tokens.weight", "language_model.model.embed_tokens.weight"},
    {"model.norm.weight", "language_model.model.norm.weight"},
    {"lm_head.weight", "language_model.lm_head.weight"},
};

void ReadAriaConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.IntOr("num_experts", 8, 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 2, 0, 64) * config.expert_dim;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  if (reader.BoolOr("mlp_bias", false)) reader.Fail("mlp_bias", "false", "true");
}

}  // namespace

const Family kAria = {
    .name = "aria",
    .architecture = "AriaForConditionalGeneration",
    .config_object = "text_config",
    .default_max_positions = 2048,
    .default_norm_eps = 1e-6,
    .field_names = kAriaFieldNames,
    .layer_prefix = "language_model.model.layers.{layer}.",
    .stored_names = kAriaStoredNames,
    .ignored_prefixes = kAriaVisionPrefixes,
    .default_topk = 2,
    .read_config = ReadAriaConfig,
};

}  // namespace penstock
