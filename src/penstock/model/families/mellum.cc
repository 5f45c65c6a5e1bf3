// Mellum 2 (JetBrains 2026): Qwen3-MoE with windows in some layers, which have their own RoPE.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kMellumFieldNames[] = {{"num_experts", "num_local_experts"}};

void ReadMellumConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.IntOr("intermediate_size", 7168, 1, kMaxModelDim);
  config.router.renormalises = reader.BoolOr("norm_topk_prob", true);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  ReadSlidingWindow(reader, config, 1024);
  config.layer_has_window.assign(config.num_layers, false);
  ReadLayerTypes(reader, config);
  ReadMlpLayerTypes(reader, config);
}

}  // namespace

const Family kMellum = {
    .name = "mellum",
    .architecture = "MellumForCausalLM",
    .default_head_dim = 128,
    .default_max_positions = 131072,
    .default_rope_scaling =
        R"({"full_attention": {"rope_theta": 500000.0}, "sliding_attention": {"rope_theta": 10000.0}})",
    .default_norm_eps = 1e-6,
    .layer_ropes = LayerRopes::kByType,
    .field_names = kMellumFieldNames,
    .gguf = {.architecture = "mellum", .has_default_window = true},
    .read_config = ReadMellumConfig,
};

}  // namespace penstock
