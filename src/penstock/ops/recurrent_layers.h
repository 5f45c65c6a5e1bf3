// Steps of recurrent layers (Recurrent in model/model_config.h) that the operations of all processors share.
#pragma once

#include <span>
#include <vector>

#include "penstock/memory/dense_weights.h"
#include "penstock/model/model_config.h"
#include "penstock/ops/activations.h"
#include "penstock/ops/operations.h"

namespace penstock {

inline constexpr float kLengthEps = 1e-6f;     // of the lengths of keys and queries
inline constexpr float kLightningEps = 1e-6f;  // of the norm behind lightning attention

// The channels of a convolution that lie in one buffer.
struct ConvInput {
  std::span<float> rows;  // [num_rows, count]
  int64_t count;
  std::span<const float> weight;  // [conv_width, num_channels or count]
  int64_t first_of_weight;

  // Returns the floats from one position's weights to the next one's.
  int64_t WeightStride(int64_t conv_width) const { return std::ssize(weight) / conv_width; }
};
// Returns them in the order of the channels.
std::vector<ConvInput> ConvInputs(const Recurrent& recurrent, const RecurrentRows& rows, const LayerWeights& layer);

// Returns what the gates of a row are computed from. kMamba1 has steps alone.
kernels::RecurrentGatesArgs GatesOf(const Recurrent& recurrent, const RecurrentRows& rows, const LayerWeights& layer,
                                    int64_t row);

// Returns the decays of the heads of a layer with lightning attention.
std::vector<float> LightningDecays(const ModelConfig& config, int64_t layer_idx);

// Returns runs of neighbouring rows of one sequence.
std::vector<RowRange> SequenceRuns(const RowBatch& batch, RowRange rows);

}  // namespace penstock
