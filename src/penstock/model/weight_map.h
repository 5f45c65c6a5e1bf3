// Which tensor of the checkpoint is which weight of the model, with every shape checked.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/model/model_config.h"

namespace penstock {

// Pointers are into the Checkpoint, which must outlive the map; nullptr where a model has no such tensor.
struct FfnTensors {
  const TensorInfo* gate_proj = nullptr;  // [expert_dim, model_dim]
  const TensorInfo* up_proj = nullptr;    // [expert_dim, model_dim]
  const TensorInfo* down_proj = nullptr;  // [model_dim, expert_dim]

  uint64_t total_bytes() const {
    return gate_proj->extent.size_bytes + up_proj->extent.size_bytes + down_proj->extent.size_bytes;
  }
};

struct LayerTensors {
  const TensorInfo* attention_norm = nullptr;  // [model_dim]
  const TensorInfo* q_proj = nullptr;          // [num_heads * head_dim, model_dim]
  const TensorInfo* k_proj = nullptr;          // [num_kv_heads * head_dim, model_dim]
  const TensorInfo* v_proj = nullptr;          // [num_kv_heads * head_dim, model_dim]
  const TensorInfo* o_proj = nullptr;          // [model_dim, num_heads * head_dim]
  const TensorInfo* q_bias = nullptr;
  const TensorInfo* k_bias = nullptr;
  const TensorInfo* v_bias = nullptr;
  const TensorInfo* o_bias = nullptr;
  const TensorInfo* q_norm = nullptr;       // [head_dim] or [num_heads * head_dim]
  const TensorInfo* k_norm = nullptr;       // [head_dim] or [num_kv_heads * head_dim]
  const TensorInfo* ffn_norm = nullptr;     // [model_dim]
  const TensorInfo* router_proj = nullptr;  // [num_experts, model_dim]
  FfnTensors dense_ffn;                     // of a layer without experts
  std::vector<FfnTensors> experts;          // [num_experts]; empty without experts
};

struct WeightMap {
  const TensorInfo* embedding = nullptr;   // [vocab_size, model_dim]
  const TensorInfo* final_norm = nullptr;  // [model_dim]
  const TensorInfo* lm_head = nullptr;     // [vocab_size, model_dim]; the embedding when tied
  std::vector<LayerTensors> layers;
};

// kModel when tensors are missing, have another shape, or are unknown to the family (the first 10 and their number).
// With tied embeddings an `lm_head.weight` in the checkpoint is ignored, as the reference implementation does.
absl::StatusOr<WeightMap> MapWeights(const ModelConfig& config, const Checkpoint& checkpoint);

// The weights that a model of this config would have where there is no checkpoint: for plans and simulations.
struct DescribedWeights {
  std::deque<TensorInfo> tensors;
  WeightMap map;  // points into `tensors`
};
// As a packed store of `format` has them, from a checkpoint whose dtype is bf16.
std::unique_ptr<DescribedWeights> DescribeWeights(const ModelConfig& config, WeightFormat format);

}  // namespace penstock
