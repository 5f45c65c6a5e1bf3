// DeepSeek-V2 (2024), DeepSeek-V3, R1 and Kimi-K2 (2024, 2025): MLA, shared experts, dense first layers, YaRN.
// Mistral Small 4 (Mistral AI 2026): the same, with softmax scores and a temperature of attention.
// A.X K1 (SK Telecom 2026): DeepSeek-V3 with a norm of what experts return.
// DeepSeek-V3.2 (2025) and GLM-5 (2026) add the lightning indexer. Kimi-K2.5 (Moonshot AI 2026) has a vision tower.
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kDeepseekFieldNames[] = {{"num_experts", "n_routed_experts"},
                                             {"num_experts", "num_local_experts"},
                                             {"num_nextn_predict_layers", "num_mtp_layers"}};

constexpr StoredName kMistralNames[] = {
    {"self_attn.k_up_proj.weight", "self_attn.kv_b_proj.weight", /*is_transposed=*/true},
    {"self_attn.v_up_proj.weight", "self_attn.kv_b_proj.weight"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "mlp.experts.gate_up_proj"},
    {"mlp.experts.{expert}.up_proj.weight", "mlp.experts.gate_up_proj"},
    {"mlp.experts.{expert}.down_proj.weight", "mlp.experts.down_proj"},
    {"model.embed_tokens.weight", "model.embed_tokens.weight"},
    {"model.embed_tokens.weight", "language_model.model.embed_tokens.weight"},
    {"model.norm.weight", "model.norm.weight"},
    {"model.norm.weight", "language_model.model.norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
    {"lm_head.weight", "language_model.lm_head.weight"},
};
constexpr std::string_view kDeepseekVisionPrefixes[] = {"vision_tower.", "multi_modal_projector."};
constexpr std::string_view kMistralRope =
    R"({"type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0})";

