// MiMo-V2-Flash (Xiaomi 2025): layers with a window have twice the KV heads of the others, and attention sinks. V is
// narrower than K.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kMimoV2FieldNames[] = {{"num_experts", "n_routed_experts"}, {"num_experts", "num_local_experts"}};

constexpr StoredName kMimoV2StoredNames[] = {{"self_attn.sinks", "self_attn.attention_sink_bias"}};

constexpr std::string_view kMimoV2MtpPrefixes[] = {"model.mtp."};

// Reads a list of 0 or 1 for each layer, which has the place of a list of names in the published config.json.
void ReadFlags(ConfigReader& reader, std::string_view field, int64_t num_layers, std::vector<bool>& flags) {
  const std::vector<int64_t> found = ReadIntegers(reader, field, 0, 1);
  if (found.empty()) return;
  if (std::ssize(found) != num_layers) {
    return reader.Fail(field, fmt::format("{} of them", num_layers), fmt::format("{}", found.size()));
  }
  flags.assign(found.begin(), found.end());
}

void ReadMimoV2Layers(ConfigReader& reader, ModelConfig& config) {
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_window.push_back(layer_idx > 0 && (layer_idx + 1) % 6 != 0);
    config.layer_has_experts[layer_idx] = layer_idx > 0;
  }
  ReadFlags(reader, "hybrid_layer_pattern", config.num_layers, config.layer_has_window);
  ReadFlags(reader, "moe_layer_freq", config.num_layers, config.layer_has_experts);
  ReadLayerTypes(reader, config);
  ReadMlpLayerTypes(reader, config);
  // sliding_window_size counts the positions before the row's own.
  const int64_t num_before = reader.IntOr("sliding_window_size", 0, 1, kMaxContext - 1);
  config.sliding_window = num_before > 0 ? num_before + 1 : reader.IntOr("sliding_window", 129, 1, kMaxContext);
  const int64_t in_windows = reader.IntOr("swa_num_key_value_heads", 2 * config.num_kv_heads, 1, kMaxHeads);
  const int64_t value_dim = reader.IntOr("v_head_dim", 128, 1, config.head_dim);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_heads.push_back({.num_kv_heads = config.layer_has_window[layer_idx] ? in_windows : config.num_kv_heads,
                                  .head_dim = config.head_dim,
                                  .value_dim = value_dim});
  }
}

void ReadMimoV2Config(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.qkv_bias = reader.BoolOr("attention_bias", false);
  config.attention_sinks = config.sinks_need_window = true;
  const double scale_if_absent = reader.Has("attention_value_scale") ? 1 : 0.707;  // null means none
  config.value_scale = static_cast<float>(reader.NumberOr("attention_value_scale", scale_if_absent, 1e-6, 1e6));
  ReadNoauxRouter(reader, config);
  ReadMimoV2Layers(reader, config);
}

}  // namespace

const Family kMimoV2Flash = {
    .name = "mimo_v2_flash",
    .architecture = "MiMoV2FlashForCausalLM",
    .comes_with_code = true,
    .default_head_dim = 192,
    .default_max_positions = 131072,
    .default_rope_scaling = R"({"sliding_attention": {"rope_theta": 10000.0, "partial_rotary_factor": 0.334},
                                "full_attention": {"rope_theta": 5000000.0, "partial_rotary_factor": 0.334}})",
    .default_partial_rotary = 0.334,
    .takes_partial_rotary = true,
    .layer_ropes = LayerRopes::kByType,
    .field_names = kMimoV2FieldNames,
    .stored_names = kMimoV2StoredNames,
    .ignored_prefixes = kMimoV2MtpPrefixes,
    .default_topk = 8,
    .read_config = ReadMimoV2Config,
};

}  // namespace penstock
