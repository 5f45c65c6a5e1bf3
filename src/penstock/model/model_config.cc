#include "penstock/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/model/config_reader.h"
#include "penstock/model/family.h"
#include "penstock/model/generation_config.h"
#include "penstock/model/unsupported.h"

namespace penstock {
namespace {

absl::StatusOr<const Family*> ReadFamily(const ConfigReader& reader) {
  std::string known;
  for (const Family* family : AllFamilies()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family->architecture);
  }
  const json::value* architectures = reader.Find("architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->get_array().empty() ||
      !architectures->get_array()[0].is_string()) {
    return ModelError("config.json: field 'architectures': expected a list with one of {}", known);
  }
  const std::string name(architectures->get_array()[0].get_string());
  const Family* family = FindFamily(name);
  if (family == nullptr) {
    const std::string lack = LackOf(name);
    const bool has_code = lack.empty() && reader.Find("auto_map") != nullptr;
    return ModelError("config.json: field 'architectures': '{}' is not supported{}{}; supported: {}", name, lack,
                      has_code ? " (the model's own, custom code is never run)" : "", known);
  }
  if (reader.Find("auto_map") != nullptr && !family->comes_with_code) {
    return ModelError("config.json: field 'auto_map': the model needs its own code; custom code is never run");
  }
  return family;
}

// Returns the object at a path ("thinker_config.text_config"), or nullptr.
const json::object* FindObject(const json::object& object, std::string_view path) {
  const size_t dot = path.find('.');
  const json::value* found = object.if_contains(json::string_view(path.data(), std::min(dot, path.size())));
  if (found == nullptr || !found->is_object()) return nullptr;
  return dot == std::string_view::npos ? &found->get_object() : FindObject(found->get_object(), path.substr(dot + 1));
}

// Reads `num_hidden_layers`, which follows from `layers_block_type` where it is missing (Nemotron).
int64_t ReadNumLayers(ConfigReader& reader) {
  const json::value* types = reader.Find("num_hidden_layers") == nullptr ? reader.Find("layers_block_type") : nullptr;
  if (types == nullptr || !types->is_array()) return reader.Int("num_hidden_layers", 1, kMaxLayers);
  const auto count = static_cast<int64_t>(types->get_array().size());
  if (count >= 1 && count <= kMaxLayers) return count;
  reader.Fail("layers_block_type", fmt::format("a list of 1 to {} types", kMaxLayers),
              fmt::format("{} of them", count));
  return 1;
}

void ReadCommon(ConfigReader& reader, ModelConfig& config) {
  config.vocab_size = reader.Int("vocab_size", 1, kMaxVocabSize);
  config.model_dim = reader.Int("hidden_size", 1, kMaxModelDim);
  config.num_layers = ReadNumLayers(reader);
  config.num_heads = reader.Int("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads = reader.IntOr("num_key_value_heads", config.num_heads, 1, kMaxHeads);
  const int64_t heads = std::max<int64_t>(1, config.num_heads);
  const int64_t default_head_dim = config.family->default_head_dim;
  config.head_dim =
      reader.IntOr("head_dim", default_head_dim > 0 ? default_head_dim : config.model_dim / heads, 1, kMaxHeadDim);
  if (reader.Find("head_dim") == nullptr && default_head_dim == 0 && reader.Find("kv_lora_rank") == nullptr &&
      config.model_dim % heads != 0) {
    reader.FailRelation(
        fmt::format("hidden_size {} is not a multiple of num_attention_heads {} and head_dim is not given",
                    config.model_dim, config.num_heads));
  }
  const int64_t default_topk = config.family->default_topk;
  config.num_topk = default_topk > 0 ? reader.IntOr("num_experts_per_tok", default_topk, 1, kMaxTopk)
                                     : reader.Int("num_experts_per_tok", 1, kMaxTopk);
  const int64_t default_positions = config.family->default_max_positions;
  config.max_positions = default_positions > 0
                             ? reader.IntOr("max_position_embeddings", default_positions, 1, kMaxContext)
                             : reader.Int("max_position_embeddings", 1, kMaxContext);
  config.norm_eps = static_cast<float>(reader.NumberOr("rms_norm_eps", config.family->default_norm_eps, 0, 1));
  config.tie_embeddings = reader.BoolOr("tie_word_embeddings", false);
  config.layer_has_experts.assign(config.num_layers, true);
  const std::string_view expected = config.family->hidden_act;
  const std::string activation = reader.StringOr("hidden_act", std::string(expected));
  if (activation != expected) {
    reader.Fail("hidden_act", fmt::format("'{}'", expected), fmt::format("'{}'", activation));
  }
}

void CheckRelations(ConfigReader& reader, const ModelConfig& config) {
  if (config.num_topk > config.num_experts) {
    reader.FailRelation(fmt::format("num_experts_per_tok {} is more than the number of experts {}", config.num_topk,
                                    config.num_experts));
  }
  if (config.shared_ffn_dim > kMaxModelDim) {
    reader.FailRelation(
        fmt::format("shared experts of {} columns: expected at most {}", config.shared_ffn_dim, kMaxModelDim));
  }
  const RouterRule& router = config.router;
  if (config.num_experts % router.num_groups != 0) {
    reader.FailRelation(
        fmt::format("{} experts cannot be split into {} equal groups", config.num_experts, router.num_groups));
  } else if (router.num_groups > 1) {
    const int64_t group_size = config.num_experts / router.num_groups;
    const bool takes_two = router.group_score == RouterRule::GroupScore::kTwoLargest;
    if (router.num_topk_groups > router.num_groups || router.num_topk_groups * group_size < config.num_topk ||
        (takes_two && group_size < 2)) {
      reader.FailRelation(fmt::format("{} of {} groups of {} experts are not enough to choose {} from",
                                      router.num_topk_groups, router.num_groups, group_size, config.num_topk));
    }
  }
  const auto check_kv_heads = [&](int64_t num_heads, int64_t num_kv_heads) {
    if (num_kv_heads >= 1 && num_heads % num_kv_heads == 0) return;
    reader.FailRelation(
        fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}", num_heads, num_kv_heads));
  };
  check_kv_heads(config.num_heads, config.num_kv_heads);
  for (const LayerHeads& heads : config.layer_heads) {
    check_kv_heads(heads.num_heads > 0 ? heads.num_heads : config.num_heads, heads.num_kv_heads);
  }
  if (config.head_dim < 1 || config.head_dim > kMaxHeadDim) {
    reader.FailRelation(fmt::format("head_dim {}: expected at most {}", config.head_dim, kMaxHeadDim));
  }
  if (const Recurrent& r = config.recurrent; r.is_on()) {
    if (r.num_value_heads % r.num_key_heads != 0) {
      reader.FailRelation(fmt::format("recurrent layers: {} value heads are not a multiple of {} key heads",
                                      r.num_value_heads, r.num_key_heads));
    }
    if (std::max(r.keys_dim(), r.values_dim()) > kMaxModelDim) {
      reader.FailRelation(fmt::format("recurrent layers of {} and {} columns: expected at most {}", r.keys_dim(),
                                      r.values_dim(), kMaxModelDim));
    }
  }
  if (const Indexer& indexer = config.indexer; indexer.is_on()) {
    if (indexer.head_dim < config.mla.rope_dim) {
      reader.FailRelation(
          fmt::format("index_head_dim {} is less than qk_rope_head_dim {}", indexer.head_dim, config.mla.rope_dim));
    }
    if (indexer.q_dim() > kMaxModelDim) {
      reader.FailRelation(fmt::format("{} index heads of {} dims: expected at most {} in total", indexer.num_heads,
                                      indexer.head_dim, kMaxModelDim));
    }
    if (!config.has_indexer(0)) reader.FailRelation("the first layer has no indexer whose choices it could share");
  }
  const int64_t of_mla = config.num_heads * std::max(config.mla.nope_dim + config.mla.rope_dim, config.mla.value_dim);
  if (const int64_t widest = std::max(config.q_dim(), of_mla); widest > kMaxModelDim) {
    reader.FailRelation(fmt::format("{} heads of {} dims: expected at most {} in total", config.num_heads,
                                    widest / config.num_heads, kMaxModelDim));
  }
}

// Reads `layer_rope_theta` (Granite): a theta for each layer, 0 where nothing rotates; empty without the field.
std::vector<double> ReadLayerThetas(ConfigReader& reader, int64_t num_layers) {
  const json::value* found = reader.Find("layer_rope_theta");
  if (found == nullptr) return {};
  std::vector<double> thetas;
  const json::array* list = found->if_array();
  const bool has_all = list != nullptr && std::ssize(*list) == num_layers;
  for (size_t i = 0; has_all && i < list->size(); ++i) {
    const double theta = (*list)[i].is_number() ? (*list)[i].to_number<double>() : -1;
    if (theta == 0 || (theta >= 1e-3 && theta <= 1e15)) thetas.push_back(theta);
  }
  if (std::ssize(thetas) == num_layers) return thetas;
  reader.Fail("layer_rope_theta", fmt::format("a list of {} numbers, 0 or from 0.001", num_layers),
              json::serialize(*found).substr(0, 60));
  return {};
}

// Reads the RoPEs of all layers, which may differ by layer type or by theta.
void ReadRopes(ConfigReader& reader, RopeDefaults defaults, ModelConfig& config) {
  const LayerRopes kind = config.family->layer_ropes;
  if (kind == LayerRopes::kAlike) return ReadRope(reader, defaults, config.rope);
  if (kind == LayerRopes::kNone) return config.layer_rope.assign(config.num_layers, kNoRope);
  const std::vector<double> thetas =
      kind == LayerRopes::kByTheta ? ReadLayerThetas(reader, config.num_layers) : std::vector<double>();
  std::vector<int8_t> layer_rope(config.num_layers, kNoRope);
  std::vector<Rope> ropes;
  std::map<std::tuple<bool, double, int64_t>, int8_t> known;  // by window, theta and head_dim
  for (size_t layer_idx = 0; layer_idx < layer_rope.size() && reader.status().ok(); ++layer_idx) {
    if (!thetas.empty() && thetas[layer_idx] == 0) continue;
    if (kind == LayerRopes::kByType) {
      defaults.layer_type = config.layer_has_window[layer_idx] ? "sliding_attention" : "full_attention";
    }
    defaults.layer_theta = thetas.empty() ? 0 : thetas[layer_idx];
    if (!config.layer_heads.empty()) defaults.dim = config.layer_heads[layer_idx].head_dim;
    const auto [entry, is_new] =
        known.try_emplace({config.layer_has_window[layer_idx], defaults.layer_theta, defaults.dim}, 0);
    if (is_new) {
      Rope rope;
      rope.is_interleaved = config.rope.is_interleaved;
      ReadRope(reader, defaults, rope);
      const auto same = std::find(ropes.begin(), ropes.end(), rope);
      entry->second = static_cast<int8_t>(same - ropes.begin());
      if (same == ropes.end()) ropes.push_back(std::move(rope));
    }
    if (std::ssize(ropes) > kMaxRopes) return reader.FailRelation(fmt::format("more than {} kinds of RoPE", kMaxRopes));
    layer_rope[layer_idx] = entry->second;
  }
  if (ropes.empty()) {  // nothing rotates
    config.layer_rope = std::move(layer_rope);
    return ReadRope(reader, defaults, config.rope);
  }
  config.rope = ropes[0];
  config.other_ropes.assign(ropes.begin() + 1, ropes.end());
  const bool is_alike = std::all_of(layer_rope.begin(), layer_rope.end(), [](int8_t rope) { return rope == 0; });
  config.layer_rope = is_alike ? std::vector<int8_t>() : std::move(layer_rope);
}

}  // namespace

float QueryScale::At(int64_t position) const {
  // In f32, as in the reference implementation.
  return std::log1p(std::floor(static_cast<float>(position + offset) / static_cast<float>(period))) * factor + 1;
}

int64_t ModelConfig::NumRecurrentBefore(int64_t layer_idx) const {
  if (layer_is_recurrent.empty()) return 0;
  return std::count(layer_is_recurrent.begin(), layer_is_recurrent.begin() + layer_idx, true);
}

int64_t ModelConfig::index_layer_of(int64_t layer_idx) const {
  if (!indexer.is_on()) return 0;
  if (indexer.is_shared.empty()) return layer_idx;
  return std::count(indexer.is_shared.begin(), indexer.is_shared.begin() + layer_idx, false);
}

int64_t ModelConfig::Widest(int64_t of_all, int64_t (ModelConfig::*dim)(int64_t) const) const {
  if (layer_heads.empty()) return of_all;
  int64_t widest = 0;
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) widest = std::max(widest, (this->*dim)(layer_idx));
  return widest;
}