constexpr StoredName kKimiNames[] = {
    {"self_attn.k_up_proj.weight", "self_attn.kv_b_proj.weight", /*is_transposed=*/true},
    {"self_attn.v_up_proj.weight", "self_attn.kv_b_proj.weight"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
    {"model.embed_tokens.weight", "language_model.model.embed_tokens.weight"},
    {"model.norm.weight", "language_model.model.norm.weight"},
    {"lm_head.weight", "language_model.lm_head.weight"},
};
constexpr std::string_view kKimiPrefixes[] = {"vision_tower.", "mm_projector."};

constexpr StoredName kDeepseekStoredNames[] = {
    {"self_attn.k_up_proj.weight", "self_attn.kv_b_proj.weight", /*is_transposed=*/true},
    {"self_attn.v_up_proj.weight", "self_attn.kv_b_proj.weight"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
    {"self_attn.indexer.q_proj.weight", "self_attn.indexer.wq_b.weight"},
    {"self_attn.indexer.k_proj.weight", "self_attn.indexer.wk.weight"},
};

constexpr StoredName kAxk1Names[] = {
    {"self_attn.k_up_proj.weight", "self_attn.kv_b_proj.weight", /*is_transposed=*/true},
    {"self_attn.v_up_proj.weight", "self_attn.kv_b_proj.weight"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
    {"ffn_output_norm.weight", "post_mlp_layernorm.weight"},
    {.name = "mlp.gate.e_score_correction_bias", .stored = "mlp.gate.e_score_correction_bias", .may_lack = true},
};
constexpr std::string_view kAxk1Suffixes[] = {".post_mlp_layernorm.weight"};

void ReadDeepseekCommon(ConfigReader& reader, ModelConfig& config, int64_t default_shared, int64_t default_dense) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim =
      reader.IntOr("n_shared_experts", reader.Has("n_shared_experts") ? 0 : default_shared, 0, 64) * config.expert_dim;
  config.num_mtp_layers = reader.IntOr("num_nextn_predict_layers", 0, 0, kMaxLayers);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  ReadMla(reader, config);
  ReadDenseFirstLayers(reader, config, default_dense);
  // transformers ignores this field; the models' own code reads it. All published models have 1.
  reader.IntOr("moe_layer_freq", 1, 1, 1);
}

void ReadV2Config(ConfigReader& reader, ModelConfig& config) {
  ReadDeepseekCommon(reader, config, 2, 0);
  config.rope.is_interleaved = true;
  const std::string method = reader.StringOr("topk_method", "greedy");
  config.router = {.renormalises = false,
                   .scale = static_cast<float>(reader.NumberOr("routed_scaling_factor", 1, 1e-6, 1e6))};
  if (method == "group_limited_greedy") {
    config.router.num_groups = static_cast<int32_t>(reader.Int("n_group", 1, kMaxExpertGroups));
    config.router.num_topk_groups = static_cast<int32_t>(reader.Int("topk_group", 1, kMaxExpertGroups));
  } else if (method != "greedy") {
    reader.Fail("topk_method", "'greedy' or 'group_limited_greedy'", fmt::format("'{}'", method));
  }
}

void ReadV3Like(ConfigReader& reader, ModelConfig& config, int64_t default_dense, const NoauxDefaults& defaults) {
  ReadDeepseekCommon(reader, config, 1, default_dense);
  config.rope.is_interleaved = reader.BoolOr("rope_interleave", !reader.Has("rope_interleave"));  // null means false
  ReadNoauxRouter(reader, config, defaults);
  const std::string scoring = reader.StringOr("scoring_func", "sigmoid");
  if (scoring != "sigmoid") reader.Fail("scoring_func", "'sigmoid'", fmt::format("'{}'", scoring));
}

void ReadV3Config(ConfigReader& reader, ModelConfig& config) {
  ReadV3Like(reader, config, 3, {.num_groups = 8, .num_topk_groups = 4, .scale = 2.5});
}

void ReadAxk1Config(ConfigReader& reader, ModelConfig& config) {
  ReadV3Like(reader, config, 1, {.num_groups = 8, .num_topk_groups = 4, .scale = 2.5});
  ReadMlpLayerTypes(reader, config);
  config.output_norms = OutputNorms::kExperts;
}

void ReadMistral4Config(ConfigReader& reader, ModelConfig& config) {
  const std::string type = reader.StringOr("model_type", "mistral4");
  if (type != "mistral4") reader.Fail("model_type", "'mistral4', which has experts", fmt::format("'{}'", type));
  ReadDeepseekCommon(reader, config, 1, 0);
  config.rope.is_interleaved = reader.BoolOr("rope_interleave", !reader.Has("rope_interleave"));  // null means false
  ReadNoauxRouter(reader, config);
  config.router.scoring = RouterRule::Scoring::kSoftmax;
  config.router_selection_bias = false;
  config.query_scale = {.factor = 0.1f, .period = 8192, .is_for_rotating = true};
  const json::value* rope = reader.Find("rope_parameters");
  if (rope == nullptr || !rope->is_object()) return;
  ConfigReader inner(fmt::format("{}: field 'rope_parameters'", reader.file_name()), rope->get_object());
  config.query_scale.factor = static_cast<float>(inner.NumberOr("llama_4_scaling_beta", 0, 0, 1e3));
  config.query_scale.period = inner.IntOr("original_max_position_embeddings", 8192, 1, kMaxContext);
  reader.FailStatus(inner.status());
}

// llama.cpp's converter leaves the temperature out. Without it, it is transformers' default.
absl::Status AddMistral4Fields(const Gguf& gguf, int64_t /*num_layers*/, json::object& config) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto factor, gguf.metadata.Number("mistral4.attention.temperature_scale"));
  json::object rope;
  if (json::value* scaling = config.if_contains("rope_scaling")) rope = std::move(scaling->as_object());
  config.erase("rope_scaling");
  rope["llama_4_scaling_beta"] = factor.value_or(0.1);
  config["rope_parameters"] = std::move(rope);
  return absl::OkStatus();
}

void ReadGlmLiteConfig(ConfigReader& reader, ModelConfig& config) {
  ReadV3Like(reader, config, 1, {.scale = 1.8});
  ReadMlpLayerTypes(reader, config);
}

void ReadSparse(ConfigReader& reader, ModelConfig& config, const NoauxDefaults& router,
                const IndexerDefaults& indexer) {
  ReadV3Like(reader, config, 3, router);
  ReadMlpLayerTypes(reader, config);
  reader.Int("q_lora_rank", 1, kMaxModelDim);  // the indexer's queries come from there
  ReadIndexer(reader, config, indexer);
}

void ReadV32Config(ConfigReader& reader, ModelConfig& config) {
  ReadSparse(reader, config, {.num_groups = 8, .num_topk_groups = 4, .scale = 2.5},
             {.num_heads = 64, .is_interleaved = false, .takes_shared = false});
}

