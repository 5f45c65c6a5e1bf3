// The weights that every row needs: attention, norms, router, embeddings, and FFNs without experts. They stay in the
// tier where they are computed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/weights.h"
#include "penstock/model/weight_map.h"

namespace penstock {

// The embedding: rows as they are stored, to be looked up, or, where lm_head is the same matrix, its panels.
struct EmbeddingView {
  const std::byte* data = nullptr;
  Dtype dtype = Dtype::kF32;           // of rows
  std::optional<WeightFormat> packed;  // of panels
};

// Norms and biases are f32 whatever the checkpoint's dtype; an absent one is an empty span.
struct LayerWeights {
  std::span<const float> attention_norm;  // [model_dim]
  WeightView q_proj;
  WeightView k_proj;
  WeightView v_proj;
  WeightView o_proj;
  std::span<const float> q_bias;
  std::span<const float> k_bias;
  std::span<const float> v_bias;
  std::span<const float> o_bias;
  std::span<const float> q_norm;
  std::span<const float> k_norm;
  std::span<const float> ffn_norm;  // [model_dim]
  WeightView router_proj;           // in its own dtype: the router computes in f32
  FfnWeights dense_ffn;             // of a layer without experts
};

// kAll, or what lies on each side where a device computes the layers: the host embeds.
enum class DensePart : uint8_t { kAll, kEmbedding, kLayers };

class DenseWeights {
 public:
  // Bytes that Load will take for these tensors; of the host's memory with a buffer that it reads through.
  static uint64_t Bytes(const WeightMap& map, ComputeDtype dtype, DensePart part);

  // Reads the tensors into `memory`; kIo when that fails.
  static absl::StatusOr<DenseWeights> Load(Memory& memory, const Checkpoint& checkpoint, const WeightMap& map,
                                           ComputeDtype dtype, DensePart part);

  const EmbeddingView& embedding() const { return embedding_; }
  const WeightView& lm_head() const { return lm_head_; }
  std::span<const float> final_norm() const { return final_norm_; }
  const LayerWeights& layer(int64_t layer_idx) const { return layers_[layer_idx]; }

 private:
  Arena arena_;
  EmbeddingView embedding_;
  WeightView lm_head_;
  std::span<const float> final_norm_;
  std::vector<LayerWeights> layers_;
};

}  // namespace penstock
