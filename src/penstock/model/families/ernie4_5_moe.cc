// ERNIE 4.5 (Baidu 2025): softmax scores with a selection bias, shared experts, RoPE on neighbouring dimensions.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kErnie45MoeFieldNames[] = {{"num_experts", "moe_num_experts"},
                                               {"num_experts_per_tok", "moe_k"},
                                               {"n_shared_experts", "moe_num_shared_experts"},
                                               {"first_k_dense_replace", "moe_layer_start_index"}};

constexpr StoredName kErnie45MoeStoredNames[] = {
    {"mlp.gate.e_score_correction_bias", "mlp.moe_statics.e_score_correction_bias"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
};

// Experts for images come behind those for text, and their gate beside that of these.
constexpr std::string_view kErnie45MoeVisionPrefixes[] = {"model.vision_model.", "model.resampler_model."};

constexpr StoredName kErnie45MoeVisionNames[] = {
    {.name = "mlp.gate.weight", .stored = "mlp.gate.weight", .is_transposed = true},
    {"mlp.gate.e_score_correction_bias", "mlp.moe_statics.e_score_correction_bias"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
};

void ReadErnie45MoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 2, 0, 64) * config.expert_dim;
  config.rope.is_interleaved = true;
  config.router_selection_bias = true;
  config.tie_embeddings = reader.BoolOr("tie_word_embeddings", true);
  if (reader.BoolOr("use_bias", false)) reader.Fail("use_bias", "false", "true");
  // The minimum of the sum that divides the weights; it is so small that it never matters.
  reader.NumberOr("moe_norm_min", 1e-12, 0, 1e-6);
  ReadDenseFirstLayers(reader, config, 1);
  const int64_t interval = reader.IntOr("moe_layer_interval", 1, 1, kMaxLayers);
  const int64_t last = reader.IntOr("moe_layer_end_index", -1, -1, kMaxLayers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    if ((layer_idx + 1) % interval != 0 || (last >= 0 && layer_idx > last)) config.layer_has_experts[layer_idx] = false;
  }
}

// Lists have a value for text and one for images. For text, the three parts of a position are equal, so RoPE is the
// usual one.
void ReadErnie45MoeVisionConfig(ConfigReader& reader, ModelConfig& config) {
  const std::vector<int64_t> dims = ReadIntegers(reader, "moe_intermediate_size", 1, kMaxModelDim);
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = dims.empty() ? 1536 : dims[0];
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("n_shared_experts", 2, 0, 64) * config.expert_dim;
  config.rope.is_interleaved = true;
  config.router_selection_bias = true;
  if (reader.BoolOr("use_bias", false)) reader.Fail("use_bias", "false", "true");
  reader.NumberOr("moe_norm_min", 1e-12, 0, 1e-6);
  ReadDenseFirstLayers(reader, config, 1);
  ReadMlpLayerTypes(reader, config);
}

}  // namespace

const Family kErnie45Moe = {
    .name = "ernie4_5_moe",
    .architecture = "Ernie4_5_MoeForCausalLM",
    .other_architecture = "Ernie4_5_MoEForCausalLM",
    .comes_with_code = true,
    .default_rope_theta = 5e5,
    .field_names = kErnie45MoeFieldNames,
    .stored_names = kErnie45MoeStoredNames,
    .gguf = {.architecture = "ernie4_5-moe"},
    .read_config = ReadErnie45MoeConfig,
};

// The published form of ERNIE 4.5 VL, text only.
const Family kErnie45VlMoe = {
    .name = "ernie4_5_vl_moe",
    .architecture = "Ernie4_5_VLMoeForConditionalGeneration",
    .config_object = "text_config",
    .default_rope_theta = 5e5,
    .field_names = kErnie45MoeFieldNames,
    .stored_names = kErnie45MoeVisionNames,
    .ignored_prefixes = kErnie45MoeVisionPrefixes,
    .has_experts_of_images = true,
    .default_topk = 6,
    .read_config = ReadErnie45MoeVisionConfig,
};

}  // namespace penstock
