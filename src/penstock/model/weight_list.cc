#include "penstock/model/weight_list.h"

#include <utility>

#include <fmt/format.h>

#include "penstock/checkpoint/tensor_rows.h"

namespace penstock {

std::string ReplaceIdx(std::string_view pattern, std::string_view placeholder, int64_t idx) {
  std::string name(pattern);
  const size_t pos = name.find(placeholder);
  return pos == std::string::npos ? name : name.replace(pos, placeholder.size(), std::to_string(idx));
}

namespace {

VectorForm NormForm(const ModelConfig& config) {
  return config.norms_are_offsets ? VectorForm::kOffset : VectorForm::kPlain;
}

// Takes the weights of a layer from a TensorSource.
class LayerMapper {
 public:
  LayerMapper(TensorSource& source, const ModelConfig& config, int64_t layer_idx)
      : source_(&source), config_(&config), layer_idx_(layer_idx) {}

  LayerTensors Map() const {
    const ModelConfig& c = *config_;
    LayerTensors layer;
    if (c.has_mixer(layer_idx_)) {
      if (c.input_norms) layer.attention_norm = Norm("input_layernorm.weight", c.model_dim);
      if (c.norm_bias) layer.attention_norm_bias = Vector("input_layernorm.bias", c.model_dim);
      c.is_recurrent(layer_idx_) ? MapRecurrent(layer) : MapAttention(layer);
      if (c.has_cross_attention(layer_idx_)) MapCrossAttention(layer);
    }
    const bool norms_experts = c.output_norms == OutputNorms::kExperts;
    if (c.output_norms != OutputNorms::kNone && !norms_experts) {
      layer.attention_output_norm = Norm("attention_output_norm.weight", c.model_dim);
    }
    if (norms_experts ? c.layer_has_experts[layer_idx_] : c.output_norms != OutputNorms::kNone) {
      layer.ffn_output_norm = Norm("ffn_output_norm.weight", c.model_dim);
    }
    if (c.layer_scales) layer.layer_scale = Vector("layer_scale", 1);
    if (!c.has_ffn(layer_idx_)) return layer;
    if (c.input_norms && !c.parallel_ffn) layer.ffn_norm = Norm("post_attention_layernorm.weight", c.model_dim);
    if (c.norm_bias) layer.ffn_norm_bias = Vector("post_attention_layernorm.bias", c.model_dim);
    if (c.layer_has_experts[layer_idx_]) MapExperts(layer);
    if (!c.layer_has_experts[layer_idx_]) layer.dense_ffn = Ffn("mlp.", c.dense_ffn_dim);
    return layer;
  }

 private:
  const TensorInfo* Take(std::string_view name, std::vector<int64_t> shape, WeightUse use,
                         int64_t expert_idx = -1) const {
    return source_->Take({name, std::move(shape), use, layer_idx_, expert_idx});
  }
  const TensorInfo* Vector(std::string_view name, int64_t dim) const { return Take(name, {dim}, WeightUse::kVector); }
  const TensorInfo* Norm(std::string_view name, int64_t dim) const {
    return source_->Take(
        {.name = name, .shape = {dim}, .use = WeightUse::kVector, .layer_idx = layer_idx_, .form = NormForm(*config_)});
  }
  const TensorInfo* Matrix(std::string_view name, int64_t num_cols, int64_t inner_dim, int64_t num_groups = 1) const {
    return source_->Take(
        {.name = name, .shape = {num_cols, inner_dim}, .layer_idx = layer_idx_, .num_groups = num_groups});
  }

