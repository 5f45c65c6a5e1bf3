#include "penstock/model/gguf_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <tuple>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/model/unsupported.h"

namespace penstock {
namespace {

// Fields of config.json, each with the key (below the architecture's name) that means the same.
constexpr FieldName kKeys[] = {
    {"hidden_size", "embedding_length"},
    {"num_hidden_layers", "block_count"},
    {"num_attention_heads", "attention.head_count"},
    {"num_key_value_heads", "attention.head_count_kv"},
    {"head_dim", "attention.key_length"},
    {"max_position_embeddings", "context_length"},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    {"rms_norm_eps", "attention.layer_norm_epsilon"},
    {"intermediate_size", "feed_forward_length"},
    {"intermediate_size", "expert_feed_forward_length"},
    {"moe_intermediate_size", "expert_feed_forward_length"},
    {"expert_dim", "feed_forward_length"},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {"shared_intermediate_size", "expert_shared_feed_forward_length"},
    {"num_experts_per_tok", "expert_used_count"},
    {"num_experts", "expert_count"},
    {"num_local_experts", "expert_count"},
    {"n_shared_experts", "expert_shared_count"},
    {"first_k_dense_replace", "leading_dense_block_count"},
    {"moe_layer_interval", "interleave_moe_layer_step"},
    {"interleave_moe_layer_step", "interleave_moe_layer_step"},
    {"intermediate_size_mlp", "feed_forward_length"},
    {"n_group", "expert_group_count"},
    {"topk_group", "expert_group_used_count"},
    {"routed_scaling_factor", "expert_weights_scale"},
    {"router_scaling_factor", "expert_weights_scale"},
    {"norm_topk_prob", "expert_weights_norm"},
    {"sliding_window", "attention.sliding_window"},
    {"rope_theta", "rope.freq_base"},
    {"q_lora_rank", "attention.q_lora_rank"},
    {"kv_lora_rank", "attention.kv_lora_rank"},
    {"index_n_heads", "attention.indexer.head_count"},
    {"index_head_dim", "attention.indexer.key_length"},
    {"index_topk", "attention.indexer.top_k"},
    {"clip_qkv", "attention.clamp_kqv"},
    {"attention_multiplier", "attention.scale"},
    {"embedding_multiplier", "embedding_scale"},
    {"residual_multiplier", "residual_scale"},
    {"logits_scaling", "logit_scale"},
    {"num_nextn_predict_layers", "nextn_predict_layers"},
    {"linear_conv_kernel_dim", "ssm.conv_kernel"},
    {"linear_key_head_dim", "ssm.state_size"},
    {"linear_num_key_heads", "ssm.group_count"},
    {"linear_num_value_heads", "ssm.time_step_rank"},
    {"full_attention_interval", "full_attention_interval"},
    {"linear_num_heads", "attention.head_count"},
    {"linear_head_dim", "kda.head_dim"},
    {"mamba_d_conv", "ssm.conv_kernel"},
    {"mamba_d_state", "ssm.state_size"},
    {"mamba_n_groups", "ssm.group_count"},
    {"mamba_n_heads", "ssm.time_step_rank"},
    {"mamba_dt_rank", "ssm.time_step_rank"},
    {"conv_kernel", "ssm.conv_kernel"},
    {"ssm_state_size", "ssm.state_size"},
    {"n_groups", "ssm.group_count"},
    {"mamba_num_heads", "ssm.time_step_rank"},
    {"conv_L_cache", "shortconv.l_cache"},
    {"moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {"moe_latent_size", "moe_latent_size"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input"},
    {"num_kv_shared_layers", "attention.shared_kv_layers"},
};

constexpr int64_t kSigmoidGating = 2,
                  kMaxGating = 3;  // expert_gating_func: 1 is softmax over all experts, 3 over the chosen ones
constexpr int kMaxDots = 8;        // dots in a meaningful key

constexpr std::string_view kLongFactors = "rope_factors_long.weight";
constexpr std::string_view kShortFactors = "rope_factors_short.weight";
constexpr std::string_view kFactors =
    "rope_freqs.weight";  // for all lengths, where llama3's scaling was computed before

// Gives several fields one value. (`a["x"] = a["y"] = value` would read from where the second insertion moved "y"
// away.)
void SetAll(json::object& object, std::initializer_list<json::string_view> fields, const json::value& value) {
  for (const json::string_view field : fields) object[field] = value;
}

// Makes the object that the family's config reader reads.
class ConfigMaker {
 public:
  ConfigMaker(const Gguf& gguf, std::string architecture) : gguf_(&gguf), architecture_(std::move(architecture)) {}

