#include "penstock/model/weight_map.h"

#include <string>

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

// Looks tensors up by name and shape and keeps account of what is missing, misshapen and left over.
class Mapper {
 public:
  explicit Mapper(const Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}

  // What a tensor is for says how it may be stored.
  enum class Use { kVector, kRows, kRouter, kMatrix };

  const TensorInfo* Take(const std::string& name, std::vector<int64_t> shape, Use use = Use::kMatrix) {
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
  bool hopeless() const { return num_faults_ > 10'000; }

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

FfnTensors MapFfn(Mapper& mapper, const std::string& gate, const std::string& up, const std::string& down,
                  int64_t ffn_dim, int64_t model_dim) {
  return {.gate_proj = mapper.Take(gate, {ffn_dim, model_dim}),
          .up_proj = mapper.Take(up, {ffn_dim, model_dim}),
          .down_proj = mapper.Take(down, {model_dim, ffn_dim})};
}

void MapAttention(Mapper& mapper, const ModelConfig& config, const std::string& prefix, LayerTensors& layer) {
  const int64_t model_dim = config.model_dim;
  const std::string attention = prefix + "self_attn.";
  layer.attention_norm = mapper.Take(prefix + "input_layernorm.weight", {model_dim}, Mapper::Use::kVector);
  layer.q_proj = mapper.Take(attention + "q_proj.weight", {config.q_dim(), model_dim});
  layer.k_proj = mapper.Take(attention + "k_proj.weight", {config.kv_dim(), model_dim});
  layer.v_proj = mapper.Take(attention + "v_proj.weight", {config.kv_dim(), model_dim});
  layer.o_proj = mapper.Take(attention + "o_proj.weight", {model_dim, config.q_dim()});
  if (config.attention_bias) {
    layer.q_bias = mapper.Take(attention + "q_proj.bias", {config.q_dim()}, Mapper::Use::kVector);
    layer.k_bias = mapper.Take(attention + "k_proj.bias", {config.kv_dim()}, Mapper::Use::kVector);
    layer.v_bias = mapper.Take(attention + "v_proj.bias", {config.kv_dim()}, Mapper::Use::kVector);
    layer.o_bias = mapper.Take(attention + "o_proj.bias", {model_dim}, Mapper::Use::kVector);
  }
  if (config.qk_norm != QkNorm::kNone) {
    const bool whole = config.qk_norm == QkNorm::kWhole;
    layer.q_norm =
        mapper.Take(attention + "q_norm.weight", {whole ? config.q_dim() : config.head_dim}, Mapper::Use::kVector);
    layer.k_norm =
        mapper.Take(attention + "k_norm.weight", {whole ? config.kv_dim() : config.head_dim}, Mapper::Use::kVector);
  }
}

LayerTensors MapLayer(Mapper& mapper, const ModelConfig& config, int64_t layer_idx) {
  const Family& family = *config.family;
  const std::string prefix = fmt::format("model.layers.{}.", layer_idx);
  LayerTensors layer;
  MapAttention(mapper, config, prefix, layer);
  layer.ffn_norm = mapper.Take(prefix + "post_attention_layernorm.weight", {config.model_dim}, Mapper::Use::kVector);
  if (!config.layer_has_experts[layer_idx]) {
    const std::string mlp = prefix + "mlp.";
    layer.dense_ffn = MapFfn(mapper, mlp + "gate_proj.weight", mlp + "up_proj.weight", mlp + "down_proj.weight",
                             config.dense_ffn_dim, config.model_dim);
    return layer;
  }
  layer.router_proj =
      mapper.Take(prefix + std::string(family.router), {config.num_experts, config.model_dim}, Mapper::Use::kRouter);
  layer.experts.reserve(config.num_experts);
  for (int64_t expert_idx = 0; expert_idx < config.num_experts && !mapper.hopeless(); ++expert_idx) {
    layer.experts.push_back(MapFfn(mapper, prefix + Replace(family.expert_gate_proj, "{expert}", expert_idx),
                                   prefix + Replace(family.expert_up_proj, "{expert}", expert_idx),
                                   prefix + Replace(family.expert_down_proj, "{expert}", expert_idx), config.expert_dim,
                                   config.model_dim));
  }
  return layer;
}

}  // namespace

absl::StatusOr<WeightMap> MapWeights(const ModelConfig& config, const Checkpoint& checkpoint) {
  Mapper mapper(checkpoint);
  WeightMap map;
  map.embedding = mapper.Take("model.embed_tokens.weight", {config.vocab_size, config.model_dim},
                              config.tie_embeddings ? Mapper::Use::kMatrix : Mapper::Use::kRows);
  map.final_norm = mapper.Take("model.norm.weight", {config.model_dim}, Mapper::Use::kVector);
  if (config.tie_embeddings) {
    mapper.Ignore("lm_head.weight");
    map.lm_head = map.embedding;
  } else {
    map.lm_head = mapper.Take("lm_head.weight", {config.vocab_size, config.model_dim});
  }
  map.layers.reserve(config.num_layers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers && !mapper.hopeless(); ++layer_idx) {
    map.layers.push_back(MapLayer(mapper, config, layer_idx));
  }
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

}  // namespace penstock
