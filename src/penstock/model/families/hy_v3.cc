// Hunyuan 3 (Tencent 2026): the router of DeepSeek-V3 without groups, QK norm on each head, a shared FFN, and layers
// without experts.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kHyV3FieldNames[] = {{"num_experts", "num_local_experts"}};

constexpr StoredName kHyV3StoredNames[] = {
    {"mlp.gate.weight", "mlp.router.gate.weight"},
    {"mlp.gate.e_score_correction_bias", "mlp.expert_bias"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_mlp.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_mlp.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_mlp.down_proj.weight"},
};

void ReadHyV3Config(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.IntOr("num_shared_experts", 1, 1, 64) * config.expert_dim;
  config.num_mtp_layers = reader.IntOr("num_nextn_predict_layers", 1, 0, kMaxLayers);
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  if (reader.BoolOr("mlp_bias", false)) reader.Fail("mlp_bias", "false", "true");
  config.router = {.scoring = RouterRule::Scoring::kSigmoid,
                   .scale = static_cast<float>(reader.NumberOr("router_scaling_factor", 2.826, 1e-6, 1e6))};
  config.router_selection_bias = true;
  config.layer_has_experts[0] = false;
  ReadMlpLayerTypes(reader, config);
}

}  // namespace

const Family kHyV3 = {
    .name = "hy_v3",
    .architecture = "HYV3ForCausalLM",
    .default_head_dim = 128,
    .default_rope_theta = 11158840,
    .field_names = kHyV3FieldNames,
    .stored_names = kHyV3StoredNames,
    .gguf = {.architecture = "hy_v3"},
    .read_config = ReadHyV3Config,
};

}  // namespace penstock
