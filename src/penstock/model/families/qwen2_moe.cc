// Qwen1.5-MoE and Qwen2-MoE (Yang et al. 2024): a shared expert with a gate, biases on q, k and v.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kQwen2MoeFieldNames[] = {{"num_experts", "num_local_experts"}};

void ReadQwen2MoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.Int("shared_expert_intermediate_size", 1, kMaxModelDim);
  config.shared_gate = true;
  config.router.renormalises = reader.BoolOr("norm_topk_prob", false);
  config.qkv_bias = reader.BoolOr("qkv_bias", true);
  if (reader.BoolOr("use_sliding_window", false)) {
    ReadSlidingWindow(reader, config, 4096);
    // As in transformers: every other one of the first max_window_layers has a window.
    const int64_t num_layers = reader.IntOr("max_window_layers", 28, 0, kMaxLayers);
    for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
      config.layer_has_window.push_back((layer_idx + 1) % 2 != 0 && layer_idx < num_layers);
    }
    ReadLayerTypes(reader, config);
  }
  ReadSparseLayers(reader, config);
}

}  // namespace

const Family kQwen2Moe = {
    .name = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .default_norm_eps = 1e-6,
    .field_names = kQwen2MoeFieldNames,
    .gguf = {.architecture = "qwen2moe"},
    .read_config = ReadQwen2MoeConfig,
};

}  // namespace penstock