  void MapAttention(LayerTensors& layer) const {
    const ModelConfig& c = *config_;
    if (c.mla.is_on()) return MapMla(layer);
    const LayerHeads heads = c.heads_of(layer_idx_);
    const int64_t num_heads = c.num_heads_of(layer_idx_), q_dim = c.q_dim(layer_idx_);
    const int64_t kv_dim = c.kv_dim(layer_idx_), v_dim = c.v_dim(layer_idx_);
    layer.q_proj = Matrix("self_attn.q_proj.weight", q_dim, c.model_dim, num_heads);
    if (c.attention_gate)
      layer.gate_proj = Matrix("self_attn.gate_proj.weight", c.gate_dim(layer_idx_), c.model_dim, num_heads);
    layer.k_proj = Matrix("self_attn.k_proj.weight", kv_dim, c.model_dim);
    if (!heads.keys_are_values) layer.v_proj = Matrix("self_attn.v_proj.weight", v_dim, c.model_dim);
    layer.o_proj = Matrix("self_attn.o_proj.weight", c.model_dim, c.attended_dim(layer_idx_));
    if (c.qkv_bias) {
      layer.q_bias = Vector("self_attn.q_proj.bias", q_dim);
      layer.k_bias = Vector("self_attn.k_proj.bias", kv_dim);
      if (!heads.keys_are_values) layer.v_bias = Vector("self_attn.v_proj.bias", v_dim);
    }
    if (c.o_bias) layer.o_bias = Vector("self_attn.o_proj.bias", c.model_dim);
    if (c.qk_norm != QkNorm::kNone && c.qk_norm != QkNorm::kUnitAfterRope) {
      const bool whole = c.qk_norm == QkNorm::kWhole;
      layer.q_norm = Norm("self_attn.q_norm.weight", whole ? q_dim : heads.head_dim);
      layer.k_norm = Norm("self_attn.k_norm.weight", whole ? kv_dim : heads.head_dim);
    }
    if (c.has_sinks(layer_idx_)) layer.sinks = Vector("self_attn.sinks", num_heads);
  }

  // Weights that are stored as rows of one matrix are taken in the order of the rows.
  void MapRecurrent(LayerTensors& layer) const {
    const int64_t model_dim = config_->model_dim;
    const Recurrent& r = config_->recurrent;
    const auto matrix = [&](std::string_view name, int64_t num_cols, int64_t inner_dim) {
      return Matrix(name, num_cols, inner_dim, r.num_key_heads);
    };
    const auto q_proj = [&] { return matrix("linear_attn.q_proj.weight", r.keys_dim(), model_dim); };
    const auto k_proj = [&] { return matrix("linear_attn.k_proj.weight", r.k_cols(), model_dim); };
    const auto v_proj = [&] { return matrix("linear_attn.v_proj.weight", r.values_dim(), model_dim); };
    const auto gate_proj = [&](int64_t dim) { return matrix("linear_attn.gate_proj.weight", r.values_dim(), dim); };
    const auto decay_proj = [&](int64_t dim) { return matrix("linear_attn.decay_proj.weight", r.decay_cols(), dim); };
    const auto map_qkv = [&] {
      layer.q_proj = q_proj();
      layer.k_proj = k_proj();
      layer.v_proj = v_proj();
    };
    switch (r.kind) {
      case RecurrentKind::kDeltaNet:
        map_qkv();
        layer.gate_proj = gate_proj(model_dim);
        layer.beta_proj = matrix("linear_attn.beta_proj.weight", r.num_value_heads, model_dim);
        layer.decay_proj = decay_proj(model_dim);
        break;
      case RecurrentKind::kKimiDelta:
        map_qkv();
        layer.beta_proj = matrix("linear_attn.beta_proj.weight", r.num_value_heads, model_dim);
        if (r.rank > 0) layer.gate_a_proj = matrix("linear_attn.gate_a_proj.weight", r.rank, model_dim);
        layer.gate_proj = gate_proj(r.rank > 0 ? r.rank : model_dim);
        if (r.rank > 0) layer.decay_a_proj = matrix("linear_attn.decay_a_proj.weight", r.rank, model_dim);
        layer.decay_proj = decay_proj(r.rank > 0 ? r.rank : model_dim);
        break;
      case RecurrentKind::kMamba2:
        layer.gate_proj = gate_proj(model_dim);
        layer.v_proj = v_proj();
        layer.k_proj = k_proj();
        layer.q_proj = q_proj();
        layer.decay_proj = decay_proj(model_dim);
        break;
      case RecurrentKind::kMamba1:
        layer.v_proj = v_proj();
        layer.gate_proj = gate_proj(model_dim);
        layer.decay_a_proj = matrix("linear_attn.decay_a_proj.weight", r.rank, r.values_dim());
        layer.k_proj = matrix("linear_attn.k_proj.weight", r.keys_dim(), r.values_dim());
        layer.q_proj = matrix("linear_attn.q_proj.weight", r.keys_dim(), r.values_dim());
        layer.decay_proj = decay_proj(r.rank);
        break;
      case RecurrentKind::kLightning:
        map_qkv();
        layer.gate_proj = gate_proj(model_dim);
        break;
      case RecurrentKind::kShortConv:
        layer.k_proj = k_proj();
        layer.gate_proj = gate_proj(model_dim);
        layer.v_proj = v_proj();
        break;
    }
    MapState(layer);
    layer.o_proj = Matrix("linear_attn.o_proj.weight", model_dim, r.values_dim());
  }