  absl::StatusOr<json::object> Make(const Family& family);
  // Returns where a reader finds the fields: the architecture's own keys.
  std::vector<FieldName> names() {
    std::vector<FieldName> result;
    for (const FieldName& key : kKeys) {
      if (key.field == "sliding_window" && !has_window_) continue;
      result.push_back({key.field, keys_.emplace_back(fmt::format("{}.{}", architecture_, key.other))});
    }
    return result;
  }

 private:
  absl::Status CopyKeys();
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view key) const {
    return gguf_->metadata.Integer(fmt::format("{}.{}", architecture_, key));
  }
  absl::StatusOr<double> Number(std::string_view key, double default_value) const {
    PENSTOCK_ASSIGN_OR_RETURN(const auto value, gguf_->metadata.Number(fmt::format("{}.{}", architecture_, key)));
    return value.value_or(default_value);
  }
  bool HasTensors(std::string_view ending) const {
    return std::ranges::any_of(gguf_->tensors, [&](const TensorInfo& tensor) { return tensor.name.ends_with(ending); });
  }
  absl::Status AddAttention(bool is_mla);
  absl::Status AddRouter();
  absl::Status AddRopeScaling();
  absl::Status AddRecurrent();
  absl::Status AddLayers(const Family& family);
  absl::Status AddWindows(const Family& family, int64_t num_layers);
  absl::StatusOr<std::vector<bool>> WindowsOf(int64_t num_layers) const;
  absl::Status AddLayerRopes(LayerRopes kind, int64_t num_layers);
  void AddIndexers(int64_t num_layers);

  const Gguf* gguf_;
  std::string architecture_;
  std::deque<std::string> keys_;
  json::object config_;
  bool has_window_ = false;
};

// Copies the keys of the architecture as nested objects: "llama.attention.head_count" becomes
// config["llama"]["attention"]["head_count"]. Some converters write one number per layer, 0 where a layer does not have
// the part; a list with one number besides 0 becomes that number.
absl::Status ConfigMaker::CopyKeys() {
  for (const GgufMetadata::Field& field : gguf_->metadata.fields()) {
    if (!field.key.starts_with(architecture_ + ".")) continue;
    if (std::count(field.key.begin(), field.key.end(), '.') > kMaxDots) continue;
    json::value value;
    if (field.is_array) {
      if (field.type == GgufType::kString || field.type == GgufType::kFloat32 || field.type == GgufType::kFloat64 ||
          field.type == GgufType::kBool || field.count == 0 || field.count > kMaxLayers) {
        continue;
      }
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, gguf_->metadata.Integers(field.key));
      const auto largest = std::ranges::max(numbers);
      if (std::ranges::any_of(numbers, [&](int64_t x) { return x != 0 && x != largest; })) {
        value = json::array(numbers.begin(), numbers.end());
      } else {
        value = largest;
      }
    } else if (field.type == GgufType::kBool) {
      PENSTOCK_ASSIGN_OR_RETURN(const auto flag, gguf_->metadata.Bool(field.key));
      value = *flag;
    } else if (field.type == GgufType::kString) {
      PENSTOCK_ASSIGN_OR_RETURN(const auto text, gguf_->metadata.String(field.key));
      value = Printable(text.value_or(""));
    } else if (field.type == GgufType::kFloat32 || field.type == GgufType::kFloat64) {
      PENSTOCK_ASSIGN_OR_RETURN(const auto number, gguf_->metadata.Number(field.key));
      value = *number;
    } else {
      PENSTOCK_ASSIGN_OR_RETURN(const auto number, gguf_->metadata.Integer(field.key));
      value = *number;
    }
    json::object* object = &config_;
    std::string_view path = field.key;
    for (size_t dot = path.find('.'); object != nullptr && dot != std::string_view::npos; dot = path.find('.')) {
      const std::string_view name = path.substr(0, dot);
      json::value& inner = (*object)[json::string_view(name.data(), name.size())];
      if (inner.is_null()) inner = json::object();
      object = inner.if_object();
      path.remove_prefix(dot + 1);
    }
    // A key that is a prefix of another has no known meaning.
    if (object != nullptr) object->emplace(json::string_view(path.data(), path.size()), std::move(value));
  }
  return absl::OkStatus();
}

