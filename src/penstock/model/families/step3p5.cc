// Step 3.5 Flash (StepFun 2026) and the text part of Step 3.7 Flash: layers with a window have more query heads; a
// sigmoid for each head gates what attention returns; SwiGLU is limited in some layers.
#include <charconv>
#include <cmath>
#include <set>

#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kStep3p5FieldNames[] = {
    {"num_key_value_heads", "num_attention_groups"},
    {"num_experts", "n_routed_experts"},
    {"num_experts", "moe_num_experts"},
    {"num_experts_per_tok", "moe_top_k"},
    {"share_expert_dim", "share_expert_dims"},
    {"num_sliding_attention_heads", "attention_other_setting.num_attention_heads"},
};

constexpr StoredName kStep3p5StoredNames[] = {
    {"self_attn.gate_proj.weight", "self_attn.g_proj.weight"},
    {"mlp.gate.weight", "moe.gate.weight"},
    {"mlp.gate.e_score_correction_bias", "moe.router_bias"},
    {"mlp.experts.{expert}.gate_proj.weight", "moe.gate_proj.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "moe.up_proj.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "moe.down_proj.weight"},
    {"mlp.shared_expert.gate_proj.weight", "share_expert.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "share_expert.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "share_expert.down_proj.weight"},
};

constexpr std::string_view kStep3p5VisionPrefixes[] = {"vision_model.", "vit_large_projector."};

// Returns an entry of a list with one for each layer, or the value itself where there is no list; null if it is absent.
json::value OfLayer(const json::object& config, std::string_view field, size_t layer_idx) {
  const json::value* const found = config.if_contains(field);
  if (found == nullptr) return nullptr;
  if (!found->is_array()) return *found;
  return layer_idx < found->get_array().size() ? found->get_array()[layer_idx] : json::value();
}

// Makes `rope_parameters` of lists that have a theta and a fraction for each layer. Layers of one type have the same.
// Only layers without a window are scaled.
void RewriteRopes(json::object& config) {
  const json::value* const types = config.if_contains("layer_types");
  const size_t num_types = types != nullptr && types->is_array() ? types->get_array().size() : 0;
  json::object ropes;
  for (size_t layer_idx = 0; layer_idx < std::max<size_t>(1, num_types); ++layer_idx) {
    const json::value type = num_types > 0 ? types->get_array()[layer_idx] : json::value("full_attention");
    if (!type.is_string() || ropes.contains(type.get_string())) continue;
    json::object rope;
    if (type.get_string() == "full_attention" && config.contains("rope_scaling") &&
        config.at("rope_scaling").is_object()) {
      rope = config.at("rope_scaling").get_object();
    }
    if (json::value theta = OfLayer(config, "rope_theta", layer_idx); !theta.is_null()) rope["rope_theta"] = theta;
    json::value part = OfLayer(config, "partial_rotary_factors", layer_idx);
    if (!part.is_null()) rope["partial_rotary_factor"] = std::move(part);
    ropes[type.get_string()] = std::move(rope);
  }
  config["rope_parameters"] = std::move(ropes);
  config.erase("rope_theta");
  config.erase("rope_scaling");
}

// Makes `mlp_layer_types` of `moe_layers_enum`, the indices of layers with experts: a list, or a string of it.
void RewriteExperts(json::object& config, int64_t num_layers) {
  const json::value* const found = config.if_contains("moe_layers_enum");
  if (found == nullptr) return;
  std::set<int64_t> with_experts;
  if (found->is_string()) {
    const std::string_view text = found->get_string();
    for (const char *part = text.data(), *const end = part + text.size(); part < end;) {
      int64_t layer_idx = 0;
      const auto [rest, error] = std::from_chars(part, end, layer_idx);
      if (error != std::errc() || (rest != end && *rest != ',')) return;
      with_experts.insert(layer_idx);
      part = rest == end ? end : rest + 1;
    }
  } else if (found->is_array()) {
    for (const json::value& entry : found->get_array()) {
      if (!entry.is_int64()) return;
      with_experts.insert(entry.get_int64());
    }
  }
  json::array types;
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    types.emplace_back(with_experts.contains(layer_idx) ? "sparse" : "dense");
  }
  config["mlp_layer_types"] = std::move(types);
}

