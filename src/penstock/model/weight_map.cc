#include "penstock/model/weight_map.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "penstock/base/status.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr int kMaxListed = 10;

std::string Replace(std::string_view pattern, std::string_view placeholder, int64_t idx) {
  std::string name(pattern);
  const size_t pos = name.find(placeholder);
  if (pos != std::string::npos) name.replace(pos, placeholder.size(), std::to_string(idx));
  return name;
}

// What a tensor is for says how it may be stored.
enum class Use { kVector, kRows, kRouter, kMatrix };

// Gives the tensors of a model, one by one.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const TensorInfo* Take(const std::string& name, std::vector<int64_t> shape, Use use = Use::kMatrix) = 0;
  // There is no use in asking for more.
  virtual bool hopeless() const { return false; }
};

// Looks tensors up by name and shape and keeps account of what is missing, misshapen and left over.
class Mapper : public TensorSource {
 public:
  explicit Mapper(const Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}

  const TensorInfo* Take(const std::string& name, std::vector<int64_t> shape, Use use) override {
    const TensorInfo* tensor = checkpoint_->Find(name);
    if (tensor == nullptr) {
      Report(fmt::format("{} is missing", name));
      return nullptr;
    }
    taken_.insert(tensor);
    if (tensor->shape != shape) {
      Report(fmt::format("{} has shape [{}], expected [{}]", name, fmt::join(tensor->shape, ", "),
                         fmt::join(shape, ", ")));
    }
    const bool is_quantised = tensor->packed.has_value() && !IsFloat(*tensor->packed);
    if (tensor->packed.has_value() && (use == Use::kVector || use == Use::kRows)) {
      Report(fmt::format("{} is stored in panels, expected rows", name));
    } else if (is_quantised && use == Use::kRouter) {
      Report(fmt::format("{} is quantised, and a router must not be", name));
    }
    return tensor;
  }

  // Matrices that are multiplied by the same rows are all quantised or all not.
  void CheckAlike(std::initializer_list<const TensorInfo*> tensors) {
    const auto is_quantised = [](const TensorInfo* tensor) {
      return tensor->packed.has_value() && !IsFloat(*tensor->packed);
    };
    for (const TensorInfo* tensor : tensors) {
      if (tensor == nullptr) continue;
      if (first_of_kind_ == nullptr) first_of_kind_ = tensor;
      if (is_quantised(tensor) != is_quantised(first_of_kind_)) {
        Report(fmt::format("{} is quantised and {} is not: expected both or none",
                           is_quantised(tensor) ? tensor->name : first_of_kind_->name,
                           is_quantised(tensor) ? first_of_kind_->name : tensor->name));
      }
    }
  }
  void BeginKind() { first_of_kind_ = nullptr; }

  void Ignore(const std::string& name) {
    const TensorInfo* tensor = checkpoint_->Find(name);
    if (tensor != nullptr) taken_.insert(tensor);
  }

