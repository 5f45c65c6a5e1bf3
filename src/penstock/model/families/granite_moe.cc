// Granite-MoE (IBM 2024): scaled embeddings, residuals and logits. Some models have a shared FFN beside the experts.
// The newest have windows, attention sinks and layers with another RoPE or none. Granite 4 hybrid models (2025) have
// Mamba-2 in most layers, and attention without positions in the others.
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr StoredName kGraniteMoeStoredNames[] = {
    {"mlp.gate.weight", "block_sparse_moe.router.layer.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.input_linear.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.input_linear.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.output_linear.weight"},
    {"mlp.shared_expert.gate_proj.weight", "shared_mlp.input_linear.weight"},
    {"mlp.shared_expert.up_proj.weight", "shared_mlp.input_linear.weight"},
    {"mlp.shared_expert.down_proj.weight", "shared_mlp.output_linear.weight"},
};

constexpr StoredName kHybridNames[] = {
    {"mlp.gate.weight", "block_sparse_moe.router.layer.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.input_linear.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.input_linear.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.output_linear.weight"},
    {"mlp.shared_expert.gate_proj.weight", "shared_mlp.input_linear.weight"},
    {"mlp.shared_expert.up_proj.weight", "shared_mlp.input_linear.weight"},
    {"mlp.shared_expert.down_proj.weight", "shared_mlp.output_linear.weight"},
    {"linear_attn.gate_proj.weight", "mamba.in_proj.weight"},
    {"linear_attn.v_proj.weight", "mamba.in_proj.weight"},
    {"linear_attn.k_proj.weight", "mamba.in_proj.weight"},
    {"linear_attn.q_proj.weight", "mamba.in_proj.weight"},
    {"linear_attn.decay_proj.weight", "mamba.in_proj.weight"},
    {.name = "linear_attn.conv.weight", .stored = "mamba.conv1d.weight", .is_transposed = true},
    {"linear_attn.conv.bias", "mamba.conv1d.bias"},
    {"linear_attn.decay_bias", "mamba.dt_bias"},
    {"linear_attn.decay_log", "mamba.A_log"},
    {"linear_attn.skip", "mamba.D"},
    {"linear_attn.norm.weight", "mamba.norm.weight"},
    {"linear_attn.o_proj.weight", "mamba.out_proj.weight"},
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

constexpr StoredName kGraniteMoeGgufNames[] = {
    {"self_attn.q_proj.weight", "attn_q.weight", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.k_proj.weight", "attn_k.weight", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.q_proj.bias", "attn_q.bias", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
    {"self_attn.k_proj.bias", "attn_k.bias", /*is_transposed=*/false, /*is_interleaved=*/false, /*is_paired=*/true},
};

void ReadGraniteMoeConfig(ConfigReader& reader, ModelConfig& config) {
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
  ReadGraniteMoeConfig(reader, config);
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

// llama.cpp rotates unless a file says that RoPE was not trained.
absl::Status AddHybridFields(const Gguf& gguf, int64_t /*num_layers*/, json::object& config) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto rotates, gguf.metadata.Bool("granitehybrid.rope.scaling.finetuned"));
  config["position_embedding_type"] = rotates.value_or(true) ? "rope" : "none";
  return absl::OkStatus();
}

void ReadHybridConfig(ConfigReader& reader, ModelConfig& config) {
  ReadGraniteMoeConfig(reader, config);
  config.shared_ffn_dim = reader.IntOr("shared_intermediate_size", 1024, 1, kMaxModelDim);
  const int64_t num_heads = reader.IntOr("mamba_n_heads", 128, 1, kMaxHeads);
  const int64_t values_dim = reader.IntOr("mamba_expand", 2, 1, 64) * config.model_dim;
  const json::value* head_dim = reader.Find("mamba_d_head");
  const bool is_auto = head_dim == nullptr || *head_dim == json::value("auto");
  config.recurrent = {.num_key_heads = reader.IntOr("mamba_n_groups", 1, 1, kMaxHeads),
                      .num_value_heads = num_heads,
                      .key_dim = reader.IntOr("mamba_d_state", 256, 1, kMaxHeadDim),
                      .value_dim = is_auto ? values_dim / num_heads : reader.Int("mamba_d_head", 1, kMaxModelDim),
                      .conv_width = reader.IntOr("mamba_d_conv", 4, 2, 16),
                      .kind = RecurrentKind::kMamba2,
                      .conv_bias = reader.BoolOr("mamba_conv_bias", true)};
  if (config.recurrent.values_dim() != values_dim) {
    reader.FailRelation(fmt::format("{} Mamba heads of {} dims: expected {} in total", num_heads,
                                    config.recurrent.value_dim, values_dim));
  }
  if (reader.BoolOr("mamba_proj_bias", false)) reader.Fail("mamba_proj_bias", "false", "true");
  constexpr LayerName kNames[] = {{"linear_attention", 1}, {"full_attention", 0}, {"mamba", 1}, {"attention", 0}};
  const std::vector<int> kinds = ReadLayerNames(reader, "layer_types", kNames, config.num_layers);
  config.layer_is_recurrent.assign(kinds.begin(), kinds.end());
  if (kinds.empty()) config.layer_is_recurrent.assign(config.num_layers, true);
  const std::string positions = reader.StringOr("position_embedding_type", "none");
  if (positions != "rope") config.layer_rope.assign(config.num_layers, kNoRope);
}

}  // namespace

const Family kGraniteMoe = {
    .name = "granitemoe",
    .architecture = "GraniteMoeForCausalLM",
    .default_norm_eps = 1e-6,
    .stored_names = kGraniteMoeStoredNames,
    .gguf = {.architecture = "granitemoe", .has_shared_ffn = false, .stored_names = kGraniteMoeGgufNames},
    .read_config = ReadGraniteMoeConfig,
};

const Family kGraniteMoeShared = {
    .name = "granitemoeshared",
    .architecture = "GraniteMoeSharedForCausalLM",
    .default_norm_eps = 1e-6,
    .stored_names = kGraniteMoeStoredNames,
    .gguf = {.architecture = "granitemoe", .has_shared_ffn = true, .stored_names = kGraniteMoeGgufNames},
    .read_config = ReadSharedConfig,
};

const Family kGraniteMoeHybrid = {
    .name = "granitemoehybrid",
    .architecture = "GraniteMoeHybridForCausalLM",
    .default_norm_eps = 1e-6,
    .stored_names = kHybridNames,
    .gguf = {.architecture = "granitehybrid", .stored_names = kGraniteMoeGgufNames, .add_fields = AddHybridFields},
    .read_config = ReadHybridConfig,
};

const Family kGraniteMoeSwa = {
    .name = "granitemoe_swa",
    .architecture = "GraniteMoeSWAForCausalLM",
    .default_norm_eps = 1e-6,
    .layer_ropes = LayerRopes::kByTheta,
    .stored_names = kSwaNames,
    .gguf = {.architecture = "granite_swa", .has_default_window = true, .stored_names = kGraniteMoeGgufNames},
    .read_config = ReadWindowedConfig,
};

}  // namespace penstock