// Returns a - b of numbers from the file, or -1, which every field refuses, on overflow.
int64_t Difference(int64_t a, int64_t b) {
  int64_t difference = 0;
  return __builtin_sub_overflow(a, b, &difference) ? -1 : difference;
}

absl::Status ConfigMaker::AddAttention(bool is_mla) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto rotary_dim, Integer("rope.dimension_count"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto key_length, Integer("attention.key_length"));
  if (is_mla) {
    // Newer files give the dims of compressed K and V, and in separate keys those of a head.
    PENSTOCK_ASSIGN_OR_RETURN(const auto key_of_head, Integer("attention.key_length_mla"));
    PENSTOCK_ASSIGN_OR_RETURN(const auto value_of_head, Integer("attention.value_length_mla"));
    PENSTOCK_ASSIGN_OR_RETURN(const auto value_length, Integer("attention.value_length"));
    const auto nope_dim = key_of_head.has_value() ? key_of_head : key_length;
    if (rotary_dim.has_value()) config_["qk_rope_head_dim"] = *rotary_dim;
    if (rotary_dim.has_value() && nope_dim.has_value())
      config_["qk_nope_head_dim"] = Difference(*nope_dim, *rotary_dim);
    const auto value_dim = value_of_head.has_value() ? value_of_head : value_length;
    if (value_dim.has_value()) config_["v_head_dim"] = *value_dim;
    return absl::OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const auto model_dim, Integer("embedding_length"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto num_heads, Integer("attention.head_count"));
  const int64_t head_dim =
      key_length.value_or(num_heads.value_or(0) > 0 ? model_dim.value_or(0) / num_heads.value_or(1) : 0);
  if (rotary_dim.has_value() && head_dim > 0) {
    // Adds a quarter to survive rounding: the reader multiplies by head_dim again and truncates.
    config_["partial_rotary_factor"] =
        *rotary_dim == head_dim ? 1.0 : (static_cast<double>(*rotary_dim) + 0.25) / static_cast<double>(head_dim);
  }
  return absl::OkStatus();
}

