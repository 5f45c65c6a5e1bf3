// Command A with experts (Cohere 2026): attention and FFN read the same normed input, side by side. Layers with a
// window rotate; the others do not, except dense ones at the beginning.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr StoredName kCohere2MoeStoredNames[] = {
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
    {"mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"},
};

void ReadCohere2MoeLayers(ConfigReader& reader, ModelConfig& config) {
  const int64_t num_dense = reader.IntOr("first_k_dense_replace", 0, 0, kMaxLayers);
  const int64_t dense_period = reader.IntOr("prefix_dense_sliding_window_pattern", 1, 1, kMaxLayers);
  const int64_t period = reader.IntOr("sliding_window_pattern", 4, 1, kMaxLayers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const bool is_dense = layer_idx < num_dense;
    config.layer_has_experts[layer_idx] = !is_dense;
    const int64_t place = is_dense ? layer_idx : layer_idx - num_dense;
    config.layer_has_window.push_back((place + 1) % (is_dense ? dense_period : period) != 0);
  }
  ReadSlidingWindow(reader, config, 4096);
  ReadLayerTypes(reader, config);
  ReadMlpLayerTypes(reader, config);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const bool always_rotates = !config.layer_has_experts[layer_idx] && dense_period == 1;
    config.layer_rope.push_back(config.window_of(layer_idx) > 0 || always_rotates ? 0 : kNoRope);
  }
}

void ReadRouter(ConfigReader& reader, ModelConfig& config) {
  const std::string selection = reader.StringOr("expert_selection_fn", "softmax");
  if (selection == "sigmoid") {
    config.router = {.scoring = RouterRule::Scoring::kSigmoid,
                     .renormalises = reader.BoolOr("norm_topk_prob", true),
                     .chooses_by_logits = true};
  } else if (selection != "softmax") {  // over the chosen logits: softmax over all, divided by the sum over the chosen
    reader.Fail("expert_selection_fn", "'softmax' or 'sigmoid'", fmt::format("'{}'", selection));
  }
  config.shared_ffn_dim = reader.IntOr("num_shared_experts", 0, 0, 64) * config.expert_dim;
  const std::string combination = reader.StringOr("shared_expert_combination_strategy", "average");
  if (combination != "average" && combination != "sum") {
    reader.Fail("shared_expert_combination_strategy", "'average' or 'sum'", fmt::format("'{}'", combination));
  }
  if (config.shared_ffn_dim > 0 && combination == "average") config.router.scale = config.shared_scale = 0.5f;
}

void ReadCohere2MoeConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.IntOr("num_experts", 8, 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.IntOr("prefix_dense_intermediate_size", config.expert_dim, 1, kMaxModelDim);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.rope.is_interleaved = true;
  config.parallel_ffn = true;
  if (reader.Find("rms_norm_eps") == nullptr) {
    config.norm = Norm::kLayer;
    config.norm_eps = static_cast<float>(reader.NumberOr("layer_norm_eps", 1e-5, 0, 1));
  }
  config.logit_scale = static_cast<float>(reader.NumberOr("logit_scale", 0.0625, 1e-6, 1e6));
  config.tie_embeddings = reader.BoolOr("tie_word_embeddings", true);
  ReadRouter(reader, config);
  ReadCohere2MoeLayers(reader, config);
}

}  // namespace

const Family kCohere2Moe = {
    .name = "cohere2_moe",
    .architecture = "Cohere2MoeForCausalLM",
    .default_head_dim = 128,
    .default_max_positions = 8192,
    .stored_names = kCohere2MoeStoredNames,
    .default_topk = 2,
    .read_config = ReadCohere2MoeConfig,
};

}  // namespace penstock
