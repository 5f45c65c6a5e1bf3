// dots.llm1 (Huo et al. 2025): the experts and the router of DeepSeek-V3 with the attention of Qwen3.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kDots1FieldNames[] = {{"num_experts", "n_routed_experts"}, {"num_experts", "num_local_experts"}};

constexpr StoredName kDots1StoredNames[] = {
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
};

void ReadDots1Config(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 0, 0, 64) * config.expert_dim;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  ReadSlidingWindow(reader, config, 4096);
  if (config.sliding_window > 0) {
    const int64_t num_full = reader.IntOr("max_window_layers", 62, 0, kMaxLayers);
    for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
      config.layer_has_window.push_back(layer_idx >= num_full);
    }
    ReadLayerTypes(reader, config);
  }
  ReadNoauxRouter(reader, config, {.renormalises = false});
  ReadDenseFirstLayers(reader, config, 0);
}

}  // namespace

const Family kDots1 = {
    .name = "dots1",
    .architecture = "Dots1ForCausalLM",
    .default_norm_eps = 1e-6,
    .field_names = kDots1FieldNames,
    .stored_names = kDots1StoredNames,
    .gguf = {.architecture = "dots1", .has_default_window = true},
    .read_config = ReadDots1Config,
};

}  // namespace penstock
