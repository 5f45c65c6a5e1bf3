// K-EXAONE (LG AI Research 2025): the router of DeepSeek-V3. Layers with a window alternate with layers that see all
// positions and use no RoPE.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kExaoneMoeFieldNames[] = {{"n_shared_experts", "num_shared_experts"}};

constexpr StoredName kExaoneMoeStoredNames[] = {
    {"mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
};

void ReadExaoneMoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 1, 0, 64) * config.expert_dim;
  config.qk_norm = QkNorm::kPerHead;
  ReadNoauxRouter(reader, config, {.scale = 2.5});
  ReadDenseFirstLayers(reader, config, 1);
  ReadMlpLayerTypes(reader, config);
  ReadSlidingWindow(reader, config, 4096);
  if (config.sliding_window == 0) return;
  // The pattern is "LLLG" or its length; the last layer of each period sees all positions.
  const json::value* pattern = reader.Find("sliding_window_pattern");
  const bool is_text = pattern != nullptr && pattern->is_string();
  const int64_t period =
      is_text ? std::ssize(pattern->get_string()) : reader.IntOr("sliding_window_pattern", 4, 1, kMaxLayers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_window.push_back(period > 0 && (layer_idx + 1) % period != 0);
  }
  ReadLayerTypes(reader, config);
  RotateWithWindowOnly(config);
}

}  // namespace

const Family kExaoneMoe = {
    .name = "exaone_moe",
    .architecture = "ExaoneMoeForCausalLM",
    .other_architecture = "ExaoneMoEForCausalLM",
    .field_names = kExaoneMoeFieldNames,
    .stored_names = kExaoneMoeStoredNames,
    .gguf = {.architecture = "exaone-moe", .has_default_window = true},
    .read_config = ReadExaoneMoeConfig,
};

}  // namespace penstock
