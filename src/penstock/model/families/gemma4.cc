// Gemma 4 (Google 2026), the models with experts: windows in five of six layers, wider heads in the others; a dense FFN
// beside the experts; norms before and after everything. Published checkpoints also have towers for images and sound,
// which are left out. Models without experts are refused, and what only they have: embeddings for each layer, and
// layers that share the KV entries of others.
#include <cmath>

#include "absl/strings/numbers.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr FieldName kGemma4FieldNames[] = {
    {"num_experts_per_tok", "top_k_experts"},
    {"hidden_act", "hidden_activation"},
};

constexpr StoredName kGemma4StoredNames[] = {
    {"attention_output_norm.weight", "post_attention_layernorm.weight"},
    {"residual_layernorm.weight", "pre_feedforward_layernorm.weight"},
    {"shared_output_norm.weight", "post_feedforward_layernorm_1.weight"},
    {"post_attention_layernorm.weight", "pre_feedforward_layernorm_2.weight"},
    {"expert_output_norm.weight", "post_feedforward_layernorm_2.weight"},
    {"ffn_output_norm.weight", "post_feedforward_layernorm.weight"},
    {"layer_scale", "layer_scalar"},
    {"mlp.gate.weight", "router.proj.weight"},
    {"mlp.gate.norm.weight", "router.scale"},
    {"mlp.expert_scales", "router.per_expert_scale"},
    {"mlp.shared_expert.gate_proj.weight", "mlp.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.down_proj.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "experts.gate_up_proj"},
    {"mlp.experts.{expert}.up_proj.weight", "experts.gate_up_proj"},
    {"mlp.experts.{expert}.down_proj.weight", "experts.down_proj"},
    {"model.embed_tokens.weight", "model.embed_tokens.weight"},
    {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
    {"model.norm.weight", "model.norm.weight"},
    {"model.norm.weight", "model.language_model.norm.weight"},
};

constexpr StoredName kGemma4GgufNames[] = {
    {"attention_output_norm.weight", "post_attention_norm.weight"},
    {"residual_layernorm.weight", "ffn_norm.weight"},
    {"shared_output_norm.weight", "post_ffw_norm_1.weight"},
    {"post_attention_layernorm.weight", "pre_ffw_norm_2.weight"},
    {"expert_output_norm.weight", "post_ffw_norm_2.weight"},
    {"ffn_output_norm.weight", "post_ffw_norm.weight"},
    {"layer_scale", "layer_output_scale.weight"},
    {"mlp.gate.norm.weight", "ffn_gate_inp.scale"},
    {"mlp.expert_scales", "ffn_down_exps.scale"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down.weight"},
};

constexpr std::string_view kTowers[] = {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.",
                                        "model.embed_audio."};

// Fails unless a field has the only value that is computed.
void Expect(ConfigReader& reader, std::string_view field, int64_t default_value) {
  const int64_t value = reader.IntOr(field, default_value, 0, kMaxModelDim);
  if (value != 0) reader.Fail(field, "0", std::to_string(value));
}

// Reads per_layer_config, which transformers writes: the fields of some layers, by their index.
void ReadLayerConfigs(ConfigReader& reader, const json::value& found, ModelConfig& config) {
  constexpr std::string_view kField = "per_layer_config";
  if (!found.is_object()) return reader.Fail(kField, "an object", JsonTypeName(found));
  for (const auto& [name, value] : found.get_object()) {
    int64_t layer_idx = 0;
    const bool is_idx = absl::SimpleAtoi(std::string(name), &layer_idx) && layer_idx >= 0;
    if (!is_idx || layer_idx >= config.num_layers || !value.is_object()) {
      return reader.Fail(kField, "an object for each index of a layer", json::serialize(value).substr(0, 60));
    }
    LayerHeads& heads = config.layer_heads[static_cast<size_t>(layer_idx)];
    for (const auto& [field, entry] : value.get_object()) {
      if (field != "head_dim" && field != "num_key_value_heads") {
        return reader.Fail(kField, "only head_dim and num_key_value_heads in it",
                           fmt::format("'{}'", std::string(field)));
      }
    }
    ConfigReader inner(fmt::format("{}: field '{}'", reader.file_name(), kField), value.get_object());
    heads.head_dim = inner.IntOr("head_dim", heads.head_dim, 1, kMaxHeadDim);
    heads.num_kv_heads = inner.IntOr("num_key_value_heads", heads.num_kv_heads, 1, kMaxHeads);
    reader.FailStatus(inner.status());
  }
}

void ReadHeads(ConfigReader& reader, ModelConfig& config) {
  const bool keys_are_values = reader.BoolOr("attention_k_eq_v", false);
  const json::value* const per_layer = reader.Find("per_layer_config");
  const int64_t full_dim = reader.IntOr("global_head_dim", 512, 1, kMaxHeadDim);
  const int64_t full_kv_heads = reader.IntOr("num_global_key_value_heads", config.num_kv_heads, 1, kMaxHeads);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    LayerHeads heads{.num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim};
    if (!config.layer_has_window[layer_idx]) {
      heads.keys_are_values = keys_are_values;
      if (per_layer == nullptr) {
        heads.head_dim = full_dim;
        if (keys_are_values) heads.num_kv_heads = full_kv_heads;
      }
    }
    config.layer_heads.push_back(heads);
  }
  if (per_layer != nullptr) ReadLayerConfigs(reader, *per_layer, config);
}

// GGUF's factors of the slowest pairs in layers without windows, which do not rotate, are 1e30; those of the others
// are 1.
absl::StatusOr<double> RotatingPart(const Gguf& gguf) {
  constexpr float kNotRotating = 1e20f;
  const TensorInfo* tensor = gguf.Find("rope_freqs.weight");
  if (tensor == nullptr) return ModelError("tensor 'rope_freqs.weight' is missing");
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<float> factors, ReadFloats(gguf, *tensor, kMaxHeadDim / 2));
  const auto slow = std::ranges::find_if(factors, [](float factor) { return factor != 1; });
  if (slow == factors.begin() || std::any_of(slow, factors.end(), [](float x) { return !(x >= kNotRotating); })) {
    return ModelError("tensor 'rope_freqs.weight': expected ones, and after them numbers from 1e20");
  }
  // Adds a quarter to survive rounding.
  if (slow == factors.end()) return 1;
  return (static_cast<double>(slow - factors.begin()) + 0.25) / static_cast<double>(factors.size());
}

// Heads of layers without a window differ from those of the others. Where they have no V, it is K.
absl::Status AddGemma4GgufFields(const Gguf& gguf, int64_t num_layers, json::object& config) {
  const auto integer = [&](std::string_view key) { return gguf.metadata.Integer(fmt::format("gemma4.{}", key)); };
  PENSTOCK_ASSIGN_OR_RETURN(const auto windows, gguf.metadata.Bools("gemma4.attention.sliding_window_pattern"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto full_dim, integer("attention.key_length"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto window_dim, integer("attention.key_length_swa"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto rotary_dim, integer("rope.dimension_count_swa"));
  if (!full_dim.has_value() || !window_dim.has_value()) {
    return ModelError("key 'gemma4.attention.key_length{}' is missing", full_dim.has_value() ? "_swa" : "");
  }
  constexpr char kKvHeads[] = "gemma4.attention.head_count_kv";
  const GgufMetadata::Field* field = gguf.metadata.Find(kKvHeads);
  std::vector<int64_t> num_kv_heads;
  if (field != nullptr && field->is_array) {
    PENSTOCK_ASSIGN_OR_RETURN(num_kv_heads, gguf.metadata.Integers(kKvHeads));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const auto count, integer("attention.head_count_kv"));
    num_kv_heads.assign(static_cast<size_t>(num_layers), count.value_or(0));
  }
  if (std::ssize(windows) < num_layers || std::ssize(num_kv_heads) < num_layers) {
    return ModelError("keys '{}' and 'gemma4.attention.sliding_window_pattern': expected {} entries", kKvHeads,
                      num_layers);
  }
  json::object others;
  bool keys_are_values = false;
  for (int64_t i = 0; i < num_layers; ++i) {
    const int64_t count = num_kv_heads[static_cast<size_t>(i)];
    if (windows[static_cast<size_t>(i)]) {
      config["num_key_value_heads"] = count;
      continue;
    }
    others[std::to_string(i)] = {{"head_dim", *full_dim}, {"num_key_value_heads", count}};
    keys_are_values |= gguf.Find(fmt::format("blk.{}.attn_v.weight", i)) == nullptr;
  }
  config["head_dim"] = *window_dim;
  config["per_layer_config"] = std::move(others);
  config["attention_k_eq_v"] = keys_are_values;
  config["enable_moe_block"] = true;  // models without experts are refused
  PENSTOCK_ASSIGN_OR_RETURN(const double rotating_part, RotatingPart(gguf));
  json::object& ropes = config["rope_parameters"].as_object();
  json::object& full = ropes["full_attention"].as_object();
  const json::value theta = full["rope_theta"];
  full = {{"rope_type", "proportional"}, {"partial_rotary_factor", rotating_part}, {"rope_theta", theta}};
  if (rotary_dim.value_or(*window_dim) != *window_dim) {
    ropes["sliding_attention"].as_object()["partial_rotary_factor"] =
        static_cast<double>(*rotary_dim) / static_cast<double>(*window_dim);
  }
  return absl::OkStatus();
}

void ReadGemma4Config(ConfigReader& reader, ModelConfig& config) {
  if (!reader.BoolOr("enable_moe_block", false)) {
    return reader.Fail("enable_moe_block", "true: only models with experts are computed", "false");
  }
  Expect(reader, "hidden_size_per_layer_input", 256);
  Expect(reader, "num_kv_shared_layers", 0);
  if (reader.StringOr("use_bidirectional_attention", "") == "all") {
    reader.Fail("use_bidirectional_attention", "null or 'vision'", "'all'");
  }
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.shared_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  config.v_norm = true;
  config.attention_scale = 1;
  config.glu = kGeluTanhGlu;
  config.output_norms = OutputNorms::kParts;
  config.layer_scales = true;
  config.router_norm = config.expert_scales = true;
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(config.model_dim)));
  config.router_logit_scale = 1 / root;
  config.embedding_scale = root;
  config.logit_cap = static_cast<float>(reader.NumberOr("final_logit_softcapping", 0, 1e-3, 1e6));
  config.tie_embeddings = reader.BoolOr("tie_word_embeddings", true);
  ReadSlidingWindow(reader, config, 512);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_window.push_back((layer_idx + 1) % 6 != 0);
  }
  ReadLayerTypes(reader, config);
  config.layer_has_window.back() = false;  // as in transformers, whatever config.json says
  ReadHeads(reader, config);
}

// Returns what the published form and the form without towers have in common.
constexpr Family Gemma(std::string_view name, std::string_view architecture) {
  return {
      .name = name,
      .architecture = architecture,
      .default_head_dim = 256,
      .default_max_positions = 131072,
      .default_rope_scaling =
          R"({"sliding_attention": {"rope_theta": 10000.0},
              "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}})",
      .default_norm_eps = 1e-6,
      .layer_ropes = LayerRopes::kByType,
      .field_names = kGemma4FieldNames,
      .stored_names = kGemma4StoredNames,
      .hidden_act = "gelu_pytorch_tanh",
      .read_config = ReadGemma4Config,
  };
}

}  // namespace

const Family kGemma4Text = [] {
  Family family = Gemma("gemma4_text", "Gemma4ForCausalLM");
  family.gguf = {.architecture = "gemma4", .stored_names = kGemma4GgufNames, .add_fields = AddGemma4GgufFields};
  return family;
}();

const Family kGemma4 = [] {
  Family family = Gemma("gemma4", "Gemma4ForConditionalGeneration");
  family.config_object = "text_config";
  family.layer_prefix = "model.language_model.layers.{layer}.";
  family.ignored_prefixes = kTowers;
  return family;
}();

}  // namespace penstock
