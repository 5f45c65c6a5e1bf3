// Qwen3-Next, Qwen3.5 and Qwen3.6 (Qwen 2025, 2026): gated DeltaNet in most layers, attention with a gate in the
// others; all have experts and a shared expert with a gate. Norms are stored as distances from 1. The published
// checkpoints of Qwen3.5 and Qwen3.6 also have a vision tower, which is left out.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kQwen3NextFieldNames[] = {{"num_experts", "num_local_experts"}};

constexpr std::string_view kQwen3NextVisionPrefixes[] = {"model.visual."};

constexpr StoredName kQProj = {
    .name = "self_attn.q_proj.weight", .stored = "self_attn.q_proj.weight", .is_grouped = true};
constexpr StoredName kGateProj = {
    .name = "self_attn.gate_proj.weight", .stored = "self_attn.q_proj.weight", .is_grouped = true};
constexpr StoredName kConv = {
    .name = "linear_attn.conv.weight", .stored = "linear_attn.conv1d.weight", .is_transposed = true};
constexpr StoredName kDecayBias = {"linear_attn.decay_bias", "linear_attn.dt_bias"};
constexpr StoredName kDecayLog = {"linear_attn.decay_log", "linear_attn.A_log"};
constexpr StoredName kOProj = {"linear_attn.o_proj.weight", "linear_attn.out_proj.weight"};

constexpr StoredName kNextNames[] = {
    kQProj,
    kGateProj,
    kConv,
    kDecayBias,
    kDecayLog,
    kOProj,
    {.name = "linear_attn.q_proj.weight", .stored = "linear_attn.in_proj_qkvz.weight", .is_grouped = true},
    {.name = "linear_attn.k_proj.weight", .stored = "linear_attn.in_proj_qkvz.weight", .is_grouped = true},
    {.name = "linear_attn.v_proj.weight", .stored = "linear_attn.in_proj_qkvz.weight", .is_grouped = true},
    {.name = "linear_attn.gate_proj.weight", .stored = "linear_attn.in_proj_qkvz.weight", .is_grouped = true},
    {.name = "linear_attn.beta_proj.weight", .stored = "linear_attn.in_proj_ba.weight", .is_grouped = true},
    {.name = "linear_attn.decay_proj.weight", .stored = "linear_attn.in_proj_ba.weight", .is_grouped = true},
};

constexpr StoredName k35Names[] = {
    kQProj,
    kGateProj,
    kConv,
    kDecayBias,
    kDecayLog,
    kOProj,
    {"linear_attn.q_proj.weight", "linear_attn.in_proj_qkv.weight"},
    {"linear_attn.k_proj.weight", "linear_attn.in_proj_qkv.weight"},
    {"linear_attn.v_proj.weight", "linear_attn.in_proj_qkv.weight"},
    {"linear_attn.gate_proj.weight", "linear_attn.in_proj_z.weight"},
    {"linear_attn.beta_proj.weight", "linear_attn.in_proj_b.weight"},
    {"linear_attn.decay_proj.weight", "linear_attn.in_proj_a.weight"},
    // Published checkpoints have one tensor for all experts of a layer; transformers saves one for each.
    {"mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.gate_proj.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "mlp.experts.{expert}.up_proj.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "mlp.experts.{expert}.down_proj.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "mlp.experts.gate_up_proj"},
    {"mlp.experts.{expert}.up_proj.weight", "mlp.experts.gate_up_proj"},
    {"mlp.experts.{expert}.down_proj.weight", "mlp.experts.down_proj"},
    {"model.embed_tokens.weight", "model.embed_tokens.weight"},
    {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
    {"model.norm.weight", "model.norm.weight"},
    {"model.norm.weight", "model.language_model.norm.weight"},
};

constexpr StoredName kQwen3NextGgufNames[] = {
    {.name = "self_attn.q_proj.weight", .stored = "attn_q.weight", .is_grouped = true},
    {.name = "self_attn.gate_proj.weight", .stored = "attn_q.weight", .is_grouped = true},
    {"linear_attn.q_proj.weight", "attn_qkv.weight"},
    {"linear_attn.k_proj.weight", "attn_qkv.weight"},
    {"linear_attn.v_proj.weight", "attn_qkv.weight"},
    {"linear_attn.gate_proj.weight", "attn_gate.weight"},
    {"linear_attn.decay_proj.weight", "ssm_alpha.weight"},
    {.name = "linear_attn.beta_proj.weight", .stored = "ssm_ba.weight", .is_grouped = true},
    {.name = "linear_attn.decay_proj.weight", .stored = "ssm_ba.weight", .is_grouped = true},
};

void ReadQwen3NextConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.Int("shared_expert_intermediate_size", 1, kMaxModelDim);
  config.shared_gate = true;
  config.router.renormalises = reader.BoolOr("norm_topk_prob", true);
  config.norms_are_offsets = reader.BoolOr("norms_are_offsets", true);
  config.qk_norm = QkNorm::kPerHead;
  config.attention_gate = true;
  config.num_mtp_layers = reader.IntOr("num_nextn_predict_layers", 0, 0, kMaxLayers);
  if (reader.BoolOr("attention_bias", false)) reader.Fail("attention_bias", "false", "true");
  ReadDeltaNet(reader, config);
}

// Qwen3-Next may have layers with a dense FFN instead of experts.
void ReadNextConfig(ConfigReader& reader, ModelConfig& config) {
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  ReadSparseLayers(reader, config);
  ReadQwen3NextConfig(reader, config);
}

// Returns what the published form of Qwen3.5 and the form without a vision tower have in common.
constexpr Family Qwen35(std::string_view name, std::string_view architecture) {
  return {
      .name = name,
      .architecture = architecture,
      .default_head_dim = 256,
      .default_max_positions = 32768,
      .default_norm_eps = 1e-6,
      .default_partial_rotary = 0.25,
      .takes_partial_rotary = true,
      .field_names = kQwen3NextFieldNames,
      .stored_names = k35Names,
      .read_config = ReadQwen3NextConfig,
  };
}

}  // namespace

const Family kQwen3Next = {
    .name = "qwen3_next",
    .architecture = "Qwen3NextForCausalLM",
    .default_head_dim = 256,
    .default_norm_eps = 1e-6,
    .default_partial_rotary = 0.25,
    .takes_partial_rotary = true,
    .field_names = kQwen3NextFieldNames,
    .stored_names = kNextNames,
    .gguf = {.architecture = "qwen3next", .stored_names = kQwen3NextGgufNames},
    .read_config = ReadNextConfig,
};

const Family kQwen35MoeText = [] {
  Family family = Qwen35("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM");
  family.gguf = {.architecture = "qwen35moe", .stored_names = kQwen3NextGgufNames};
  return family;
}();

const Family kQwen35Moe = [] {
  Family family = Qwen35("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration");
  family.config_object = "text_config";
  family.layer_prefix = "model.language_model.layers.{layer}.";
  family.ignored_prefixes = kQwen3NextVisionPrefixes;
  return family;
}();

}  // namespace penstock
