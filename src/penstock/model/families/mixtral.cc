// Mixtral (Jiang et al. 2024): experts in every layer, renormalised top-k weights, optional sliding window.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr StoredName kMixtralStoredNames[] = {
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.experts.{expert}.w1.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.experts.{expert}.w3.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.experts.{expert}.w2.weight"},
};

constexpr StoredName kMixtralGgufNames[] = {
    {"self_attn.q_proj.weight", "attn_q.weight", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.k_proj.weight", "attn_k.weight", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.q_proj.bias", "attn_q.bias", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.k_proj.bias", "attn_k.bias", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
};

void ReadMixtralConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_local_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.sliding_window = reader.IntOr("sliding_window", 0, 1, kMaxContext);
}

}  // namespace

const Family kMixtral = {
    .name = "mixtral",
    .architecture = "MixtralForCausalLM",
    .default_rope_theta = 1e6,
    .stored_names = kMixtralStoredNames,
    .gguf = {.architecture = "llama", .stored_names = kMixtralGgufNames},
    .read_config = ReadMixtralConfig,
};

}  // namespace penstock