  // The weights of convolutions and gates, and the norms.
  void MapState(LayerTensors& layer) const {
    const Recurrent& r = config_->recurrent;
    if (r.kind == RecurrentKind::kLightning) {
      layer.mixer_norm = Vector("linear_attn.norm.weight", r.values_dim());
      return;
    }
    const bool is_kimi = r.kind == RecurrentKind::kKimiDelta;
    const auto conv = [&](std::string_view name, int64_t num_channels) {
      return Take(name, {r.conv_width, num_channels}, WeightUse::kRows);
    };
    layer.conv_weight = conv("linear_attn.conv.weight", is_kimi ? r.keys_dim() : r.num_channels());
    if (is_kimi) {
      layer.conv_k_weight = conv("linear_attn.conv_k.weight", r.keys_dim());
      layer.conv_v_weight = conv("linear_attn.conv_v.weight", r.values_dim());
    }
    if (r.conv_bias) layer.conv_bias = Vector("linear_attn.conv.bias", r.num_channels());
    if (!r.has_matrix()) return;
    const bool is_mamba1 = r.kind == RecurrentKind::kMamba1, is_mamba2 = r.kind == RecurrentKind::kMamba2;
    layer.decay_bias = Vector("linear_attn.decay_bias", r.decay_cols());
    using Shape = std::vector<int64_t>;
    layer.decay_log = source_->Take({.name = "linear_attn.decay_log",
                                     .shape = is_mamba1 ? Shape{r.key_dim, r.values_dim()} : Shape{r.num_value_heads},
                                     .use = is_mamba1 ? WeightUse::kRows : WeightUse::kVector,
                                     .layer_idx = layer_idx_,
                                     .form = r.decay_is_rate ? VectorForm::kNegativeRate : VectorForm::kPlain});
    if (is_mamba1) {
      layer.decay_norm = Vector("linear_attn.decay_norm.weight", r.rank);
      layer.k_norm = Vector("linear_attn.k_norm.weight", r.key_dim);
      layer.q_norm = Vector("linear_attn.q_norm.weight", r.key_dim);
    } else {
      layer.mixer_norm = Vector("linear_attn.norm.weight", is_mamba2 ? r.values_dim() : r.value_dim);
    }
    if (!r.is_delta()) layer.skip = Vector("linear_attn.skip", is_mamba1 ? r.values_dim() : r.num_value_heads);
  }

  void MapCrossAttention(LayerTensors& layer) const {
    const ModelConfig& c = *config_;
    layer.cross_norm = Vector("cross_layernorm.weight", c.model_dim);
    layer.cross_q_proj = Matrix("cross_attn.q_proj.weight", c.q_dim(), c.model_dim);
    layer.cross_k_proj = Matrix("cross_attn.k_proj.weight", c.kv_dim(), c.model_dim);
    layer.cross_v_proj = Matrix("cross_attn.v_proj.weight", c.kv_dim(), c.model_dim);
    layer.cross_o_proj = Matrix("cross_attn.o_proj.weight", c.model_dim, c.q_dim());
  }

  void MapMla(LayerTensors& layer) const {
    const ModelConfig& c = *config_;
    const Mla& mla = c.mla;
    const int64_t q_dim = c.num_heads * (mla.nope_dim + mla.rope_dim);
    if (mla.q_lora_rank > 0) {
      layer.q_a_proj = Matrix("self_attn.q_a_proj.weight", mla.q_lora_rank, c.model_dim);
      if (c.qkv_bias) layer.q_a_bias = Vector("self_attn.q_a_proj.bias", mla.q_lora_rank);
      layer.q_a_norm = Vector("self_attn.q_a_layernorm.weight", mla.q_lora_rank);
      layer.q_proj = Matrix("self_attn.q_b_proj.weight", q_dim, mla.q_lora_rank);
    } else {
      layer.q_proj = Matrix("self_attn.q_proj.weight", q_dim, c.model_dim);
    }
    layer.k_proj = Matrix("self_attn.kv_a_proj_with_mqa.weight", c.kv_dim(), c.model_dim);
    if (c.qkv_bias) layer.k_bias = Vector("self_attn.kv_a_proj_with_mqa.bias", c.kv_dim());
    layer.k_norm = Vector("self_attn.kv_a_layernorm.weight", mla.kv_lora_rank);
    layer.k_up_proj =
        Take("self_attn.k_up_proj.weight", {c.num_heads, mla.kv_lora_rank, mla.nope_dim}, WeightUse::kMatrix);
    layer.v_up_proj =
        Take("self_attn.v_up_proj.weight", {c.num_heads, mla.value_dim, mla.kv_lora_rank}, WeightUse::kMatrix);
    layer.o_proj = Matrix("self_attn.o_proj.weight", c.model_dim, c.num_heads * mla.value_dim);
    if (c.o_bias) layer.o_bias = Vector("self_attn.o_proj.bias", c.model_dim);
    if (c.attention_gate) layer.gate_proj = Matrix("self_attn.gate_proj.weight", c.gate_dim(layer_idx_), c.model_dim);
    if (c.has_indexer(layer_idx_)) MapIndexer(layer);
  }

