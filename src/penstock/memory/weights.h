// Weights as they lie in DRAM, ready to be computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/checkpoint/safetensors.h"
#include "penstock/model/weight_map.h"
#include "penstock/formats.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// A weight matrix as the kernels take it: panels (tensor/packed_matrix.h), aligned to cache lines.
struct WeightView {
  const std::byte* data = nullptr;
  WeightFormat format = WeightFormat::kF32;
};

using FfnWeights = FfnParts<WeightView>;

// How a matrix lies in DRAM: as it is packed, in blocks, or in panels of its own dtype or of bf16.
WeightFormat ResidentFormat(const TensorInfo& tensor, ComputeDtype dtype);

// Bytes of the rows that become one panel, one after the other as they are read; 0 when the matrix is packed already.
uint64_t StoredPanelBytes(const TensorInfo& tensor);

}  // namespace penstock