absl::Status ConfigMaker::AddRouter() {
  PENSTOCK_ASSIGN_OR_RETURN(const auto scoring, Integer("expert_gating_func"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto num_groups, Integer("expert_group_count"));
  config_["topk_method"] = num_groups.value_or(1) > 1 ? "group_limited_greedy" : "greedy";
  if (scoring.has_value()) config_["scoring_func"] = *scoring == kSigmoidGating ? "sigmoid" : "softmax";
  PENSTOCK_ASSIGN_OR_RETURN(const auto norm, gguf_->metadata.Bool(architecture_ + ".expert_weights_norm"));
  // Without this key, the architecture decides.
  constexpr std::string_view kNormed[] = {"qwen3moe",  "qwen3vlmoe", "mellum",     "qwen3next",
                                          "qwen35moe", "lfm2moe",    "kimi-linear"};
  if (!norm.has_value()) config_["norm_topk_prob"] = std::ranges::find(kNormed, architecture_) != std::end(kNormed);
  config_["moe_normalize_expert_weights"] = 1;
  // Here GGUF's defaults differ from config.json's.
  for (const auto& [field, key, value] :
       {std::tuple("n_group", "expert_group_count", 1), std::tuple("topk_group", "expert_group_used_count", 1),
        std::tuple("first_k_dense_replace", "leading_dense_block_count", 0),
        std::tuple("n_shared_experts", "expert_shared_count", 0)}) {
    if (gguf_->metadata.Find(fmt::format("{}.{}", architecture_, key)) == nullptr) config_[field] = value;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const auto shared_dim, Integer("expert_shared_feed_forward_length"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto expert_dim, Integer("expert_feed_forward_length"));
  if (shared_dim.has_value() && expert_dim.value_or(0) > 0 && *shared_dim % *expert_dim == 0) {
    config_["num_shared_experts"] = *shared_dim / *expert_dim;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const double scale, Number("expert_weights_scale", 0));
  if (scale == 0) SetAll(config_, {"routed_scaling_factor", "router_scaling_factor"}, 1);
  return absl::OkStatus();
}

absl::Status ConfigMaker::AddRopeScaling() {
  PENSTOCK_ASSIGN_OR_RETURN(const auto type, gguf_->metadata.String(architecture_ + ".rope.scaling.type"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto original, Integer("rope.scaling.original_context_length"));
  json::object scaling;
  if (original.has_value()) scaling["original_max_position_embeddings"] = *original;
  const TensorInfo* factors = gguf_->Find(kFactors);
  const TensorInfo* long_factors = factors == nullptr ? gguf_->Find(kLongFactors) : factors;
  const TensorInfo* short_factors = factors == nullptr ? gguf_->Find(kShortFactors) : factors;
  if (factors != nullptr) SetAll(scaling, {"short_mscale", "long_mscale"}, 1);
  if (long_factors != nullptr && short_factors != nullptr) {
    const auto array = [&](const TensorInfo& tensor) -> absl::StatusOr<json::array> {
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<float> values, ReadFloats(*gguf_, tensor, kMaxHeadDim / 2));
      return json::array(values.begin(), values.end());
    };
    scaling["rope_type"] = "longrope";
    PENSTOCK_ASSIGN_OR_RETURN(scaling["long_factor"], array(*long_factors));
    PENSTOCK_ASSIGN_OR_RETURN(scaling["short_factor"], array(*short_factors));
    PENSTOCK_ASSIGN_OR_RETURN(const double factor, Number("rope.scaling.attn_factor", 0));
    if (factor > 0) SetAll(scaling, {"short_mscale", "long_mscale"}, factor);
    // Converters derive the factor from the lengths; Phi-3.5-MoE's config has another number.
    PENSTOCK_ASSIGN_OR_RETURN(const auto positions, Integer("context_length"));
    if (architecture_ == "phimoe" && positions.value_or(0) > 1 && original.value_or(0) > 1) {
      const auto longer = static_cast<double>(*positions), shorter = static_cast<double>(*original);
      const double usual = std::sqrt(1 + std::log(longer / shorter) / std::log(shorter));
      if (factor == 0 || std::abs(factor - usual) < 1e-5)
        SetAll(scaling, {"short_mscale", "long_mscale"}, 1.243163121016122);
    }
  } else if (type.has_value() && *type != "none") {
    scaling["rope_type"] = Printable(type.value_or(""));
    PENSTOCK_ASSIGN_OR_RETURN(const double factor, Number("rope.scaling.factor", 1));
    scaling["factor"] = factor;
    PENSTOCK_ASSIGN_OR_RETURN(const double log_multiplier, Number("rope.scaling.yarn_log_multiplier", 0));
    // The key holds a tenth of the model's number, as f32, which keeps seven digits.
    if (log_multiplier > 0) {
      SetAll(scaling, {"mscale", "mscale_all_dim"}, std::round(log_multiplier * 10 * 1e6) / 1e6);
    }
    PENSTOCK_ASSIGN_OR_RETURN(const auto attention,
                              gguf_->metadata.Number(architecture_ + ".rope.scaling.yarn_attn_factor"));
    if (attention.has_value()) scaling["attention_factor"] = *attention;
    PENSTOCK_ASSIGN_OR_RETURN(scaling["beta_fast"], Number("rope.scaling.yarn_beta_fast", 32));
    PENSTOCK_ASSIGN_OR_RETURN(scaling["beta_slow"], Number("rope.scaling.yarn_beta_slow", 1));
    if (architecture_ == "gpt-oss") scaling["truncate"] = false;
  } else {
    return absl::OkStatus();
  }
  config_["rope_scaling"] = std::move(scaling);
  return absl::OkStatus();
}

// Recurrent layers, as llama.cpp's converter writes them: their heads in the order of its broadcasts for Qwen3.5. A
// list of flags says which layers they are, or they have no KV heads.
absl::Status ConfigMaker::AddRecurrent() {
  const auto has_key = [&](std::string_view key) {
    return gguf_->metadata.Find(fmt::format("{}.{}", architecture_, key)) != nullptr;
  };
  if (!has_key("ssm.conv_kernel") && !has_key("shortconv.l_cache")) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const auto values_dim, Integer("ssm.inner_size"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto num_heads, Integer("ssm.time_step_rank"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto model_dim, Integer("embedding_length"));
  const auto quotient = [&](const std::optional<int64_t>& divisor) {
    return divisor.value_or(0) > 0 && *values_dim % *divisor == 0 ? *values_dim / *divisor : -1;
  };
  if (values_dim.has_value()) {
    SetAll(config_, {"linear_value_head_dim", "mamba_d_head", "mamba_head_dim"}, quotient(num_heads));
    config_["mamba_expand"] = quotient(model_dim);
  }
  SetAll(config_, {"mamba_conv_bias", "use_conv_bias"}, HasTensors(".ssm_conv1d.bias"));
  config_["linear_heads_alternate"] = architecture_ == "qwen35moe";
  config_["linear_decay_is_rate"] = true;
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<bool> is_recurrent,
                            gguf_->metadata.Bools(architecture_ + ".attention.recurrent_layers"));
  const std::string heads_key = architecture_ + ".attention.head_count_kv";
  const GgufMetadata::Field* heads = gguf_->metadata.Find(heads_key);
  if (is_recurrent.empty() && heads != nullptr && heads->is_array) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> num_kv_heads, gguf_->metadata.Integers(heads_key));
    for (const int64_t count : num_kv_heads) is_recurrent.push_back(count == 0);
    if (std::ranges::find(is_recurrent, true) == is_recurrent.end()) is_recurrent.clear();
  }
  json::array types;
  const std::string_view name = architecture_ == "lfm2moe" ? "conv" : "linear_attention";
  for (const bool is : is_recurrent) types.emplace_back(is ? name : "full_attention");
  if (types.empty()) return absl::OkStatus();
  // Flags of layers that predict further tokens come last.
  const json::value* num_layers = config_.if_contains("num_hidden_layers");
  if (num_layers != nullptr && num_layers->is_int64() && num_layers->get_int64() >= 0 &&
      num_layers->get_int64() < std::ssize(types)) {
    types.resize(static_cast<size_t>(num_layers->get_int64()));
  }
  config_["layer_types"] = std::move(types);
  return absl::OkStatus();
}

