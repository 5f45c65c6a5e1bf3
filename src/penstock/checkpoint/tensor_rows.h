// Rows of stored tensors, wherever they lie (RowPlaces). A tensor is a vector, a matrix [rows, elements] or several
// matrices [matrices, rows, elements], whose rows are counted through; a vector's rows are its elements.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

int64_t NumMatrices(const TensorInfo& tensor);
int64_t MatrixRows(const TensorInfo& tensor);
int64_t RowElements(const TensorInfo& tensor);
// Of all matrices.
inline int64_t NumRows(const TensorInfo& tensor) { return NumMatrices(tensor) * MatrixRows(tensor); }
// Of a float tensor.
inline uint64_t RowBytes(const TensorInfo& tensor) {
  return static_cast<uint64_t>(RowElements(tensor)) * SizeOf(tensor.dtype);
}

// Bytes of the tensor's own elements.
uint64_t StoredBytes(const TensorInfo& tensor);
// And of its matrices in panels, one matrix after the other.
uint64_t PanelsBytes(const TensorInfo& tensor, WeightFormat format);

// Rows [first, first + count) of one matrix one after the other. `stored`: the tensor's extent.
void GatherRows(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count, std::byte* target);

// The same from the file. What is transposed is read whole for it, a matrix each time.
absl::Status ReadRows(const OpenedFile& file, const TensorInfo& tensor, int64_t first, int64_t count,
                      std::span<std::byte> target);

}  // namespace penstock