  // So many faults that this is no model of this config at all; there is no use in looking up millions of names.
  bool hopeless() const override { return num_faults_ > 10'000; }

  absl::Status Finish() {
    for (const TensorInfo& tensor : checkpoint_->tensors()) {
      // Old checkpoints store the RoPE frequencies, which follow from the config.
      if (taken_.contains(&tensor) || tensor.name.ends_with("rotary_emb.inv_freq")) continue;
      Report(fmt::format("{} is not part of such a model", tensor.name));
    }
    if (num_faults_ == 0) return absl::OkStatus();
    return ModelError("the tensors do not fit config.json: {}{} (in all {}); is config.json of another model?", listed_,
                      num_faults_ > kMaxListed ? "; ..." : "", num_faults_);
  }

 private:
  void Report(const std::string& fault) {
    if (num_faults_++ < kMaxListed) listed_ += (listed_.empty() ? "" : "; ") + fault;
  }

  const Checkpoint* checkpoint_;
  const TensorInfo* first_of_kind_ = nullptr;
  absl::flat_hash_set<const TensorInfo*> taken_;
  std::string listed_;
  int64_t num_faults_ = 0;
};

FfnTensors MapFfn(TensorSource& source, const std::string& gate, const std::string& up, const std::string& down,
                  int64_t ffn_dim, int64_t model_dim) {
  return {.gate_proj = source.Take(gate, {ffn_dim, model_dim}),
          .up_proj = source.Take(up, {ffn_dim, model_dim}),
          .down_proj = source.Take(down, {model_dim, ffn_dim})};
}

void MapAttention(TensorSource& source, const ModelConfig& config, const std::string& prefix, LayerTensors& layer) {
  const int64_t model_dim = config.model_dim;
  const std::string attention = prefix + "self_attn.";
  layer.attention_norm = source.Take(prefix + "input_layernorm.weight", {model_dim}, Use::kVector);
  layer.q_proj = source.Take(attention + "q_proj.weight", {config.q_dim(), model_dim});
  layer.k_proj = source.Take(attention + "k_proj.weight", {config.kv_dim(), model_dim});
  layer.v_proj = source.Take(attention + "v_proj.weight", {config.kv_dim(), model_dim});
  layer.o_proj = source.Take(attention + "o_proj.weight", {model_dim, config.q_dim()});
  if (config.attention_bias) {
    layer.q_bias = source.Take(attention + "q_proj.bias", {config.q_dim()}, Use::kVector);
    layer.k_bias = source.Take(attention + "k_proj.bias", {config.kv_dim()}, Use::kVector);
    layer.v_bias = source.Take(attention + "v_proj.bias", {config.kv_dim()}, Use::kVector);
    layer.o_bias = source.Take(attention + "o_proj.bias", {model_dim}, Use::kVector);
  }
  if (config.qk_norm != QkNorm::kNone) {
    const bool whole = config.qk_norm == QkNorm::kWhole;
    layer.q_norm = source.Take(attention + "q_norm.weight", {whole ? config.q_dim() : config.head_dim}, Use::kVector);
    layer.k_norm = source.Take(attention + "k_norm.weight", {whole ? config.kv_dim() : config.head_dim}, Use::kVector);
  }
}

LayerTensors MapLayer(TensorSource& source, const ModelConfig& config, int64_t layer_idx) {
  const Family& family = *config.family;
  const std::string prefix = fmt::format("model.layers.{}.", layer_idx);
  LayerTensors layer;
  MapAttention(source, config, prefix, layer);
  layer.ffn_norm = source.Take(prefix + "post_attention_layernorm.weight", {config.model_dim}, Use::kVector);
  if (!config.layer_has_experts[layer_idx]) {
    const std::string mlp = prefix + "mlp.";
    layer.dense_ffn = MapFfn(source, mlp + "gate_proj.weight", mlp + "up_proj.weight", mlp + "down_proj.weight",
                             config.dense_ffn_dim, config.model_dim);
    return layer;
  }
  layer.router_proj =
      source.Take(prefix + std::string(family.router), {config.num_experts, config.model_dim}, Use::kRouter);
  layer.experts.reserve(config.num_experts);
  for (int64_t expert_idx = 0; expert_idx < config.num_experts && !source.hopeless(); ++expert_idx) {
    layer.experts.push_back(MapFfn(source, prefix + Replace(family.expert_gate_proj, "{expert}", expert_idx),
                                   prefix + Replace(family.expert_up_proj, "{expert}", expert_idx),
                                   prefix + Replace(family.expert_down_proj, "{expert}", expert_idx), config.expert_dim,
                                   config.model_dim));
  }
  return layer;
}

WeightMap MapAll(TensorSource& source, const ModelConfig& config) {
  WeightMap map;
  map.embedding = source.Take("model.embed_tokens.weight", {config.vocab_size, config.model_dim},
                              config.tie_embeddings ? Use::kMatrix : Use::kRows);
  map.final_norm = source.Take("model.norm.weight", {config.model_dim}, Use::kVector);
  map.lm_head =
      config.tie_embeddings ? map.embedding : source.Take("lm_head.weight", {config.vocab_size, config.model_dim});
  map.layers.reserve(config.num_layers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers && !source.hopeless(); ++layer_idx) {
    map.layers.push_back(MapLayer(source, config, layer_idx));
  }
  return map;
}

// Makes the tensors that it is asked for, one behind the other in one file.
class Describer : public TensorSource {
 public:
  Describer(WeightFormat format, std::deque<TensorInfo>& tensors) : format_(format), tensors_(&tensors) {}

  const TensorInfo* Take(const std::string& name, std::vector<int64_t> shape, Use use) override {
    TensorInfo tensor{.name = name, .dtype = Dtype::kBF16, .shape = std::move(shape)};
    if (use == Use::kRouter) tensor.packed = WeightFormat::kBF16;
    if (use == Use::kMatrix) tensor.packed = format_;
    // An embedding that is lm_head, too, keeps its dtype; an lm_head of its own is quantised to int8 at most.
    if (name == "model.embed_tokens.weight" && tensor.packed.has_value() && !IsFloat(format_)) {
      tensor.packed = WeightFormat::kBF16;
    }
    if (name == "lm_head.weight" && !IsFloat(format_)) tensor.packed = WeightFormat::kInt8;
    uint64_t num_values = 1;
    for (const int64_t dim : tensor.shape) num_values *= static_cast<uint64_t>(dim);
    tensor.extent = {.offset_bytes = end_bytes_,
                     .size_bytes = tensor.packed.has_value()
                                       ? PackedBytes(*tensor.packed, tensor.shape[0], tensor.shape[1])
                                       : num_values * SizeOf(tensor.dtype)};
    end_bytes_ += tensor.extent.size_bytes;
    return &tensors_->emplace_back(std::move(tensor));
  }

 private:
  WeightFormat format_;
  std::deque<TensorInfo>* tensors_;
  uint64_t end_bytes_ = 0;
};

}  // namespace

absl::StatusOr<WeightMap> MapWeights(const ModelConfig& config, const Checkpoint& checkpoint) {
  Mapper mapper(checkpoint);
  WeightMap map = MapAll(mapper, config);
  if (config.tie_embeddings) mapper.Ignore("lm_head.weight");
  for (const LayerTensors& layer : map.layers) {
    mapper.CheckAlike({layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj});
  }
  mapper.BeginKind();
  for (const LayerTensors& layer : map.layers) {
    mapper.CheckAlike({layer.dense_ffn.gate_proj, layer.dense_ffn.up_proj, layer.dense_ffn.down_proj});
    for (const FfnTensors& expert : layer.experts) {
      mapper.CheckAlike({expert.gate_proj, expert.up_proj, expert.down_proj});
    }
  }
  PENSTOCK_RETURN_IF_ERROR(mapper.Finish());
  return map;
}

std::unique_ptr<DescribedWeights> DescribeWeights(const ModelConfig& config, WeightFormat format) {
  auto weights = std::make_unique<DescribedWeights>();
  Describer describer(format, weights->tensors);
  weights->map = MapAll(describer, config);
  return weights;
}

}  // namespace penstock