void ReadGlm5Config(ConfigReader& reader, ModelConfig& config) {
  ReadSparse(reader, config, {.scale = 2.5}, {.num_heads = 32, .is_interleaved = true, .takes_shared = true});
}

}  // namespace

const Family kDeepseekV2 = {
    .name = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .comes_with_code = true,
    .default_norm_eps = 1e-6,
    .yarn_scales_attention = true,
    .field_names = kDeepseekFieldNames,
    .stored_names = kDeepseekStoredNames,
    .gguf = {.architecture = "deepseek2", .is_sigmoid = false},
    .read_config = ReadV2Config,
};

const Family kDeepseekV3 = {
    .name = "deepseek_v3",
    .architecture = "DeepseekV3ForCausalLM",
    .comes_with_code = true,
    .default_norm_eps = 1e-6,
    .yarn_scales_attention = true,
    .field_names = kDeepseekFieldNames,
    .stored_names = kDeepseekStoredNames,
    .gguf = {.architecture = "deepseek2", .is_sigmoid = true},
    .read_config = ReadV3Config,
};

const Family kKimiK25 = [] {
  Family family = kDeepseekV3;
  family.name = "kimi_k25";
  family.architecture = "KimiK25ForConditionalGeneration";
  family.other_architecture = "Kimi_K25ForConditionalGeneration";  // as transformers writes it
  family.config_object = "text_config";
  family.layer_prefix = "language_model.model.layers.{layer}.";
  family.stored_names = kKimiNames;
  family.ignored_prefixes = kKimiPrefixes;
  family.gguf = {};
  return family;
}();

// DeepSeek-V3.2-Exp and DeepSeek-V3.2.
const Family kDeepseekV32 = {
    .name = "deepseek_v32",
    .architecture = "DeepseekV32ForCausalLM",
    .comes_with_code = true,
    .default_norm_eps = 1e-6,
    .yarn_scales_attention = true,
    .field_names = kDeepseekFieldNames,
    .stored_names = kDeepseekStoredNames,
    .gguf = {.architecture = "deepseek32"},
    .read_config = ReadV32Config,
};

// GLM-5 (Z.ai 2026).
const Family kGlmMoeDsa = {
    .name = "glm_moe_dsa",
    .architecture = "GlmMoeDsaForCausalLM",
    .yarn_scales_attention = true,
    .field_names = kDeepseekFieldNames,
    .stored_names = kDeepseekStoredNames,
    .gguf = {.architecture = "glm-dsa"},
    .read_config = ReadGlm5Config,
};

// Layers without experts of A.X K1 have a norm that nothing reads.
const Family kAxk1 = [] {
  Family family = kDeepseekV3;
  family.name = "axk1";
  family.architecture = "AXK1ForCausalLM";
  family.stored_names = kAxk1Names;
  family.ignored_suffixes = kAxk1Suffixes;
  family.gguf = {};
  family.read_config = ReadAxk1Config;
  return family;
}();

// GLM-4.7-Flash (Z.ai 2026).
const Family kGlm4MoeLite = {
    .name = "glm4_moe_lite",
    .architecture = "Glm4MoeLiteForCausalLM",
    .yarn_scales_attention = true,
    .field_names = kDeepseekFieldNames,
    .stored_names = kDeepseekStoredNames,
    .read_config = ReadGlmLiteConfig,
};

const Family kMistral4 = {
    .name = "mistral4",
    .architecture = "Mistral4ForCausalLM",
    .default_rope_scaling = kMistralRope,
    .default_norm_eps = 1e-6,
    .takes_partial_rotary = true,
    .yarn_scales_attention = true,
    .field_names = kDeepseekFieldNames,
    .stored_names = kMistralNames,
    .gguf = {.architecture = "mistral4", .add_fields = AddMistral4Fields},
    .read_config = ReadMistral4Config,
};

// The published form, with a vision tower. Dense models have the same architecture.
const Family kMistral3 = [] {
  Family family = kMistral4;
  family.name = "mistral3";
  family.architecture = "Mistral3ForConditionalGeneration";
  family.config_object = "text_config";
  family.layer_prefix = "language_model.model.layers.{layer}.";
  family.ignored_prefixes = kDeepseekVisionPrefixes;
  return family;
}();

}  // namespace penstock
