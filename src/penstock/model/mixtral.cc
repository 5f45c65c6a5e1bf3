// Mixtral (Jiang et al. 2024): every layer has experts, top-k weights are renormalised, optional sliding window.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

void ReadConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_local_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.sliding_window = reader.IntOr("sliding_window", 0, 1, kMaxContext);
  config.norm_topk_prob = true;
}

}  // namespace

const Family kMixtral = {
    .name = "mixtral",
    .architecture = "MixtralForCausalLM",
    .default_rope_theta = 1e6,
    .router = "block_sparse_moe.gate.weight",
    .expert_gate_proj = "block_sparse_moe.experts.{expert}.w1.weight",
    .expert_up_proj = "block_sparse_moe.experts.{expert}.w3.weight",
    .expert_down_proj = "block_sparse_moe.experts.{expert}.w2.weight",
    .read_config = ReadConfig,
};

}  // namespace penstock