  void MapIndexer(LayerTensors& layer) const {
    const Indexer& indexer = config_->indexer;
    layer.index_q_proj = Matrix("self_attn.indexer.q_proj.weight", indexer.q_dim(), config_->mla.q_lora_rank);
    layer.index_k_proj = Matrix("self_attn.indexer.k_proj.weight", indexer.head_dim, config_->model_dim);
    layer.index_weights_proj =
        Take("self_attn.indexer.weights_proj.weight", {indexer.num_heads, config_->model_dim}, WeightUse::kRouter);
    layer.index_k_norm = Vector("self_attn.indexer.k_norm.weight", indexer.head_dim);
    layer.index_k_norm_bias = Vector("self_attn.indexer.k_norm.bias", indexer.head_dim);
  }

  void MapExperts(LayerTensors& layer) const {
    const ModelConfig& c = *config_;
    layer.router_proj = Take("mlp.gate.weight", {c.num_experts, c.model_dim}, WeightUse::kRouter);
    if (c.router_bias) layer.router_bias = Vector("mlp.gate.bias", c.num_experts);
    if (c.router_selection_bias)
      layer.router_selection_bias = Vector("mlp.gate.e_score_correction_bias", c.num_experts);
    if (c.shared_ffn_dim > 0) layer.shared_ffn = Ffn("mlp.shared_expert.", c.shared_ffn_dim);
    if (c.shared_gate)
      layer.shared_gate_proj = Take("mlp.shared_expert_gate.weight", {1, c.model_dim}, WeightUse::kRouter);
    const bool norms_parts = c.output_norms == OutputNorms::kParts;
    if (c.parallel_experts || norms_parts) layer.shared_norm = Norm("residual_layernorm.weight", c.model_dim);
    if (norms_parts) {
      layer.shared_output_norm = Norm("shared_output_norm.weight", c.model_dim);
      layer.expert_output_norm = Norm("expert_output_norm.weight", c.model_dim);
    }
    if (c.router_norm) layer.router_norm = Norm("mlp.gate.norm.weight", c.model_dim);
    if (c.expert_scales) layer.expert_scales = Vector("mlp.expert_scales", c.num_experts);
    if (c.latent_dim > 0) {
      layer.latent_in_proj = Matrix("mlp.latent_in_proj.weight", c.latent_dim, c.model_dim);
      layer.latent_out_proj = Matrix("mlp.latent_out_proj.weight", c.model_dim, c.latent_dim);
    }
    if (c.expert_bias) {
      layer.expert_gate_bias = Vector("mlp.experts.gate_proj.bias", c.num_experts * c.expert_dim);
      layer.expert_up_bias = Vector("mlp.experts.up_proj.bias", c.num_experts * c.expert_dim);
      layer.expert_down_bias = Vector("mlp.experts.down_proj.bias", c.num_experts * c.expert_row_dim());
    }
    layer.experts.reserve(c.num_stored_experts());
    for (int64_t expert_idx = 0; expert_idx < c.num_stored_experts() && !source_->hopeless(); ++expert_idx) {
      layer.experts.push_back({Ffn("mlp.experts.{expert}.", c.expert_dim, expert_idx)});
    }
  }

  FfnParts<const TensorInfo*> Ffn(const std::string& prefix, int64_t ffn_dim, int64_t expert_idx = -1) const {
    const int64_t row_dim = expert_idx < 0 ? config_->model_dim : config_->expert_row_dim();
    const auto matrix = [&](const char* name, int64_t num_cols, int64_t inner_dim) {
      return Take(prefix + name, {num_cols, inner_dim}, WeightUse::kMatrix, expert_idx);
    };
    return {.gate_proj = config_->is_gated ? matrix("gate_proj.weight", ffn_dim, row_dim) : nullptr,
            .up_proj = matrix("up_proj.weight", ffn_dim, row_dim),
            .down_proj = matrix("down_proj.weight", row_dim, ffn_dim)};
  }

