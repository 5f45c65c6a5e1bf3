// Laguna (poolside 2026): layers may have other numbers of query heads, and a RoPE for each type. A softplus gates what
// attention returns.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr StoredName kLagunaStoredNames[] = {
    {"self_attn.gate_proj.weight", "self_attn.g_proj.weight"},
    {"mlp.gate.e_score_correction_bias", "mlp.experts.e_score_correction_bias"},
};

void ReadGate(ConfigReader& reader, ModelConfig& config) {
  config.attention_gate = config.gate_is_softplus = config.gate_is_per_head = true;
  const json::value* const found = reader.Find("gating");
  if (found == nullptr || (found->is_bool() && found->get_bool())) return;
  const std::string kind = found->is_string() ? std::string(found->get_string()) : json::serialize(*found);
  config.gate_is_per_head = kind == "per-head";
  if (kind != "per-head" && kind != "per-element") {
    reader.Fail("gating", "true, 'per-head' or 'per-element'", kind.substr(0, 60));
  }
}

void ReadLagunaLayers(ConfigReader& reader, ModelConfig& config) {
  config.layer_has_window.assign(config.num_layers, false);
  config.layer_has_experts[0] = false;
  ReadSlidingWindow(reader, config, 512);
  ReadLayerTypes(reader, config);
  ReadMlpLayerTypes(reader, config);
  const std::vector<int64_t> num_heads = ReadIntegers(reader, "num_attention_heads_per_layer", 1, kMaxHeads);
  if (num_heads.empty()) return;
  if (std::ssize(num_heads) != config.num_layers) {
    return reader.Fail("num_attention_heads_per_layer", fmt::format("{} of them", config.num_layers),
                       fmt::format("{}", num_heads.size()));
  }
  for (const int64_t count : num_heads) {
    config.layer_heads.push_back(
        {.num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim, .num_heads = count});
  }
}

void ReadLagunaConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.Int("shared_expert_intermediate_size", 1, kMaxModelDim);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  config.router = {.scoring = RouterRule::Scoring::kSigmoid,
                   .scale = static_cast<float>(reader.NumberOr("moe_routed_scaling_factor", 1, 1e-6, 1e6))};
  config.router_selection_bias = true;
  if (reader.BoolOr("moe_apply_router_weight_on_input", false)) {
    reader.Fail("moe_apply_router_weight_on_input", "false", "true");
  }
  if (reader.NumberOr("moe_router_logit_softcapping", 0, 0, 1e6) != 0) {
    reader.Fail("moe_router_logit_softcapping", "0: such a cap is not computed", "another number");
  }
  ReadGate(reader, config);
  ReadLagunaLayers(reader, config);
}

}  // namespace

const Family kLaguna = {
    .name = "laguna",
    .architecture = "LagunaForCausalLM",
    .comes_with_code = true,
    .default_head_dim = 128,
    .default_max_positions = 131072,
    .default_rope_scaling = R"({"sliding_attention": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0},
                                "full_attention": {"rope_theta": 500000.0, "partial_rotary_factor": 0.5}})",
    .default_norm_eps = 1e-6,
    .takes_partial_rotary = true,
    .layer_ropes = LayerRopes::kByType,
    .stored_names = kLagunaStoredNames,
    .default_topk = 8,
    .read_config = ReadLagunaConfig,
};

}  // namespace penstock
