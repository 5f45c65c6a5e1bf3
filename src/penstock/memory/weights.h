// Weights in DRAM, in the form that kernels take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/checkpoint/safetensors.h"
#include "penstock/formats.h"
#include "penstock/model/weight_map.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// A weight matrix for the kernels: panels (tensor/packed_matrix.h), aligned to cache lines.
struct WeightView {
  const std::byte* data = nullptr;
  WeightFormat format = WeightFormat::kF32;
};

using FfnWeights = FfnParts<WeightView>;

// Returns the format of a matrix in DRAM: as packed in the store, in blocks, or in panels of its own dtype or of bf16.
WeightFormat ResidentFormat(const TensorInfo& tensor, ComputeDtype dtype);

// Returns the bytes that packing one panel takes: its stored rows, and rows of blocks where it has separate scales. 0
// when the matrix is already packed.
uint64_t StoredPanelBytes(const TensorInfo& tensor);

}  // namespace penstock
