// The weights that every row needs: attention, norms, router, embeddings, and FFNs without experts. They stay in the
// tier that computes with them.
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
#include "penstock/parallel/head_split.h"

namespace penstock {

// The embedding matrix: stored rows for look-ups, or panels if lm_head is the same matrix.
struct EmbeddingView {
  const std::byte* data = nullptr;
  Dtype dtype = Dtype::kF32;           // dtype of stored rows
  std::optional<WeightFormat> packed;  // format of panels
};

// Vectors are f32 for every dtype of the checkpoint; an absent vector is an empty span. Routers keep their own dtype,
// because they compute in f32.
using LayerWeights = LayerParts<std::span<const float>, WeightView>;

// The weights outside the layers.
struct OuterWeights {
  EmbeddingView embedding;
  WeightView lm_head;
  std::span<const float> lm_head_bias;
  std::span<const float> final_norm;
  std::span<const float> final_norm_bias;
  std::span<const float> encoder_norm;
  std::span<const float> encoder_bias;  // [num_buckets, num_heads], like decoder_bias
  std::span<const float> decoder_bias;

  // Makes lm_head the embedding, too, if both are one tensor.
  void TieEmbedding(const WeightMap& map);
};

// The part of the weights that one side loads. Without a device, the host loads kAll. With a device, the device loads
// kLayers and the host kEmbedding. The host embeds, and may compute attention and experts. Therefore it holds the
// attention sinks, what changes the states of recurrent layers, relative biases and the experts' biases, too.
enum class DensePart : uint8_t { kAll, kEmbedding, kLayers };

// kUsage when so many ranks cannot share the attention heads of these weights.
absl::Status CheckCutsHeads(const WeightMap& map, const ModelConfig& config, int num_ranks);

class DenseWeights {
 public:
  // Returns the bytes that Load() takes for these tensors. In host memory this includes the buffer that it reads
  // through.
  static uint64_t Bytes(const WeightMap& map, ComputeDtype dtype, DensePart part, const HeadRange& heads = {});

  // Reads the tensors into `memory`; kIo when a read fails. Of q, k, v and of the
  // attention sinks it keeps the rows of `heads`. REQUIRES: CheckCutsHeads(), if these are not all.
  static absl::StatusOr<DenseWeights> Load(Memory& memory, const Checkpoint& checkpoint, const WeightMap& map,
                                           ComputeDtype dtype, DensePart part, const HeadRange& heads = {});

  // Takes what lies in `arena` for all weights, to measure operations. REQUIRES: it has Bytes().
  static DenseWeights Over(Arena arena, const WeightMap& map, ComputeDtype dtype);

  // Returns the bytes of all weights.
  std::span<const std::byte> bytes() const { return {arena_.data(), arena_.size_bytes()}; }
  const OuterWeights& outer() const { return outer_; }
  const LayerWeights& layer(int64_t layer_idx) const { return layers_[layer_idx]; }

 private:
  Arena arena_;
  OuterWeights outer_;
  std::vector<LayerWeights> layers_;
};

}  // namespace penstock
