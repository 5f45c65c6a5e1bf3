// Snowflake Arctic (2024): a dense FFN follows attention, and experts that read the layer's input are added beside it.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr StoredName kArcticStoredNames[] = {
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.experts.{expert}.w1.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.experts.{expert}.w3.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.experts.{expert}.w2.weight"},
    {"mlp.gate_proj.weight", "block_sparse_moe.mlp.w1.weight"},
    {"mlp.up_proj.weight", "block_sparse_moe.mlp.w3.weight"},
    {"mlp.down_proj.weight", "block_sparse_moe.mlp.w2.weight"},
    {"mlp.shared_expert.gate_proj.weight", "residual_mlp.w1.weight"},
    {"mlp.shared_expert.up_proj.weight", "residual_mlp.w3.weight"},
    {"mlp.shared_expert.down_proj.weight", "residual_mlp.w2.weight"},
};

constexpr StoredName kArcticGgufNames[] = {
    {"self_attn.q_proj.weight", "attn_q.weight", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.k_proj.weight", "attn_k.weight", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.q_proj.bias", "attn_q.bias", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.k_proj.bias", "attn_k.bias", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"residual_layernorm.weight", "ffn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm_exps.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down.weight"},
};

void ReadArcticConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_local_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = config.expert_dim;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.sliding_window = reader.IntOr("sliding_window", 0, 1, kMaxContext);
  if (reader.BoolOr("use_residual", true)) config.shared_ffn_dim = config.model_dim;
  config.parallel_experts = reader.BoolOr("parallel_attn_mlp_res", true);
  if (config.parallel_experts != (config.shared_ffn_dim > 0)) {
    reader.FailRelation("use_residual and parallel_attn_mlp_res: expected both or none");
  }
  const int64_t frequency = reader.IntOr("moe_layer_frequency", 1, 1, kMaxLayers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_experts[layer_idx] = (layer_idx + 1) % frequency == 0;
  }
}

}  // namespace

const Family kArctic = {
    .name = "arctic",
    .architecture = "ArcticForCausalLM",
    .comes_with_code = true,
    .default_max_positions = 4096,
    .default_rope_theta = 1e6,
    .stored_names = kArcticStoredNames,
    .gguf = {.architecture = "arctic", .stored_names = kArcticGgufNames},
    .read_config = ReadArcticConfig,
};

}  // namespace penstock
