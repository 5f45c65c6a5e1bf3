#include "penstock/model/layer_fields.h"

#include "penstock/base/limits.h"

namespace penstock {

void ReadLayerTypes(ConfigReader& reader, ModelConfig& config) {
  const json::value* types = reader.Find("layer_types");
  if (types == nullptr) return;
  const std::string expected =
      fmt::format("a list of {} times 'sliding_attention' or 'full_attention'", config.num_layers);
  if (!types->is_array() || std::ssize(types->get_array()) != config.num_layers) {
    reader.Fail("layer_types", expected,
                types->is_array() ? fmt::format("{} of them", types->get_array().size()) : JsonTypeName(*types));
    return;
  }
  config.layer_has_window.clear();
  for (const json::value& entry : types->get_array()) {
    const bool is_sliding = entry == json::value("sliding_attention");
    if (!is_sliding && entry != json::value("full_attention")) {
      reader.Fail("layer_types", expected, json::serialize(entry).substr(0, 60));
      return;
    }
    config.layer_has_window.push_back(is_sliding);
  }
}

void ReadSparseLayers(ConfigReader& reader, ModelConfig& config) {
  const int64_t sparse_step = reader.IntOr("decoder_sparse_step", 1, 1, kMaxLayers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_experts[layer_idx] = (layer_idx + 1) % sparse_step == 0;
  }
  const json::value* dense_layers = reader.Find("mlp_only_layers");
  if (dense_layers == nullptr) return;
  if (!dense_layers->is_array()) {
    reader.Fail("mlp_only_layers", "a list of layer indices", JsonTypeName(*dense_layers));
    return;
  }
  for (const json::value& entry : dense_layers->get_array()) {
    if (!entry.is_int64() || entry.get_int64() < 0 || entry.get_int64() >= config.num_layers) {
      reader.Fail("mlp_only_layers", "layer indices below num_hidden_layers", json::serialize(entry));
      return;
    }
    config.layer_has_experts[entry.get_int64()] = false;
  }
}

void ReadDenseFirstLayers(ConfigReader& reader, ModelConfig& config, int64_t default_count) {
  const int64_t count = reader.IntOr("first_k_dense_replace", default_count, 0, kMaxLayers);
  for (int64_t layer_idx = 0; layer_idx < std::min(count, config.num_layers); ++layer_idx) {
    config.layer_has_experts[layer_idx] = false;
  }
}

void ReadNoauxRouter(ConfigReader& reader, ModelConfig& config) {
  config.router = {.scoring = RouterRule::Scoring::kSigmoid,
                   .renormalises = reader.BoolOr("norm_topk_prob", true),
                   .group_score = RouterRule::GroupScore::kTwoLargest,
                   .num_groups = static_cast<int32_t>(reader.IntOr("n_group", 1, 1, kMaxExpertGroups)),
                   .num_topk_groups = static_cast<int32_t>(reader.IntOr("topk_group", 1, 1, kMaxExpertGroups)),
                   .scale = static_cast<float>(reader.NumberOr("routed_scaling_factor", 1, 1e-6, 1e6))};
  config.router_selection_bias = true;
}

}  // namespace penstock
