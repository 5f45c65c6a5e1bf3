// Qwen3-MoE (Yang et al. 2025): RMSNorm on each head of q and k; some layers may have a dense FFN instead of experts.
// Qwen3-VL and Qwen3-Omni (Qwen 2025) without their towers for images and sound, and without what speaks: for text, the
// three parts of a position are equal, so RoPE is the usual one.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

// Published folders say num_experts; transformers 5 saves the same number as num_local_experts.
constexpr FieldName kQwen3MoeFieldNames[] = {{"num_experts", "num_local_experts"}};

void ReadQwen3MoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.router.renormalises = reader.BoolOr("norm_topk_prob", false);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  if (reader.BoolOr("use_sliding_window", false)) ReadSlidingWindow(reader, config, 4096);
  ReadSparseLayers(reader, config);
}

constexpr std::string_view kVlPrefixes[] = {"model.visual."};
constexpr std::string_view kThinkerPrefixes[] = {"audio_tower.", "visual."};
constexpr std::string_view kOmniPrefixes[] = {"thinker.audio_tower.", "thinker.visual.", "talker.", "code2wav."};

// Published checkpoints have [inputs, outputs] of each expert, and transformers saves [outputs, inputs].
constexpr StoredName kVlNames[] = {
    {.name = "mlp.experts.{expert}.gate_proj.weight", .stored = "mlp.experts.gate_up_proj", .may_be_transposed = true},
    {.name = "mlp.experts.{expert}.up_proj.weight", .stored = "mlp.experts.gate_up_proj", .may_be_transposed = true},
    {.name = "mlp.experts.{expert}.down_proj.weight", .stored = "mlp.experts.down_proj", .may_be_transposed = true},
    {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
    {"model.norm.weight", "model.language_model.norm.weight"},
};
constexpr StoredName kOmniNames[] = {
    {"model.embed_tokens.weight", "thinker.model.embed_tokens.weight"},
    {"model.norm.weight", "thinker.model.norm.weight"},
    {"lm_head.weight", "thinker.lm_head.weight"},
};

// Weights are always divided by their sum.
void ReadMultimodalConfig(ConfigReader& reader, ModelConfig& config) {
  ReadQwen3MoeConfig(reader, config);
  if (!reader.BoolOr("norm_topk_prob", true)) reader.Fail("norm_topk_prob", "true", "false");
  config.router.renormalises = true;
}

constexpr Family Multimodal(std::string_view name, std::string_view architecture, std::string_view config_object) {
  return {.name = name,
          .architecture = architecture,
          .config_object = config_object,
          .default_rope_theta = 5e5,
          .default_norm_eps = 1e-6,
          .field_names = kQwen3MoeFieldNames,
          .read_config = ReadMultimodalConfig};
}

}  // namespace

const Family kQwen3Moe = {
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .default_norm_eps = 1e-6,
    .field_names = kQwen3MoeFieldNames,
    .gguf = {.architecture = "qwen3moe"},
    .read_config = ReadQwen3MoeConfig,
};

const Family kQwen3VlMoe = [] {
  Family family = Multimodal("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "text_config");
  family.layer_prefix = "model.language_model.layers.{layer}.";
  family.stored_names = kVlNames;
  family.ignored_prefixes = kVlPrefixes;
  family.gguf = {.architecture = "qwen3vlmoe"};
  return family;
}();

// The part of Qwen3-Omni that understands, by itself.
const Family kQwen3OmniThinker = [] {
  Family family = Multimodal("qwen3_omni_moe_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration", "text_config");
  family.ignored_prefixes = kThinkerPrefixes;
  return family;
}();

const Family kQwen3OmniMoe = [] {
  Family family = Multimodal("qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", "thinker_config.text_config");
  family.layer_prefix = "thinker.model.layers.{layer}.";
  family.stored_names = kOmniNames;
  family.ignored_prefixes = kOmniPrefixes;
  return family;
}();

}  // namespace penstock