  TensorSource* source_;
  const ModelConfig* config_;
  int64_t layer_idx_;
};

}  // namespace

void TakeWeights(TensorSource& source, const ModelConfig& config, WeightMap& map) {
  const auto vector = [&](std::string_view name, int64_t dim) {
    return source.Take({name, {dim}, WeightUse::kVector});
  };
  map.embedding = source.Take({"model.embed_tokens.weight",
                               {config.vocab_size, config.model_dim},
                               config.tie_embeddings ? WeightUse::kMatrix : WeightUse::kRows});
  map.final_norm = source.Take(
      {.name = "model.norm.weight", .shape = {config.model_dim}, .use = WeightUse::kVector, .form = NormForm(config)});
  if (config.norm_bias) map.final_norm_bias = vector("model.norm.bias", config.model_dim);
  map.lm_head = config.tie_embeddings
                    ? map.embedding
                    : source.Take({"lm_head.weight", {config.vocab_size, config.model_dim}, WeightUse::kMatrix});
  if (config.lm_head_bias) map.lm_head_bias = vector("lm_head.bias", config.vocab_size);
  if (config.encoder.is_on()) {
    map.encoder_norm = vector("model.encoder.norm.weight", config.model_dim);
    for (const auto& [name, bias] : {std::pair("model.encoder.relative_bias.weight", &map.encoder_bias),
                                     std::pair("model.decoder.relative_bias.weight", &map.decoder_bias)}) {
      *bias = source.Take({name, {config.encoder.num_buckets, config.num_heads}, WeightUse::kRows});
    }
  }
  map.layers.reserve(config.num_layers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers && !source.hopeless(); ++layer_idx) {
    map.layers.push_back(LayerMapper(source, config, layer_idx).Map());
  }
}

namespace {

// Makes the requested tensors, one after another in one file.
class Describer : public TensorSource {
 public:
  Describer(WeightFormat format, std::deque<TensorInfo>& tensors) : format_(format), tensors_(&tensors) {}

  const TensorInfo* Take(const Weight& weight) override {
    TensorInfo tensor{.name = weight.FullName(), .dtype = Dtype::kBF16, .shape = weight.shape};
    if (weight.use == WeightUse::kRouter) tensor.packed = WeightFormat::kBF16;
    if (weight.use == WeightUse::kMatrix) tensor.packed = format_;
    // An embedding that is also lm_head keeps its dtype; a separate lm_head is quantised to int8 at most.
    if (tensor.name == "model.embed_tokens.weight" && tensor.packed.has_value() && !IsFloat(format_)) {
      tensor.packed = WeightFormat::kBF16;
    }
    if (tensor.name == "lm_head.weight" && IsCodes(format_)) tensor.packed = WeightFormat::kInt8;
    // Checkpoints of these codes keep lm_head in its dtype; MXFP4 ones keep all weights except experts. No kernel
    // multiplies MLA's heads in blocks.
    const bool is_coded = format_ == WeightFormat::kFp8 || format_ == WeightFormat::kMxfp4 ||
                          format_ == WeightFormat::kU4 || format_ == WeightFormat::kNvfp4;
    const bool stays = tensor.name == "lm_head.weight" || (format_ == WeightFormat::kMxfp4 && weight.expert_idx < 0) ||
                       weight.shape.size() == 3;
    if (tensor.packed.has_value() && is_coded && stays) tensor.packed = WeightFormat::kBF16;
    tensor.extent = {.offset_bytes = end_bytes_,
                     .size_bytes = tensor.packed.has_value()
                                       ? PackedStoreBytes(tensor, *tensor.packed)
                                       : static_cast<uint64_t>(weight.num_elements()) * SizeOf(tensor.dtype)};
    end_bytes_ += tensor.extent.size_bytes;
    return &tensors_->emplace_back(std::move(tensor));
  }

 private:
  WeightFormat format_;
  std::deque<TensorInfo>* tensors_;
  uint64_t end_bytes_ = 0;
};

}  // namespace

WeightMap DescribeWeights(const ModelConfig& config, WeightFormat format) {
  WeightMap map;
  Describer describer(format, map.own);
  TakeWeights(describer, config, map);
  return map;
}

}  // namespace penstock