// Returns which layers have a window, from a flag for each layer or from a period whose last layer sees everything;
// nothing if the file does not say it.
absl::StatusOr<std::vector<bool>> ConfigMaker::WindowsOf(int64_t num_layers) const {
  const std::string key = architecture_ + ".attention.sliding_window_pattern";
  const GgufMetadata::Field* field = gguf_->metadata.Find(key);
  if (field == nullptr || field->is_array) return gguf_->metadata.Bools(key);
  PENSTOCK_ASSIGN_OR_RETURN(const auto period, gguf_->metadata.Integer(key));
  std::vector<bool> windows;
  for (int64_t i = 0; i < num_layers; ++i) windows.push_back(*period <= 0 || i % *period < *period - 1);
  return windows;
}

// Adds what differs from layer to layer. A layer has experts if it has a router.
absl::Status ConfigMaker::AddLayers(const Family& family) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto num_blocks, Integer("block_count"));
  const json::value* own_count = config_.if_contains("num_hidden_layers");
  const int64_t num_layers = own_count == nullptr ? num_blocks.value_or(0) : own_count->to_number<int64_t>();
  if (num_layers < 1 || num_layers > kMaxLayers) return absl::OkStatus();  // the reader says what is wrong
  constexpr std::string_view kRouter = ".ffn_gate_inp.weight", kPrefix = "blk.";
  std::vector<bool> has_router(num_layers);
  for (const TensorInfo& tensor : gguf_->tensors) {
    if (!tensor.name.starts_with(kPrefix) || !tensor.name.ends_with(kRouter)) continue;
    int64_t idx = -1;
    std::from_chars(tensor.name.data() + kPrefix.size(), tensor.name.data() + tensor.name.size(), idx);
    if (idx >= 0 && idx < num_layers) has_router[idx] = true;
  }
  json::array ffn_types;
  for (const bool has : has_router) ffn_types.emplace_back(has ? "sparse" : "dense");
  config_["mlp_layer_types"] = std::move(ffn_types);
  PENSTOCK_RETURN_IF_ERROR(AddLayerRopes(family.layer_ropes, num_layers));
  AddIndexers(num_layers);
  PENSTOCK_RETURN_IF_ERROR(AddWindows(family, num_layers));
  return family.gguf.add_fields == nullptr ? absl::OkStatus() : family.gguf.add_fields(*gguf_, num_layers, config_);
}

