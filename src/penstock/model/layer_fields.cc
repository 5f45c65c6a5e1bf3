#include "penstock/model/layer_fields.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "penstock/base/limits.h"

namespace penstock {

namespace {

// Reads a list with one of two names for each layer: true for `yes`. Returns an empty list when the field is missing or
// invalid.
std::vector<bool> ReadNames(ConfigReader& reader, const char* field, std::string_view yes, std::string_view no,
                            int64_t num_layers) {
  const LayerName names[] = {{yes, 1}, {no, 0}};
  const std::vector<int> kinds = ReadLayerNames(reader, field, names, num_layers);
  return {kinds.begin(), kinds.end()};
}

}  // namespace

std::vector<int> ReadLayerNames(ConfigReader& reader, std::string_view field, std::span<const LayerName> names,
                                int64_t num_layers) {
  const json::value* found = reader.Find(field);
  if (found == nullptr) return {};
  std::string expected = fmt::format("a list of {} times", num_layers);
  for (const LayerName& name : names) {
    expected += fmt::format("{} '{}'", &name == names.data() ? "" : " or", name.name);
  }
  const json::array* list = found->if_array();
  if (list == nullptr || std::ssize(*list) != num_layers) {
    reader.Fail(field, expected, list == nullptr ? JsonTypeName(*found) : fmt::format("{} of them", list->size()));
    return {};
  }
  std::vector<int> kinds;
  for (const json::value& value : *list) {
    const auto same = [&](const LayerName& name) { return value == json::value(name.name); };
    const auto name = std::ranges::find_if(names, same);
    if (name == names.end()) {
      reader.Fail(field, expected, json::serialize(value).substr(0, 60));
      return {};
    }
    kinds.push_back(name->kind);
  }
  return kinds;
}

void ReadSlidingWindow(ConfigReader& reader, ModelConfig& config, int64_t default_value) {
  config.sliding_window =
      reader.IntOr("sliding_window", reader.Has("sliding_window") ? 0 : default_value, 1, kMaxContext);
}

std::vector<int64_t> ReadIntegers(ConfigReader& reader, std::string_view field, int64_t min, int64_t max) {
  const json::value* found = reader.Find(field);
  if (found == nullptr) return {};
  const std::string expected = fmt::format("a list of integers from {} to {}", min, max);
  std::vector<int64_t> numbers;
  const json::array* list = found->if_array();
  if (list == nullptr) reader.Fail(field, expected, JsonTypeName(*found));
  for (const json::value& entry : list == nullptr ? json::array() : *list) {
    if (!entry.is_int64() || entry.get_int64() < min || entry.get_int64() > max) {
      reader.Fail(field, expected, json::serialize(entry).substr(0, 60));
      return {};
    }
    numbers.push_back(entry.get_int64());
  }
  return numbers;
}

void ReadLayerTypes(ConfigReader& reader, ModelConfig& config, std::string_view name_of_windows) {
  std::vector<bool> types = ReadNames(reader, "layer_types", name_of_windows, "full_attention", config.num_layers);
  if (!types.empty()) config.layer_has_window = std::move(types);
}

void RotateWithWindowOnly(ModelConfig& config) {
  for (const bool has_window : config.layer_has_window) config.layer_rope.push_back(has_window ? 0 : kNoRope);
}

void ReadDeltaNet(ConfigReader& reader, ModelConfig& config) {
  config.recurrent = {.num_key_heads = reader.IntOr("linear_num_key_heads", 16, 1, kMaxHeads),
                      .num_value_heads = reader.IntOr("linear_num_value_heads", 32, 1, kMaxHeads),
                      .key_dim = reader.IntOr("linear_key_head_dim", 128, 1, kMaxHeadDim),
                      .value_dim = reader.IntOr("linear_value_head_dim", 128, 1, kMaxHeadDim),
                      .conv_width = reader.IntOr("linear_conv_kernel_dim", 4, 2, 16),
                      .heads_alternate = reader.BoolOr("linear_heads_alternate", false)};
  const int64_t interval = reader.IntOr("full_attention_interval", 4, 1, kMaxLayers);
  config.layer_is_recurrent = ReadNames(reader, "layer_types", "linear_attention", "full_attention", config.num_layers);
  if (!config.layer_is_recurrent.empty()) return;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_is_recurrent.push_back((layer_idx + 1) % interval != 0);
  }
}