// Published files have lists that end with entries for the layers of MTP.
void Rewrite(json::object& config) {
  const json::value* const layers = config.if_contains("num_hidden_layers");
  const int64_t num_layers = layers != nullptr && layers->is_int64() ? layers->get_int64() : 0;
  if (num_layers < 1 || num_layers > kMaxLayers) return;
  if (!config.contains("rope_parameters")) RewriteRopes(config);
  if (!config.contains("mlp_layer_types")) RewriteExperts(config, num_layers);
  const json::value* const mtp = config.if_contains("num_nextn_predict_layers");
  const int64_t num_mtp = mtp != nullptr && mtp->is_int64() ? mtp->get_int64() : 0;
  for (const std::string_view field : {"layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared"}) {
    json::value* const list = config.if_contains(field);
    if (list == nullptr || !list->is_array() || std::ssize(list->get_array()) != num_layers + num_mtp) continue;
    list->get_array().resize(static_cast<size_t>(num_layers));
  }
}

// Reads a limit for each layer; null and 0 mean none.
std::vector<float> ReadLimits(ConfigReader& reader, std::string_view field, int64_t num_layers) {
  const json::value* const found = reader.Find(field);
  if (found == nullptr) return {};
  const json::array* const list = found->if_array();
  std::vector<float> limits;
  for (const json::value& entry : list == nullptr ? json::array() : *list) {
    const double limit = entry.is_null() ? 0 : entry.is_number() ? entry.to_number<double>() : -1;
    if (limit >= 0 && limit < 1e6) limits.push_back(static_cast<float>(limit));
  }
  if (std::ssize(limits) == num_layers) return limits;
  reader.Fail(field, fmt::format("a list of {} numbers from 0, or null", num_layers),
              json::serialize(*found).substr(0, 60));
  return {};
}

void ReadStep3p5Layers(ConfigReader& reader, ModelConfig& config) {
  config.layer_has_window.assign(config.num_layers, false);
  ReadDenseFirstLayers(reader, config, 3);
  config.sliding_window = reader.IntOr("sliding_window", 0, 1, kMaxContext);
  ReadLayerTypes(reader, config);
  ReadMlpLayerTypes(reader, config);
  const int64_t in_windows = reader.IntOr("num_sliding_attention_heads", config.num_heads, 1, kMaxHeads);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_heads.push_back({.num_kv_heads = config.num_kv_heads,
                                  .head_dim = config.head_dim,
                                  .num_heads = config.layer_has_window[layer_idx] ? in_windows : config.num_heads});
  }
  config.expert_limits = ReadLimits(reader, "swiglu_limits", config.num_layers);
  config.ffn_limits = ReadLimits(reader, "swiglu_limits_shared", config.num_layers);
}

void ReadStep3p5Config(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.Int("share_expert_dim", 1, kMaxModelDim);
  config.num_mtp_layers = reader.IntOr("num_nextn_predict_layers", 0, 0, kMaxLayers);
  if (reader.BoolOr("mlp_bias", false)) reader.Fail("mlp_bias", "false", "true");
  if (!reader.BoolOr("use_moe_router_bias", true)) reader.Fail("use_moe_router_bias", "true", "false");
  const std::string scoring = reader.StringOr("scoring_func", "sigmoid");
  if (scoring != "sigmoid") reader.Fail("scoring_func", "'sigmoid'", fmt::format("'{}'", scoring));
  reader.IntOr("n_shared_experts", 1, 1, 1);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  config.norms_are_offsets = true;
  config.attention_gate = config.gate_is_per_head = true;
  const auto head_dim = static_cast<double>(config.head_dim);
  config.attention_scale =
      static_cast<float>(1 / std::sqrt(reader.NumberOr("query_pre_attn_scalar", head_dim, 1e-3, 1e9)));
  config.router = {.scoring = RouterRule::Scoring::kSigmoid,
                   .scale = static_cast<float>(reader.NumberOr("moe_router_scaling_factor", 1, 1e-6, 1e6))};
  config.router_selection_bias = true;
  ReadStep3p5Layers(reader, config);
}

constexpr Family Step(std::string_view name, std::string_view architecture) {
  return {
      .name = name,
      .architecture = architecture,
      .comes_with_code = true,
      .default_head_dim = 128,
      .default_max_positions = 128000,
      .takes_partial_rotary = true,
      .layer_ropes = LayerRopes::kByType,
      .field_names = kStep3p5FieldNames,
      .stored_names = kStep3p5StoredNames,
      .default_topk = 8,
      .rewrite = Rewrite,
      .read_config = ReadStep3p5Config,
  };
}

}  // namespace

const Family kStep3p5 = Step("step3p5", "Step3p5ForCausalLM");

// The published form of Step 3.7, with a vision tower; the other name has the text part alone, or the same object.
const Family kStep3p7 = [] {
  Family family = Step("step3p7", "Step3p7ForConditionalGeneration");
  family.other_architecture = "Step3p7FlashForCausalLM";
  family.config_object = "text_config";
  family.config_may_be_flat = true;
  family.ignored_prefixes = kStep3p5VisionPrefixes;
  return family;
}();

}  // namespace penstock
