// Rows of stored tensors, wherever they lie (RowPlaces) and however they are coded. A tensor is a vector, a matrix
// [rows, elements] or several matrices [matrices, rows, elements], whose rows are counted through; a vector's rows are
// its elements.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

int64_t NumMatrices(const TensorInfo& tensor);
int64_t MatrixRows(const TensorInfo& tensor);
int64_t RowElements(const TensorInfo& tensor);
// Of all matrices.
inline int64_t NumRows(const TensorInfo& tensor) { return NumMatrices(tensor) * MatrixRows(tensor); }
// Panels that are computed as they lie.
inline bool IsReady(const TensorInfo& tensor) { return tensor.packed.has_value() && !tensor.places.has_value(); }
// Of a row as the functions below give it: floats, codes, or blocks. REQUIRES: !IsReady(tensor).
uint64_t RowBytes(const TensorInfo& tensor);

// Bytes of the tensor's own elements, with scales.
uint64_t StoredBytes(const TensorInfo& tensor);
// And of its matrices in panels, one matrix after the other.
uint64_t PanelsBytes(const TensorInfo& tensor, WeightFormat format);

// Rows [first, first + count) of one matrix one after the other. `stored`: the tensor's extent. REQUIRES:
// !tensor.as_floats.
void GatherRows(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count, std::byte* target);

// The same from the file, also as floats. What is transposed is read whole for it, a matrix each time.
absl::Status ReadRows(std::span<const OpenedFile> files, const TensorInfo& tensor, int64_t first, int64_t count,
                      std::span<std::byte> target);

// The tensor's scales; nothing where it has none.
absl::StatusOr<std::vector<std::byte>> ReadScales(std::span<const OpenedFile> files, const TensorInfo& tensor);

// Makes a panel of `format` of rows [first, first + count) that GatherRows or ReadRows gave. `scales`: their extent, or
// null where there are none.
void PackRows(const TensorInfo& tensor, const std::byte* rows, const std::byte* scales, int64_t first, int64_t count,
              WeightFormat format, std::byte* panel);

// Or floats: [count, RowElements(tensor)].
void RowsToFloats(const TensorInfo& tensor, const std::byte* rows, const std::byte* scales, int64_t first,
                  int64_t count, float* target);

}  // namespace penstock