absl::Status ConfigMaker::AddWindows(const Family& family, int64_t num_layers) {
  if (!has_window_) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<bool> windows, WindowsOf(num_layers));
  // Flags of layers that predict further tokens come last.
  if (std::ssize(windows) > num_layers) windows.resize(num_layers);
  if (windows.empty() && family.layer_ropes != LayerRopes::kAlike) {
    return ModelError("key '{}.attention.sliding_window_pattern' is missing", architecture_);
  }
  json::array window_types;
  for (const bool has : windows) window_types.emplace_back(has ? "sliding_attention" : "full_attention");
  if (!windows.empty()) config_["layer_types"] = std::move(window_types);
  return absl::OkStatus();
}

// Adds which layers have an indexer of their own: those whose file has its weights.
void ConfigMaker::AddIndexers(int64_t num_layers) {
  json::array types;
  for (int64_t i = 0; i < num_layers; ++i) {
    types.emplace_back(gguf_->Find(fmt::format("blk.{}.indexer.proj.weight", i)) != nullptr ? "full" : "shared");
  }
  config_["indexer_types"] = std::move(types);
}

absl::Status ConfigMaker::AddLayerRopes(LayerRopes kind, int64_t num_layers) {
  PENSTOCK_ASSIGN_OR_RETURN(const double theta, Number("rope.freq_base", 1e4));
  if (kind == LayerRopes::kByType) {
    // Layers with a window are not scaled.
    PENSTOCK_ASSIGN_OR_RETURN(const double theta_of_windows, Number("rope.freq_base_swa", theta));
    const json::value* scaling = config_.if_contains("rope_scaling");
    json::object full = scaling == nullptr ? json::object() : scaling->get_object();
    full["rope_theta"] = theta;
    config_.erase("rope_scaling");
    config_["rope_parameters"] = {{"full_attention", std::move(full)},
                                  {"sliding_attention", {{"rope_theta", theta_of_windows}}}};
  } else if (kind == LayerRopes::kByTheta) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<bool> rotates,
                              gguf_->metadata.Bools(architecture_ + ".attention.rope_pattern"));
    json::array thetas;
    for (int64_t i = 0; i < num_layers; ++i) {
      thetas.emplace_back(rotates.empty() || (i < std::ssize(rotates) && rotates[i]) ? theta : 0);
    }
    config_["layer_rope_theta"] = std::move(thetas);
  }
  return absl::OkStatus();
}

