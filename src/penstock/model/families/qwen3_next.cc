// Qwen3-Next (Qwen 2025): gated DeltaNet in most layers, attention with a gate in the others; all have experts and a
// shared expert with a gate. Norms are stored as distances from 1.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kFieldNames[] = {{"num_experts", "num_local_experts"}};

constexpr StoredName kStoredNames[] = {
    {.name = "self_attn.q_proj.weight", .stored = "self_attn.q_proj.weight", .is_grouped = true},
    {.name = "self_attn.gate_proj.weight", .stored = "self_attn.q_proj.weight", .is_grouped = true},
    {.name = "linear_attn.q_proj.weight", .stored = "linear_attn.in_proj_qkvz.weight", .is_grouped = true},
    {.name = "linear_attn.k_proj.weight", .stored = "linear_attn.in_proj_qkvz.weight", .is_grouped = true},
    {.name = "linear_attn.v_proj.weight", .stored = "linear_attn.in_proj_qkvz.weight", .is_grouped = true},
    {.name = "linear_attn.gate_proj.weight", .stored = "linear_attn.in_proj_qkvz.weight", .is_grouped = true},
    {.name = "linear_attn.beta_proj.weight", .stored = "linear_attn.in_proj_ba.weight", .is_grouped = true},
    {.name = "linear_attn.decay_proj.weight", .stored = "linear_attn.in_proj_ba.weight", .is_grouped = true},
    {.name = "linear_attn.conv.weight", .stored = "linear_attn.conv1d.weight", .is_transposed = true},
    {"linear_attn.decay_bias", "linear_attn.dt_bias"},
    {"linear_attn.decay_log", "linear_attn.A_log"},
    {"linear_attn.o_proj.weight", "linear_attn.out_proj.weight"},
};

void ReadConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.Int("shared_expert_intermediate_size", 1, kMaxModelDim);
  config.shared_gate = true;
  config.router.renormalises = reader.BoolOr("norm_topk_prob", true);
  config.norm_offset = 1;
  config.qk_norm = QkNorm::kPerHead;
  config.attention_gate = true;
  if (reader.BoolOr("attention_bias", false)) reader.Fail("attention_bias", "false", "true");
  ReadSparseLayers(reader, config);
  ReadDeltaNet(reader, config);
}

}  // namespace

const Family kQwen3Next = {
    .name = "qwen3_next",
    .architecture = "Qwen3NextForCausalLM",
    .default_head_dim = 256,
    .default_norm_eps = 1e-6,
    .default_partial_rotary = 0.25,
    .takes_partial_rotary = true,
    .field_names = kFieldNames,
    .stored_names = kStoredNames,
    .read_config = ReadConfig,
};

}  // namespace penstock
