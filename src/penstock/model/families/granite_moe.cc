// Granite-MoE (IBM 2024): scaled embeddings, residuals and logits. Some models have a shared FFN beside the experts.
// The newest have windows, attention sinks and layers with another RoPE or none.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr StoredName kStoredNames[] = {
    {"mlp.gate.weight", "block_sparse_moe.router.layer.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.input_linear.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.input_linear.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.output_linear.weight"},
    {"mlp.shared_expert.gate_proj.weight", "shared_mlp.input_linear.weight"},
    {"mlp.shared_expert.up_proj.weight", "shared_mlp.input_linear.weight"},
    {"mlp.shared_expert.down_proj.weight", "shared_mlp.output_linear.weight"},
};

constexpr StoredName kSwaNames[] = {
    {"mlp.gate.weight", "block_sparse_moe.router.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.experts.gate_up_proj"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.experts.gate_up_proj"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.experts.down_proj"},
    {"mlp.shared_expert.gate_proj.weight", "shared_mlp.input_linear.weight"},
    {"mlp.shared_expert.up_proj.weight", "shared_mlp.input_linear.weight"},
    {"mlp.shared_expert.down_proj.weight", "shared_mlp.output_linear.weight"},
};

constexpr StoredName kGgufNames[] = {
    {"self_attn.q_proj.weight", "attn_q.weight", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.k_proj.weight", "attn_k.weight", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.q_proj.bias", "attn_q.bias", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.k_proj.bias", "attn_k.bias", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
};

void ReadConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_local_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  const auto factor = [&](std::string_view field) { return static_cast<float>(reader.NumberOr(field, 1, 1e-6, 1e6)); };
  config.embedding_scale = factor("embedding_multiplier");
  config.residual_scale = factor("residual_multiplier");
  config.attention_scale = factor("attention_multiplier");
  config.logit_scale = 1 / factor("logits_scaling");
}

void ReadSharedConfig(ConfigReader& reader, ModelConfig& config) {
  ReadConfig(reader, config);
  config.shared_ffn_dim = reader.IntOr("shared_intermediate_size", 0, 0, kMaxModelDim);
}

void ReadWindowedConfig(ConfigReader& reader, ModelConfig& config) {
  ReadSharedConfig(reader, config);
  config.attention_sinks = true;
  ReadSlidingWindow(reader, config, 128);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_window.push_back(layer_idx % 4 != 0);
  }
  ReadLayerTypes(reader, config);
}

}  // namespace

const Family kGraniteMoe = {
    .name = "granitemoe",
    .architecture = "GraniteMoeForCausalLM",
    .default_norm_eps = 1e-6,
    .stored_names = kStoredNames,
    .gguf = {.architecture = "granitemoe", .has_shared_ffn = false, .stored_names = kGgufNames},
    .read_config = ReadConfig,
};

const Family kGraniteMoeShared = {
    .name = "granitemoeshared",
    .architecture = "GraniteMoeSharedForCausalLM",
    .default_norm_eps = 1e-6,
    .stored_names = kStoredNames,
    .gguf = {.architecture = "granitemoe", .has_shared_ffn = true, .stored_names = kGgufNames},
    .read_config = ReadSharedConfig,
};

const Family kGraniteMoeSwa = {
    .name = "granitemoe_swa",
    .architecture = "GraniteMoeSWAForCausalLM",
    .default_norm_eps = 1e-6,
    .layer_ropes = LayerRopes::kByTheta,
    .stored_names = kSwaNames,
    .gguf = {.architecture = "granite_swa", .has_default_window = true, .stored_names = kGgufNames},
    .read_config = ReadWindowedConfig,
};

}  // namespace penstock