namespace {

// Returns which layers share the choices of another layer's indexer.
std::vector<bool> ReadSharedIndexers(ConfigReader& reader, int64_t num_layers) {
  std::vector<bool> is_shared = ReadNames(reader, "indexer_types", "shared", "full", num_layers);
  const json::value* pattern = reader.Find("index_topk_pattern");
  if (!is_shared.empty()) return is_shared;
  if (pattern != nullptr && !pattern->is_string()) {
    return ReadNames(reader, "index_topk_pattern", "shared", "full", num_layers);
  }
  if (pattern != nullptr) {
    const std::string_view letters = pattern->get_string();
    if (std::ssize(letters) != num_layers || letters.find_first_not_of("FS") != std::string_view::npos) {
      reader.Fail("index_topk_pattern", fmt::format("{} times 'F' or 'S'", num_layers),
                  fmt::format("'{}'", letters.substr(0, 60)));
      return {};
    }
    for (const char letter : letters) is_shared.push_back(letter == 'S');
    return is_shared;
  }
  const int64_t every = std::max<int64_t>(1, reader.IntOr("index_topk_freq", 1, 0, kMaxLayers));
  const int64_t offset = reader.IntOr("index_skip_topk_offset", 2, 0, kMaxLayers);
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    is_shared.push_back(std::max<int64_t>(layer_idx - offset + 1, 0) % every != 0);
  }
  return is_shared;
}

}  // namespace

void ReadMla(ConfigReader& reader, ModelConfig& config) {
  config.mla = {.q_lora_rank = reader.IntOr("q_lora_rank", 0, 0, kMaxModelDim),
                .kv_lora_rank = reader.Int("kv_lora_rank", 1, kMaxHeadDim),
                .nope_dim = reader.Int("qk_nope_head_dim", 1, kMaxHeadDim),
                .rope_dim = reader.Int("qk_rope_head_dim", 2, kMaxHeadDim),
                .value_dim = reader.Int("v_head_dim", 1, kMaxHeadDim)};
  config.num_kv_heads = 1;
  config.head_dim = config.mla.kv_lora_rank + config.mla.rope_dim;
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.mla.nope_dim + config.mla.rope_dim));
}

void ReadIndexer(ConfigReader& reader, ModelConfig& config, const IndexerDefaults& defaults) {
  config.indexer = {.num_heads = reader.IntOr("index_n_heads", defaults.num_heads, 1, kMaxHeads),
                    .head_dim = reader.IntOr("index_head_dim", 128, 1, kMaxHeadDim),
                    .num_topk = reader.IntOr("index_topk", 2048, 1, kMaxContext),
                    .is_interleaved = reader.BoolOr("indexer_rope_interleave", defaults.is_interleaved),
                    .is_shared = {}};
  if (!defaults.takes_shared) return;
  config.indexer.is_shared = ReadSharedIndexers(reader, config.num_layers);
  if (std::ranges::find(config.indexer.is_shared, true) == config.indexer.is_shared.end()) {
    config.indexer.is_shared.clear();
  }
}

void ReadMlpLayerTypes(ConfigReader& reader, ModelConfig& config) {
  std::vector<bool> types = ReadNames(reader, "mlp_layer_types", "sparse", "dense", config.num_layers);
  if (!types.empty()) config.layer_has_experts = std::move(types);
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

void ReadNoauxRouter(ConfigReader& reader, ModelConfig& config, const NoauxDefaults& defaults) {
  config.router = {
      .scoring = RouterRule::Scoring::kSigmoid,
      .renormalises = reader.BoolOr("norm_topk_prob", defaults.renormalises),
      .group_score = RouterRule::GroupScore::kTwoLargest,
      .num_groups = static_cast<int32_t>(reader.IntOr("n_group", defaults.num_groups, 1, kMaxExpertGroups)),
      .num_topk_groups =
          static_cast<int32_t>(reader.IntOr("topk_group", defaults.num_topk_groups, 1, kMaxExpertGroups)),
      .scale = static_cast<float>(reader.NumberOr("routed_scaling_factor", defaults.scale, 1e-6, 1e6))};
  config.router_selection_bias = true;
}

}  // namespace penstock
