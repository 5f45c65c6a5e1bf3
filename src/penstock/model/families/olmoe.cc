// OLMoE (Muennighoff et al. 2024): experts in every layer, RMSNorm over all of q and k, optional clamp of q, k, v.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

void ReadConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.router.renormalises = reader.BoolOr("norm_topk_prob", false);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.clip_qkv = static_cast<float>(reader.NumberOr("clip_qkv", 0.0, 1e-6, 1e6));
  config.qk_norm = QkNorm::kWhole;
}

}  // namespace

const Family kOlmoe = {
    .name = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .gguf = {.architecture = "olmoe"},
    .read_config = ReadConfig,
};

}  // namespace penstock
