// Llama 4 (Meta 2025): one expert a row beside a shared one. Its weight multiplies the expert's input. Layers that
// rotate see the positions of their chunk; the others see all positions, and have a temperature.
#include <algorithm>

#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr std::string_view kLlama4VisionPrefixes[] = {"vision_model.", "multi_modal_projector."};

// In config.json intermediate_size is that of experts, and in GGUF that of dense FFNs.
constexpr FieldName kLlama4FieldNames[] = {{"moe_intermediate_size", "intermediate_size"}};

constexpr StoredName kLlama4StoredNames[] = {
    {"mlp.gate.weight", "feed_forward.router.weight"},
    {"mlp.gate_proj.weight", "feed_forward.gate_proj.weight"},
    {"mlp.up_proj.weight", "feed_forward.up_proj.weight"},
    {"mlp.down_proj.weight", "feed_forward.down_proj.weight"},
    {"mlp.shared_expert.gate_proj.weight", "feed_forward.shared_expert.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "feed_forward.shared_expert.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "feed_forward.shared_expert.down_proj.weight"},
    {.name = "mlp.experts.{expert}.gate_proj.weight",
     .stored = "feed_forward.experts.gate_up_proj",
     .is_transposed = true},
    {.name = "mlp.experts.{expert}.up_proj.weight",
     .stored = "feed_forward.experts.gate_up_proj",
     .is_transposed = true},
    {.name = "mlp.experts.{expert}.down_proj.weight",
     .stored = "feed_forward.experts.down_proj",
     .is_transposed = true},
    {"model.embed_tokens.weight", "model.embed_tokens.weight"},
    {"model.embed_tokens.weight", "language_model.model.embed_tokens.weight"},
    {"model.norm.weight", "model.norm.weight"},
    {"model.norm.weight", "language_model.model.norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
    {"lm_head.weight", "language_model.lm_head.weight"},
};

// Reads `moe_layers` or `interleave_moe_layer_step`.
void ReadMoeLayers(ConfigReader& reader, ModelConfig& config) {
  const int64_t step = reader.IntOr("interleave_moe_layer_step", 1, 1, kMaxLayers);
  const std::vector<int64_t> layers = ReadIntegers(reader, "moe_layers", 0, config.num_layers - 1);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_experts[layer_idx] =
        layers.empty() ? (layer_idx + 1) % step == 0 : std::ranges::find(layers, layer_idx) != layers.end();
  }
  ReadMlpLayerTypes(reader, config);
}

// Reads which layers rotate, and which have chunks.
void ReadChunks(ConfigReader& reader, ModelConfig& config) {
  const int64_t interval = reader.IntOr("no_rope_layer_interval", 4, 1, kMaxLayers);
  std::vector<int64_t> rotates = ReadIntegers(reader, "no_rope_layers", 0, 1);
  if (rotates.empty()) {
    for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
      rotates.push_back((layer_idx + 1) % interval != 0 ? 1 : 0);
    }
  }
  if (std::ssize(rotates) < config.num_layers) {
    return reader.Fail("no_rope_layers", fmt::format("a list of {} numbers", config.num_layers),
                       fmt::format("{} of them", rotates.size()));
  }
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_rope.push_back(rotates[layer_idx] != 0 ? 0 : kNoRope);
    config.layer_has_window.push_back(rotates[layer_idx] != 0);
  }
  ReadLayerTypes(reader, config, "chunked_attention");
  config.windows_are_chunks = true;
  config.sliding_window =
      reader.IntOr("attention_chunk_size", reader.Has("attention_chunk_size") ? 0 : 8192, 1, kMaxContext);
}

void ReadLlama4Config(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_local_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.IntOr("intermediate_size_mlp", 16384, 1, kMaxModelDim);
  config.shared_ffn_dim = config.expert_dim;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.rope.is_interleaved = true;
  if (reader.BoolOr("use_qk_norm", true)) config.qk_norm = QkNorm::kUnitAfterRope;
  config.router = {.scoring = RouterRule::Scoring::kSigmoid, .renormalises = false, .chooses_by_logits = true};
  config.router_scales_input = true;
  if (config.num_topk != 1) reader.Fail("num_experts_per_tok", "1 in this family", fmt::format("{}", config.num_topk));
  ReadMoeLayers(reader, config);
  ReadChunks(reader, config);
  // Older folders have a number in place of a boolean.
  const json::value* tuning = reader.Find("attn_temperature_tuning");
  const bool is_tuned = tuning != nullptr && tuning->is_int64() ? tuning->get_int64() != 0
                                                                : reader.BoolOr("attn_temperature_tuning", true);
  const auto factor = static_cast<float>(reader.NumberOr("attn_scale", 0.1, 0, 1e3));
  const int64_t period = reader.IntOr("floor_scale", 8192, 1, kMaxContext);
  if (is_tuned) config.query_scale = {.factor = factor, .period = period, .offset = 1};
}

constexpr Family Llama4(std::string_view name, std::string_view architecture) {
  return {
      .name = name,
      .architecture = architecture,
      .default_head_dim = 128,
      .default_rope_theta = 5e5,
      .field_names = kLlama4FieldNames,
      .stored_names = kLlama4StoredNames,
      .default_topk = 1,
      .read_config = ReadLlama4Config,
  };
}

}  // namespace

const Family kLlama4Text = [] {
  Family family = Llama4("llama4_text", "Llama4ForCausalLM");
  family.gguf = {.architecture = "llama4"};
  return family;
}();

// The published form, with a vision tower.
const Family kLlama4 = [] {
  Family family = Llama4("llama4", "Llama4ForConditionalGeneration");
  family.config_object = "text_config";
  family.layer_prefix = "language_model.model.layers.{layer}.";
  family.ignored_prefixes = kLlama4VisionPrefixes;
  return family;
}();

}  // namespace penstock
