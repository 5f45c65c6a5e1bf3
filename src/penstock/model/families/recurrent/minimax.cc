// MiniMax-Text-01 and MiniMax-M1 (MiniMax 2025): lightning attention in most layers, attention in the others. Both and
// the experts are added to their own input after its norm.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kMinimaxFieldNames[] = {
    {"full_attn_alpha_factor", "layernorm_full_attention_alpha"},
    {"linear_attn_alpha_factor", "layernorm_linear_attention_alpha"},
    {"mlp_alpha_factor", "layernorm_mlp_alpha"},
    {"full_attn_beta_factor", "layernorm_full_attention_beta"},
    {"linear_attn_beta_factor", "layernorm_linear_attention_beta"},
    {"mlp_beta_factor", "layernorm_mlp_beta"},
};

constexpr StoredName kMinimaxStoredNames[] = {
    {.name = "linear_attn.q_proj.weight", .stored = "self_attn.qkv_proj.weight", .is_grouped = true},
    {.name = "linear_attn.k_proj.weight", .stored = "self_attn.qkv_proj.weight", .is_grouped = true},
    {.name = "linear_attn.v_proj.weight", .stored = "self_attn.qkv_proj.weight", .is_grouped = true},
    {"linear_attn.gate_proj.weight", "self_attn.output_gate.weight"},
    {"linear_attn.norm.weight", "self_attn.norm.weight"},
    {"linear_attn.o_proj.weight", "self_attn.out_proj.weight"},
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.experts.{expert}.w1.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.experts.{expert}.w3.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.experts.{expert}.w2.weight"},
};

// Constants that follow from the number of heads and layers.
constexpr std::string_view kConstants[] = {".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay"};

float ReadFactor(ConfigReader& reader, std::string_view field) {
  return static_cast<float>(reader.NumberOr(field, 1, 1e-6, 1e6));
}

// Reads which layers have lightning attention: `layer_types`, or else `attn_type_list`, whose 1 is attention.
std::vector<bool> ReadLightningLayers(ConfigReader& reader, int64_t num_layers) {
  constexpr LayerName kNames[] = {{"linear_attention", 1}, {"full_attention", 0}};
  const std::vector<int> kinds = ReadLayerNames(reader, "layer_types", kNames, num_layers);
  if (!kinds.empty()) return {kinds.begin(), kinds.end()};
  std::vector<bool> is_lightning;
  const std::vector<int64_t> types = ReadIntegers(reader, "attn_type_list", 0, 1);
  if (!types.empty() && std::ssize(types) != num_layers) {
    reader.Fail("attn_type_list", fmt::format("a list of {} numbers", num_layers),
                fmt::format("{} of them", types.size()));
    return std::vector<bool>(static_cast<size_t>(num_layers));
  }
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    is_lightning.push_back(types.empty() ? layer_idx % 2 == 1 : types[layer_idx] == 0);
  }
  return is_lightning;
}

void ReadMinimaxConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_local_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  ReadSlidingWindow(reader, config, 0);
  config.layer_is_recurrent = ReadLightningLayers(reader, config.num_layers);
  config.recurrent = {.num_key_heads = config.num_heads,
                      .num_value_heads = config.num_heads,
                      .key_dim = config.head_dim,
                      .value_dim = config.head_dim,
                      .conv_width = 1,
                      .kind = RecurrentKind::kLightning};
  config.normed_residual = {.of_attention = ReadFactor(reader, "full_attn_alpha_factor"),
                            .of_recurrent = ReadFactor(reader, "linear_attn_alpha_factor"),
                            .of_ffn = ReadFactor(reader, "mlp_alpha_factor")};
  for (const std::string_view field : {"full_attn_beta_factor", "linear_attn_beta_factor", "mlp_beta_factor"}) {
    reader.NumberOr(field, 1, 1, 1);
  }
  if (!reader.BoolOr("postnorm", true)) reader.Fail("postnorm", "true", "false");
  reader.IntOr("shared_intermediate_size", 0, 0, 0);
}

constexpr Family Minimax(std::string_view name, std::string_view architecture) {
  return {
      .name = name,
      .architecture = architecture,
      .comes_with_code = true,
      .default_max_positions = 131072,
      .default_rope_theta = 1e6,
      .takes_partial_rotary = true,
      .field_names = kMinimaxFieldNames,
      .stored_names = kMinimaxStoredNames,
      .ignored_suffixes = kConstants,
      .default_topk = 2,
      .read_config = ReadMinimaxConfig,
  };
}

}  // namespace

const Family kMinimax = [] {
  Family family = Minimax("minimax", "MiniMaxForCausalLM");
  family.other_architecture = "MiniMaxText01ForCausalLM";
  return family;
}();

const Family kMinimaxM1 = Minimax("minimax_m1", "MiniMaxM1ForCausalLM");

}  // namespace penstock
