// Phi-3.5-MoE (Abdin et al. 2024): LayerNorm, biases everywhere except in the experts, routing by sparsemixer,
// LongRoPE.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr StoredName kPhimoeStoredNames[] = {
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.experts.{expert}.w1.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.experts.{expert}.w3.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.experts.{expert}.w2.weight"},
};

void ReadPhimoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_local_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.sliding_window = reader.IntOr("sliding_window", 0, 1, kMaxContext);
  config.norm = Norm::kLayer;
  config.norm_bias = true;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.lm_head_bias = reader.BoolOr("lm_head_bias", false);
  config.router = {.scoring = RouterRule::Scoring::kSparsemixer,
                   .jitter = static_cast<float>(reader.NumberOr("router_jitter_noise", 0.01, 0, 1))};
}

}  // namespace

const Family kPhimoe = {
    .name = "phimoe",
    .architecture = "PhimoeForCausalLM",
    .other_architecture = "PhiMoEForCausalLM",
    .comes_with_code = true,
    .default_rope_theta = 1e6,
    .stored_names = kPhimoeStoredNames,
    .gguf = {.architecture = "phimoe"},
    .read_config = ReadPhimoeConfig,
};

}  // namespace penstock
