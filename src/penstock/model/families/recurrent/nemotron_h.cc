// Nemotron-H and Nemotron-3 (NVIDIA 2025): a layer has Mamba-2, or attention without positions, or experts, or a dense
// FFN, each with its norm. FFNs have no gates and square what is positive. Experts of Nemotron-3 Super and Ultra have
// narrower rows.
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kNemotronHFieldNames[] = {{"hidden_act", "mlp_hidden_act"},
                                              {"rms_norm_eps", "layer_norm_epsilon"},
                                              {"num_experts", "n_routed_experts"},
                                              {"num_experts", "num_local_experts"},
                                              {"layers_block_type", "layer_types"}};

constexpr StoredName kNemotronHStoredNames[] = {
    {"model.embed_tokens.weight", "backbone.embeddings.weight"},
    {"model.norm.weight", "backbone.norm_f.weight"},
    {"input_layernorm.weight", "norm.weight"},
    {"post_attention_layernorm.weight", "norm.weight"},
    {"self_attn.q_proj.weight", "mixer.q_proj.weight"},
    {"self_attn.k_proj.weight", "mixer.k_proj.weight"},
    {"self_attn.v_proj.weight", "mixer.v_proj.weight"},
    {"self_attn.o_proj.weight", "mixer.o_proj.weight"},
    {"linear_attn.gate_proj.weight", "mixer.in_proj.weight"},
    {"linear_attn.v_proj.weight", "mixer.in_proj.weight"},
    {"linear_attn.k_proj.weight", "mixer.in_proj.weight"},
    {"linear_attn.q_proj.weight", "mixer.in_proj.weight"},
    {"linear_attn.decay_proj.weight", "mixer.in_proj.weight"},
    {.name = "linear_attn.conv.weight", .stored = "mixer.conv1d.weight", .is_transposed = true},
    {"linear_attn.conv.bias", "mixer.conv1d.bias"},
    {"linear_attn.decay_bias", "mixer.dt_bias"},
    {"linear_attn.decay_log", "mixer.A_log"},
    {"linear_attn.skip", "mixer.D"},
    {"linear_attn.norm.weight", "mixer.norm.weight"},
    {"linear_attn.o_proj.weight", "mixer.out_proj.weight"},
    {"mlp.up_proj.weight", "mixer.up_proj.weight"},
    {"mlp.down_proj.weight", "mixer.down_proj.weight"},
    {"mlp.latent_in_proj.weight", "mixer.fc1_latent_proj.weight"},
    {"mlp.latent_out_proj.weight", "mixer.fc2_latent_proj.weight"},
    {"mlp.gate.weight", "mixer.gate.weight"},
    {"mlp.gate.e_score_correction_bias", "mixer.gate.e_score_correction_bias"},
    {"mlp.experts.{expert}.up_proj.weight", "mixer.experts.{expert}.up_proj.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "mixer.experts.{expert}.down_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mixer.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mixer.shared_experts.down_proj.weight"},
};

constexpr StoredName kNemotronHGgufNames[] = {
    {"post_attention_layernorm.weight", "attn_norm.weight"},
    {.name = "self_attn.q_proj.weight", .stored = "attn_q.weight", .is_paired = true},
    {.name = "self_attn.k_proj.weight", .stored = "attn_k.weight", .is_paired = true},
};

// A layer's tensors say what it has.
absl::Status AddNemotronHGgufFields(const Gguf& gguf, int64_t num_layers, json::object& config) {
  json::array types;
  for (int64_t i = 0; i < num_layers; ++i) {
    const auto find = [&](std::string_view name) { return gguf.Find(fmt::format("blk.{}.{}.weight", i, name)); };
    const TensorInfo* dense = find("ffn_up");
    if (dense != nullptr && !dense->shape.empty()) config["intermediate_size"] = dense->shape[0];
    types.emplace_back(find("ssm_in") != nullptr         ? "mamba"
                       : find("attn_q") != nullptr       ? "attention"
                       : find("ffn_gate_inp") != nullptr ? "moe"
                                                         : "mlp");
  }
  config["layers_block_type"] = std::move(types);
  return absl::OkStatus();
}

enum Kind : int { kMamba, kAttention, kExperts, kDense };

// Reads `layers_block_type`, or else `hybrid_override_pattern`, which has a letter for each layer.
std::vector<int> ReadKinds(ConfigReader& reader, int64_t num_layers) {
  constexpr LayerName kNames[] = {{"linear_attention", kMamba},
                                  {"full_attention", kAttention},
                                  {"moe", kExperts},
                                  {"mlp", kDense},
                                  {"mamba", kMamba},
                                  {"attention", kAttention}};
  if (reader.Find("layers_block_type") != nullptr) {
    return ReadLayerNames(reader, "layers_block_type", kNames, num_layers);
  }
  constexpr std::string_view kLetters = "M*E-";
  const std::string pattern = reader.StringOr("hybrid_override_pattern", "");
  std::vector<int> kinds;
  for (const char letter : pattern) kinds.push_back(static_cast<int>(kLetters.find(letter)));
  if (std::ssize(kinds) == num_layers && pattern.find_first_not_of(kLetters) == std::string::npos) return kinds;
  reader.Fail("hybrid_override_pattern", fmt::format("{} letters of '{}'", num_layers, kLetters),
              fmt::format("'{}'", pattern.substr(0, 60)));
  return {};
}

void ReadNemotronHConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.tie_embeddings = false;  // whatever tie_word_embeddings says, as in transformers
  config.shared_ffn_dim = reader.Int("moe_shared_expert_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.IntOr("intermediate_size", 21504, 1, kMaxModelDim);
  config.num_mtp_layers = reader.IntOr("num_nextn_predict_layers", 0, 0, kMaxLayers);
  config.is_gated = false;
  config.squares_relu = true;
  ReadNoauxRouter(reader, config);
  config.latent_dim = reader.IntOr("moe_latent_size", 0, 1, kMaxModelDim);
  for (const char* field : {"use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias"}) {
    if (reader.BoolOr(field, false)) reader.Fail(field, "false", "true");
  }
  config.recurrent = {.num_key_heads = reader.IntOr("n_groups", 8, 1, kMaxHeads),
                      .num_value_heads = reader.IntOr("mamba_num_heads", 128, 1, kMaxHeads),
                      .key_dim = reader.IntOr("ssm_state_size", 128, 1, kMaxHeadDim),
                      .value_dim = reader.IntOr("mamba_head_dim", 64, 1, kMaxHeadDim),
                      .conv_width = reader.IntOr("conv_kernel", 4, 2, 16),
                      .kind = RecurrentKind::kMamba2,
                      .conv_bias = reader.BoolOr("use_conv_bias", true)};
  const std::string activation = reader.StringOr("mamba_hidden_act", "silu");
  if (activation != "silu") reader.Fail("mamba_hidden_act", "'silu'", fmt::format("'{}'", activation));
  config.layer_has_experts.clear();
  for (const int kind : ReadKinds(reader, config.num_layers)) {
    config.layer_is_recurrent.push_back(kind == kMamba);
    config.layer_has_mixer.push_back(kind == kMamba || kind == kAttention);
    config.layer_has_ffn.push_back(kind == kExperts || kind == kDense);
    config.layer_has_experts.push_back(kind == kExperts);
  }
}

}  // namespace

const Family kNemotronH = {
    .name = "nemotron_h",
    .architecture = "NemotronHForCausalLM",
    .comes_with_code = true,
    .default_head_dim = 128,
    .default_norm_eps = 1e-5,
    .layer_ropes = LayerRopes::kNone,
    .field_names = kNemotronHFieldNames,
    .layer_prefix = "backbone.layers.{layer}.",
    .stored_names = kNemotronHStoredNames,
    .hidden_act = "relu2",
    .gguf = {.architecture = "nemotron_h_moe",
             .stored_names = kNemotronHGgufNames,
             .add_fields = AddNemotronHGgufFields},
    .read_config = ReadNemotronHConfig,
};

}  // namespace penstock
