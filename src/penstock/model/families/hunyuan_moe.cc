// Hunyuan-A13B (Tencent 2025): QK norm after RoPE; a shared expert as wide as the others.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

// Published folders list these values for each layer; models whose layers differ are refused.
constexpr FieldName kHunyuanMoeFieldNames[] = {
    {.field = "num_experts", .other = "num_local_experts", .may_be_list = true},
    {.field = "num_experts_per_tok", .other = "moe_topk", .may_be_list = true},
    {.field = "num_shared_expert", .other = "num_shared_expert", .may_be_list = true},
    {.field = "moe_intermediate_size", .other = "moe_intermediate_size", .may_be_list = true},
};

constexpr StoredName kHunyuanMoeStoredNames[] = {
    {"self_attn.q_norm.weight", "self_attn.query_layernorm.weight"},
    {"self_attn.k_norm.weight", "self_attn.key_layernorm.weight"},
    {"mlp.gate.weight", "mlp.gate.wg.weight"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_mlp.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_mlp.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_mlp.down_proj.weight"},
};

void ReadHunyuanMoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  // transformers takes intermediate_size for all FFNs, so a folder with another size is refused.
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  const int64_t expert_dim = reader.IntOr("moe_intermediate_size", config.expert_dim, 1, kMaxModelDim);
  if (expert_dim != config.expert_dim) {
    reader.FailRelation(
        fmt::format("moe_intermediate_size {} is not intermediate_size {}", expert_dim, config.expert_dim));
  }
  config.shared_ffn_dim = reader.IntOr("num_shared_expert", 1, 1, 1) * config.expert_dim;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  for (const char* field : {"mlp_bias", "use_cla"}) {
    if (reader.BoolOr(field, false)) reader.Fail(field, "false", "true");
  }
  if (!reader.BoolOr("use_qk_norm", true)) reader.Fail("use_qk_norm", "true", "false");
  config.qk_norm = QkNorm::kPerHeadAfterRope;
}

}  // namespace

const Family kHunyuanMoe = {
    .name = "hunyuan_v1_moe",
    .architecture = "HunYuanMoEV1ForCausalLM",
    .comes_with_code = true,
    .takes_rope_alpha = true,
    .field_names = kHunyuanMoeFieldNames,
    .stored_names = kHunyuanMoeStoredNames,
    .gguf = {.architecture = "hunyuan-moe"},
    .read_config = ReadHunyuanMoeConfig,
};

}  // namespace penstock