absl::StatusOr<json::object> ConfigMaker::Make(const Family& family) {
  PENSTOCK_RETURN_IF_ERROR(CopyKeys());
  const TensorInfo* embedding = gguf_->Find("token_embd.weight");
  if (embedding == nullptr) return ModelError("tensor 'token_embd.weight' is missing");
  config_["vocab_size"] = embedding->shape[0];
  config_["tie_word_embeddings"] = gguf_->Find("output.weight") == nullptr;
  config_["lm_head_bias"] = gguf_->Find("output.bias") != nullptr;
  const bool has_bias = HasTensors(".attn_q.bias") || HasTensors(".attn_kv_a_mqa.bias");
  SetAll(config_, {"attention_bias", "qkv_bias"}, has_bias);
  config_["use_expert_bias"] = HasTensors(".exp_probs_b.bias");
  config_["use_qk_norm"] = gguf_->Find("blk.0.attn_q_norm.weight") != nullptr;
  // Llama 4 with 128 experts has no QK norm, whose weights are none in the others.
  if (architecture_ == "llama4") {
    PENSTOCK_ASSIGN_OR_RETURN(const auto num_experts, Integer("expert_count"));
    config_["use_qk_norm"] = num_experts.value_or(0) != 128;
  }
  // The number of blocks includes the layers that predict further tokens.
  PENSTOCK_ASSIGN_OR_RETURN(const auto num_blocks, Integer("block_count"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto num_further, Integer("nextn_predict_layers"));
  if (num_blocks.has_value() && num_further.value_or(0) > 0)
    config_["num_hidden_layers"] = Difference(*num_blocks, *num_further);
  if (!num_further.has_value()) config_["num_nextn_predict_layers"] = 0;
  const bool is_mla = gguf_->metadata.Find(architecture_ + ".attention.kv_lora_rank") != nullptr;
  PENSTOCK_RETURN_IF_ERROR(AddAttention(is_mla));
  PENSTOCK_RETURN_IF_ERROR(AddRouter());
  PENSTOCK_RETURN_IF_ERROR(AddRopeScaling());
  PENSTOCK_RETURN_IF_ERROR(AddRecurrent());
  config_["norms_are_offsets"] = false;  // llama.cpp's converter adds the 1
  PENSTOCK_ASSIGN_OR_RETURN(const auto window, Integer("attention.sliding_window"));
  has_window_ = window.value_or(0) != 0;
  if (!has_window_ && (window.has_value() || family.gguf.has_default_window)) config_["sliding_window"] = nullptr;
  PENSTOCK_RETURN_IF_ERROR(AddLayers(family));
  return std::move(config_);
}

absl::StatusOr<const Family*> FamilyOf(const Gguf& gguf, const std::string& architecture) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto scoring, gguf.metadata.Integer(architecture + ".expert_gating_func"));
  PENSTOCK_ASSIGN_OR_RETURN(const auto num_experts, gguf.metadata.Integer(architecture + ".expert_count"));
  const bool has_shared_ffn = gguf.metadata.Find(architecture + ".expert_shared_feed_forward_length") != nullptr;
  // Without this key, a selection bias means sigmoids: among the architectures concerned only sigmoid routers have one.
  const bool has_bias = std::any_of(gguf.tensors.begin(), gguf.tensors.end(),
                                    [](const TensorInfo& t) { return t.name.ends_with(".exp_probs_b.bias"); });
  const bool is_sigmoid = scoring.has_value() ? *scoring == kSigmoidGating : has_bias;
  std::string known;
  for (const Family* family : AllFamilies()) {
    const GgufFamily& own = family->gguf;
    if (own.architecture.empty()) continue;
    if (known.find(own.architecture) == std::string::npos) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", own.architecture);
    }
    if (own.architecture != architecture) continue;
    if (own.is_sigmoid.has_value() && *own.is_sigmoid != is_sigmoid) continue;
    if (own.has_shared_ffn.has_value() && *own.has_shared_ffn != has_shared_ffn) continue;
    if (num_experts.value_or(0) == 0) {
      return ModelError("key '{}.expert_count': expected at least 1, found {}: only models with experts are computed",
                        architecture, num_experts.has_value() ? "0" : "nothing");
    }
    return family;
  }
  return ModelError("key 'general.architecture': '{}' is not supported{}; supported: {}", Excerpt(architecture),
                    LackOf(architecture), known);
}

