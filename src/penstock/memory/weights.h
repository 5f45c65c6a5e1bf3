// Weights in DRAM, in the form that kernels take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/checkpoint/safetensors.h"
#include "penstock/model/weight_map.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// A weight matrix for the kernels: panels (tensor/packed_matrix.h), aligned to cache lines.
struct WeightView {
  const std::byte* data = nullptr;
  WeightFormat format = WeightFormat::kF32;
};

using FfnWeights = FfnParts<WeightView>;

// The dtype of computation.
// - kF32: weights as stored, activations in f32.
// - kBF16: other weights are rounded to bf16 on arrival. The inputs of the FFNs and of lm_head, which do nearly all the
//   work, are rounded, too. Attention, router and norms keep f32 inputs, because an error there can choose other
//   experts (measured: docs/decisions/).
enum class ComputeDtype : uint8_t { kF32, kBF16 };

// Returns the format of a matrix in DRAM: as packed in the store, in blocks, or in panels of its own dtype or of bf16.
WeightFormat ResidentFormat(const TensorInfo& tensor, ComputeDtype dtype);

// Returns the bytes of the stored rows that become one panel; 0 when the matrix is already packed.
uint64_t StoredPanelBytes(const TensorInfo& tensor);

}  // namespace penstock
