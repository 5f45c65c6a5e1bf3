// Fields of config.json that several families have.
#pragma once

#include "penstock/model/config_reader.h"
#include "penstock/model/model_config.h"

namespace penstock {

// `sliding_window`: null is full attention; only a field that is not there has the default.
void ReadSlidingWindow(ConfigReader& reader, ModelConfig& config, int64_t default_value);

// `layer_types`, a list of sliding_attention and full_attention, into layer_has_window; without it that stays.
void ReadLayerTypes(ConfigReader& reader, ModelConfig& config);

// Only layers with a window rotate; REQUIRES: layer_has_window.
void RotateWithWindowOnly(ModelConfig& config);

// `mlp_layer_types`, a list of dense and sparse, into layer_has_experts; without it that stays.
void ReadMlpLayerTypes(ConfigReader& reader, ModelConfig& config);

// `decoder_sparse_step` and `mlp_only_layers`: a layer has experts when (layer_idx + 1) is a multiple of the step and
// it is not listed.
void ReadSparseLayers(ConfigReader& reader, ModelConfig& config);

// `first_k_dense_replace`: the first layers have no experts.
void ReadDenseFirstLayers(ConfigReader& reader, ModelConfig& config, int64_t default_count);

// The router of DeepSeek-V3 ("noaux_tc"): `n_group`, `topk_group`, `norm_topk_prob`, `routed_scaling_factor`.
struct NoauxDefaults {
  bool renormalises = true;
  int64_t num_groups = 1;
  int64_t num_topk_groups = 1;
  double scale = 1;
};
void ReadNoauxRouter(ConfigReader& reader, ModelConfig& config, const NoauxDefaults& defaults = {});

}  // namespace penstock