// Refuses keys whose values differ from what Penstock computes for this family.
absl::Status CheckWhatIsComputed(const Gguf& gguf, const std::string& architecture, const ModelConfig& config) {
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture, name); };
  const auto refuse = [&](std::string_view name, std::string_view expected, const auto& found) {
    return ModelError("key '{}': expected {}, as {} has it, found {}", key(name), expected, config.family->name, found);
  };
  PENSTOCK_ASSIGN_OR_RETURN(const auto scoring, gguf.metadata.Integer(key("expert_gating_func")));
  const bool is_sigmoid = config.router.scoring == RouterRule::Scoring::kSigmoid;
  if (scoring.has_value() && (*scoring < 0 || *scoring > kMaxGating || (*scoring == kSigmoidGating) != is_sigmoid)) {
    return refuse("expert_gating_func", is_sigmoid ? "2 (sigmoid)" : "1 (softmax)", *scoring);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const auto scale, gguf.metadata.Number(key("expert_weights_scale")));
  if (scale.value_or(0) != 0 && static_cast<float>(*scale) != config.router.scale) {
    return refuse("expert_weights_scale", fmt::format("{}", config.router.scale), *scale);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const auto is_causal, gguf.metadata.Bool(key("attention.causal")));
  if (!is_causal.value_or(true)) return refuse("attention.causal", "true", "false");
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadConfig(const Gguf& gguf) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto architecture, gguf.metadata.String("general.architecture"));
  if (!architecture.has_value()) return ModelError("key 'general.architecture' is missing");
  PENSTOCK_ASSIGN_OR_RETURN(const Family* family, FamilyOf(gguf, *architecture));
  ConfigMaker maker(gguf, *architecture);
  PENSTOCK_ASSIGN_OR_RETURN(const json::object object, maker.Make(*family));
  ConfigReader reader("metadata", object);
  const std::vector<FieldName> names = maker.names();
  reader.SetNames(names);
  PENSTOCK_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(reader, *family));
  PENSTOCK_RETURN_IF_ERROR(CheckWhatIsComputed(gguf, *architecture, config));
  const auto add_eos = [&](std::string_view key) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const auto id, gguf.metadata.Integer(key));
    if (!id.has_value() || *id == 0xFFFFFFFF) return absl::OkStatus();  // some converters write this for "none"
    if (*id < 0 || *id >= config.vocab_size) {
      return ModelError("key '{}': expected an id below {}, found {}", key, config.vocab_size, *id);
    }
    const auto token = static_cast<TokenId>(*id);
    if (std::find(config.eos_ids.begin(), config.eos_ids.end(), token) == config.eos_ids.end()) {
      config.eos_ids.push_back(token);
    }
    return absl::OkStatus();
  };
  for (const std::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    PENSTOCK_RETURN_IF_ERROR(add_eos(key));
  }
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const Gguf& gguf) {
  absl::StatusOr<ModelConfig> config = ReadConfig(gguf);
  if (!config.ok()) return Annotate(config.status(), gguf.files[0].path);
  return config;
}

absl::StatusOr<std::string> GgufConfigJson(const Gguf& gguf) {
  PENSTOCK_ASSIGN_OR_RETURN(const ModelConfig config, ReadGgufConfig(gguf));
  PENSTOCK_ASSIGN_OR_RETURN(const auto architecture, gguf.metadata.String("general.architecture"));
  ConfigMaker maker(gguf, *architecture);
  PENSTOCK_ASSIGN_OR_RETURN(const json::object object, maker.Make(*config.family));
  ConfigReader reader("metadata", object);
  const std::vector<FieldName> names = maker.names();
  reader.SetNames(names);
  json::object result = {{"architectures", json::array{std::string(config.family->architecture)}},
                         {"model_type", std::string(config.family->name)},
                         {"eos_token_id", json::array(config.eos_ids.begin(), config.eos_ids.end())}};
  for (const FieldName& name : names) {
    const json::value* value = reader.Find(name.field);
    if (value != nullptr) result[json::string_view(name.field.data(), name.field.size())] = *value;
  }
  // Fields of the text part may lie outside of its object.
  const std::string_view part = config.family->config_object;
  if (!part.empty()) result[json::string_view(part.data(), part.size())] = json::object();
  // The keys of the architecture were copied below its name; what they say stands in the fields above.
  for (const auto& [field, value] : object) {
    if (field != json::string_view(architecture->data(), architecture->size())) result.emplace(field, value);
  }
  return json::serialize(result) + "\n";
}

bool IsConfigTensor(std::string_view name) { return name == kLongFactors || name == kShortFactors || name == kFactors; }

}  // namespace penstock
