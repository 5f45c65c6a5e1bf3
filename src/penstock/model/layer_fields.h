// Readers for fields of config.json that several families share.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "penstock/model/config_reader.h"
#include "penstock/model/model_config.h"

namespace penstock {

// A name that a layer may have in a list of config.json, and the kind of layer for which it stands.
struct LayerName {
  std::string_view name;
  int kind;
};
// Reads a list with one of these names for each layer, and returns their kinds. Returns an empty list when the field is
// missing or invalid.
std::vector<int> ReadLayerNames(ConfigReader& reader, std::string_view field, std::span<const LayerName> names,
                                int64_t num_layers);

// Reads `sliding_window`. Null means full attention; only an absent field takes the default.
void ReadSlidingWindow(ConfigReader& reader, ModelConfig& config, int64_t default_value);

// Reads a list of integers; empty without the field or after an error.
std::vector<int64_t> ReadIntegers(ConfigReader& reader, std::string_view field, int64_t min, int64_t max);

// Reads `layer_types`, a list of sliding_attention (or another name) and full_attention, into layer_has_window, which
// stays unchanged without the field.
void ReadLayerTypes(ConfigReader& reader, ModelConfig& config, std::string_view name_of_windows = "sliding_attention");

// Makes only layers with a window rotate. REQUIRES: layer_has_window.
void RotateWithWindowOnly(ModelConfig& config);

// Reads gated DeltaNet: the `linear_` fields, and `layer_types`, a list of linear_attention and full_attention, or
// else `full_attention_interval`.
void ReadDeltaNet(ConfigReader& reader, ModelConfig& config);

// Reads `mlp_layer_types`, a list of dense and sparse, into layer_has_experts, which stays unchanged without the field.
void ReadMlpLayerTypes(ConfigReader& reader, ModelConfig& config);

// Reads `decoder_sparse_step` and `mlp_only_layers`: a layer has experts when (layer_idx + 1) is a multiple of the step
// and the layer is not listed.
void ReadSparseLayers(ConfigReader& reader, ModelConfig& config);

// Reads `first_k_dense_replace`: the first layers have no experts.
void ReadDenseFirstLayers(ConfigReader& reader, ModelConfig& config, int64_t default_count);

// Defaults for the router of DeepSeek-V3 ("noaux_tc"): `n_group`, `topk_group`, `norm_topk_prob`,
// `routed_scaling_factor`.
struct NoauxDefaults {
  bool renormalises = true;
  int64_t num_groups = 1;
  int64_t num_topk_groups = 1;
  double scale = 1;
};
void ReadNoauxRouter(ConfigReader& reader, ModelConfig& config, const NoauxDefaults& defaults = {});

// Reads the dims of MLA, and the KV head and the scale that follow from them.
void ReadMla(ConfigReader& reader, ModelConfig& config);

// Reads the lightning indexer: the `index_` fields, and which layers share another's choices: `indexer_types`, a list
// of full and shared, or else `index_topk_pattern`, or else `index_topk_freq` and `index_skip_topk_offset`. REQUIRES:
// MLA with a q_lora_rank.
struct IndexerDefaults {
  int64_t num_heads;
  bool is_interleaved;
  bool takes_shared;  // layers may share
};
void ReadIndexer(ConfigReader& reader, ModelConfig& config, const IndexerDefaults& defaults);

}  // namespace penstock