int64_t ModelConfig::AnglesBefore(int64_t rope_idx) const {
  int64_t num_angles = 0;
  for (int64_t idx = 0; idx < rope_idx; ++idx) {
    num_angles += (idx == 0 ? rope : other_ropes[idx - 1]).rotary_dim / 2;
  }
  return num_angles;
}

int64_t ModelConfig::NumWithKvBefore(int64_t layer_idx) const {
  const int64_t num_without =
      layer_has_mixer.empty() ? 0 : std::count(layer_has_mixer.begin(), layer_has_mixer.begin() + layer_idx, false);
  return layer_idx - encoder.num_layers - NumRecurrentBefore(layer_idx) - num_without;
}

int64_t ModelConfig::num_moe_layers() const {
  return std::count(layer_has_experts.begin(), layer_has_experts.end(), true);
}

std::vector<int64_t> ModelConfig::moe_layers() const {
  std::vector<int64_t> layers;
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    if (layer_has_experts[layer_idx]) layers.push_back(layer_idx);
  }
  return layers;
}

absl::StatusOr<ModelConfig> ReadModelConfig(ConfigReader& reader, const Family& family) {
  ModelConfig config;
  config.family = &family;
  ReadCommon(reader, config);
  PENSTOCK_RETURN_IF_ERROR(reader.status());
  family.read_config(reader, config);
  PENSTOCK_RETURN_IF_ERROR(reader.status());
  config.recurrent.decay_is_rate = reader.BoolOr("linear_decay_is_rate", false);
  // With MLA, a fraction is that of a head before its keys are compressed (Mistral 4).
  const Mla& mla = config.mla;
  const bool is_part = mla.is_on() && family.takes_partial_rotary;
  const int64_t mla_dim = is_part ? mla.nope_dim + mla.rope_dim : mla.rope_dim;
  ReadRopes(reader,
            {.dim = mla.is_on() ? mla_dim : config.head_dim,
             .theta = family.default_rope_theta,
             .partial_factor = is_part ? static_cast<double>(mla.rope_dim) / static_cast<double>(mla_dim)
                                       : family.default_partial_rotary,
             .takes_part = family.takes_partial_rotary,
             .scaling = family.default_rope_scaling,
             .max_positions = config.max_positions,
             .takes_alpha = family.takes_rope_alpha},
            config);
  if (is_part && config.rope.rotary_dim != mla.rope_dim) {
    reader.FailRelation(
        fmt::format("{} dims of a head rotate, expected qk_rope_head_dim {}", config.rope.rotary_dim, mla.rope_dim));
  }
  if (config.attention_scale == 0) config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  if (family.yarn_scales_attention) config.attention_scale *= config.rope.attention_factor;
  config.coded = ReadCodedWeights(reader);
  PENSTOCK_RETURN_IF_ERROR(reader.status());
  CheckRelations(reader, config);
  config.eos_ids = ReadTokenIds(reader, "eos_token_id", config.vocab_size);
  PENSTOCK_RETURN_IF_ERROR(reader.status());
  return config;
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json) {
  auto parsed = ParseJson(config_json, Fault::kModel, kPythonJson);
  if (!parsed.ok()) return Annotate(parsed.status(), "config.json");
  if (!parsed->is_object()) return ModelError("config.json: expected an object, found {}", JsonTypeName(*parsed));
  json::object& object = parsed->get_object();
  PENSTOCK_ASSIGN_OR_RETURN(const Family* family, ReadFamily(ConfigReader("config.json", object)));
  if (!family->config_object.empty()) {
    const json::object* part = FindObject(object, family->config_object);
    const bool is_flat = family->config_may_be_flat && !object.contains(family->config_object);
    if (part == nullptr && !is_flat) {
      return ModelError("config.json: field '{}': expected an object", family->config_object);
    }
    for (const auto& [name, value] : part == nullptr ? json::object() : json::object(*part)) {
      // lm_head belongs to the whole model.
      if (name != "tie_word_embeddings" || !object.contains(name)) object[name] = value;
    }
  }
  if (family->rewrite != nullptr) family->rewrite(object);
  ConfigReader reader("config.json", object);
  reader.SetNames(family->field_names);
  return ReadModelConfig(reader, *family);
}

absl::StatusOr<ModelConfig> LoadModelConfig(const ModelFolder& folder) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, folder.Read("config.json", kMaxConfigBytes));
  PENSTOCK_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text));
  if (config.coded.kind == CodedWeights::Kind::kNone && folder.Has(kModeloptFile)) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string coded, folder.Read(kModeloptFile, kMaxConfigBytes));
    PENSTOCK_ASSIGN_OR_RETURN(config.coded, ParseModeloptFile(coded));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const GenerationConfig generation, LoadGenerationConfig(folder, config.vocab_size));
  if (!generation.eos_ids.empty()) config.eos_ids = generation.eos_ids;
  if (!generation.decoder_start_ids.empty()) config.encoder.start_id = generation.decoder_start_ids[0];
  return config;
}

}  // namespace penstock
