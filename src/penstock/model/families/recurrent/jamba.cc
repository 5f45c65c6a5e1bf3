// Jamba (AI21 2024): Mamba in most layers, attention without positions in the others, and experts in every second
// layer.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kJambaFieldNames[] = {{"num_experts", "num_local_experts"}};

constexpr StoredName kJambaStoredNames[] = {
    {"model.norm.weight", "model.final_layernorm.weight"},
    {"post_attention_layernorm.weight", "pre_ff_layernorm.weight"},
    {"linear_attn.v_proj.weight", "mamba.in_proj.weight"},
    {"linear_attn.gate_proj.weight", "mamba.in_proj.weight"},
    {"linear_attn.decay_a_proj.weight", "mamba.x_proj.weight"},
    {"linear_attn.k_proj.weight", "mamba.x_proj.weight"},
    {"linear_attn.q_proj.weight", "mamba.x_proj.weight"},
    {"linear_attn.decay_proj.weight", "mamba.dt_proj.weight"},
    {"linear_attn.decay_bias", "mamba.dt_proj.bias"},
    {.name = "linear_attn.decay_log", .stored = "mamba.A_log", .is_transposed = true},
    {.name = "linear_attn.conv.weight", .stored = "mamba.conv1d.weight", .is_transposed = true},
    {"linear_attn.conv.bias", "mamba.conv1d.bias"},
    {"linear_attn.skip", "mamba.D"},
    {"linear_attn.decay_norm.weight", "mamba.dt_layernorm.weight"},
    {"linear_attn.k_norm.weight", "mamba.b_layernorm.weight"},
    {"linear_attn.q_norm.weight", "mamba.c_layernorm.weight"},
    {"linear_attn.o_proj.weight", "mamba.out_proj.weight"},
    {"mlp.gate.weight", "feed_forward.router.weight"},
    {"mlp.gate_proj.weight", "feed_forward.gate_proj.weight"},
    {"mlp.up_proj.weight", "feed_forward.up_proj.weight"},
    {"mlp.down_proj.weight", "feed_forward.down_proj.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "feed_forward.experts.{expert}.gate_proj.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "feed_forward.experts.{expert}.up_proj.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "feed_forward.experts.{expert}.down_proj.weight"},
};

constexpr StoredName kJambaGgufNames[] = {
    {"linear_attn.decay_a_proj.weight", "ssm_x.weight"},
    {"linear_attn.k_proj.weight", "ssm_x.weight"},
    {"linear_attn.q_proj.weight", "ssm_x.weight"},
    {"linear_attn.decay_proj.weight", "ssm_dt.weight"},
    {.name = "linear_attn.decay_log", .stored = "ssm_a", .is_transposed = true},
    {"linear_attn.decay_norm.weight", "ssm_dt_norm.weight"},
    {"linear_attn.k_norm.weight", "ssm_b_norm.weight"},
    {"linear_attn.q_norm.weight", "ssm_c_norm.weight"},
};

// Returns the largest divisor of `number` up to `max`.
int64_t LargestDivisor(int64_t number, int64_t max) {
  int64_t divisor = std::min(number, max);
  while (number % divisor != 0) --divisor;
  return divisor;
}

// Reads which layers are of a kind: one of `period`, from `offset` on.
std::vector<bool> ReadPeriod(ConfigReader& reader, std::string_view kind, int64_t default_period,
                             int64_t default_offset, int64_t num_layers) {
  const int64_t period = reader.IntOr(fmt::format("{}_layer_period", kind), default_period, 1, kMaxLayers);
  const int64_t offset = reader.IntOr(fmt::format("{}_layer_offset", kind), default_offset, 0, period - 1);
  std::vector<bool> is_kind;
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) is_kind.push_back(layer_idx % period == offset);
  return is_kind;
}

void ReadJambaConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.IntOr("num_experts", 16, 2, kMaxExperts);
  config.expert_dim = config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.layer_has_experts = ReadPeriod(reader, "expert", 2, 1, config.num_layers);
  ReadMlpLayerTypes(reader, config);
  config.router.renormalises = false;
  config.layer_is_recurrent = ReadPeriod(reader, "attn", 8, 4, config.num_layers);
  config.layer_is_recurrent.flip();
  constexpr LayerName kNames[] = {{"linear_attention", 1}, {"full_attention", 0}};
  const std::vector<int> kinds = ReadLayerNames(reader, "layer_types", kNames, config.num_layers);
  if (!kinds.empty()) config.layer_is_recurrent.assign(kinds.begin(), kinds.end());
  // The values have no heads. The scan takes them in parts, which are independent.
  const int64_t values_dim = reader.IntOr("mamba_expand", 2, 1, 64) * config.model_dim;
  const int64_t value_dim = LargestDivisor(values_dim, 128);
  const json::value* rank = reader.Find("mamba_dt_rank");
  const bool is_auto = rank == nullptr || *rank == json::value("auto");
  config.recurrent = {.num_key_heads = 1,
                      .num_value_heads = values_dim / value_dim,
                      .key_dim = reader.IntOr("mamba_d_state", 16, 1, kMaxScanDim),
                      .value_dim = value_dim,
                      .conv_width = reader.IntOr("mamba_d_conv", 4, 2, 16),
                      .kind = RecurrentKind::kMamba1,
                      .conv_bias = reader.BoolOr("mamba_conv_bias", true),
                      .rank = is_auto ? (config.model_dim + 15) / 16 : reader.Int("mamba_dt_rank", 1, kMaxModelDim)};
  if (reader.BoolOr("mamba_proj_bias", false)) reader.Fail("mamba_proj_bias", "false", "true");
}

}  // namespace

const Family kJamba = {
    .name = "jamba",
    .architecture = "JambaForCausalLM",
    .default_max_positions = 262144,
    .default_norm_eps = 1e-6,
    .layer_ropes = LayerRopes::kNone,
    .field_names = kJambaFieldNames,
    .stored_names = kJambaStoredNames,
    .default_topk = 2,
    .gguf = {.architecture = "jamba", .stored_names = kJambaGgufNames},
    .read_config = ReadJambaConfig,
};

}  // namespace penstock
