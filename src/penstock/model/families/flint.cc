// Flint: sigmoid scores without a bias, a shared expert without a gate, attention sinks. Layers that see all positions
// use no RoPE.
#include <algorithm>

#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kFlintFieldNames[] = {{"num_experts", "num_local_experts"}};

constexpr StoredName kFlintStoredNames[] = {{"self_attn.sinks", "self_attn.softmax_offset"}};

void ReadFlintConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.Int("shared_expert_intermediate_size", 1, kMaxModelDim);
  config.router.scoring = RouterRule::Scoring::kSigmoid;
  config.router.renormalises = reader.BoolOr("norm_topk_prob", true);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  config.attention_sinks = true;
  config.sliding_window = reader.Int("sliding_window", 1, kMaxContext);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_window.push_back(layer_idx >= 2 && layer_idx % 4 != 1 && layer_idx != config.num_layers - 1);
  }
  ReadLayerTypes(reader, config);
  RotateWithWindowOnly(config);
  ReadSparseLayers(reader, config);
  if (reader.Find("mlp_only_layers") == nullptr) {
    for (int64_t layer_idx = 0; layer_idx < std::min<int64_t>(2, config.num_layers); ++layer_idx) {
      config.layer_has_experts[layer_idx] = false;
    }
  }
}

}  // namespace

const Family kFlint = {
    .name = "flint",
    .architecture = "FlintForCausalLM",
    .default_head_dim = 128,
    .default_norm_eps = 1e-6,
    .field_names = kFlintFieldNames,
    .stored_names = kFlintStoredNames,
    .read_config = ReadFlintConfig,
};

}  // namespace penstock
