// Rows of stored tensors, wherever they lie (RowPlaces).
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

// Elements of a row: the last dim of a matrix, 1 of a vector.
int64_t RowElements(const TensorInfo& tensor);
// Bytes of a row of a float tensor.
inline uint64_t RowBytes(const TensorInfo& tensor) {
  return static_cast<uint64_t>(RowElements(tensor)) * SizeOf(tensor.dtype);
}

// Bytes of the tensor's own elements.
uint64_t StoredBytes(const TensorInfo& tensor);

// Rows [first, first + count) one after the other. `stored`: the tensor's extent.
void GatherRows(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count, std::byte* target);

// The same from the file. REQUIRES: the tensor is not transposed; target.size() is `count` rows.
absl::Status ReadRows(const OpenedFile& file, const TensorInfo& tensor, int64_t first, int64_t count,
                      std::span<std::byte> target);

}  // namespace penstock
