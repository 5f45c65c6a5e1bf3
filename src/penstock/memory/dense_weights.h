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

// Vectors are f32 whatever the checkpoint's dtype; an absent one is an empty span. Routers stay in their own dtype, as
// they compute in f32.
using LayerWeights = LayerParts<std::span<const float>, WeightView>;

// What lies outside the layers.
struct OuterWeights {
  EmbeddingView embedding;
  WeightView lm_head;
  std::span<const float> lm_head_bias;
  std::span<const float> final_norm;
  std::span<const float> final_norm_bias;
};

// kAll, or what lies on each side where a device computes the layers: the host embeds, and may attend and compute
// experts, for which it has the sinks and the experts' biases, too.
enum class DensePart : uint8_t { kAll, kEmbedding, kLayers };

class DenseWeights {
 public:
  // Bytes that Load will take for these tensors; of the host's memory with a buffer that it reads through.
  static uint64_t Bytes(const WeightMap& map, ComputeDtype dtype, DensePart part);

  // Reads the tensors into `memory`; kIo when that fails.
  static absl::StatusOr<DenseWeights> Load(Memory& memory, const Checkpoint& checkpoint, const WeightMap& map,
                                           ComputeDtype dtype, DensePart part);

  const OuterWeights& outer() const { return outer_; }
  const LayerWeights& layer(int64_t layer_idx) const { return layers_[layer_idx]; }

 private:
  Arena arena_;
  OuterWeights outer_;
  std::vector<LayerWeights> layers_;
};

}  // namespace penstock
