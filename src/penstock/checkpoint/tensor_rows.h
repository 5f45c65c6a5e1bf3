// Reads rows of stored tensors, however they are placed (RowPlaces) and coded. A tensor is a vector, a matrix [rows,
// elements] or several matrices [matrices, rows, elements]. Rows are numbered through all matrices; a vector's rows are
// its elements.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/coded_rows.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

int64_t NumMatrices(const TensorInfo& tensor);
int64_t MatrixRows(const TensorInfo& tensor);
int64_t RowElements(const TensorInfo& tensor);
// Returns the number of rows of all matrices.
inline int64_t NumRows(const TensorInfo& tensor) { return NumMatrices(tensor) * MatrixRows(tensor); }
// Says whether the tensor consists of panels that kernels compute on as they are stored. Block formats are stored as
// rows.
inline bool IsReady(const TensorInfo& tensor) {
  return tensor.packed.has_value() && !IsBlocks(*tensor.packed) && !tensor.places.has_value() && !tensor.is_compressed;
}
// Returns the bytes of a row as the functions below return it: floats, codes, or blocks. REQUIRES: !IsReady(tensor).
uint64_t RowBytes(const TensorInfo& tensor);

// Returns the bytes of the tensor's own elements, with scales.
uint64_t StoredBytes(const TensorInfo& tensor);
// Returns the bytes of the tensor's matrices in panels, one matrix after another.
uint64_t PanelsBytes(const TensorInfo& tensor, WeightFormat format);
// Returns the bytes of the same matrices in a packed store: panels, or rows of blocks.
uint64_t PackedStoreBytes(const TensorInfo& tensor, WeightFormat format);

// Copies rows [first, first + count) of one matrix to `target`. `stored`: the tensor's extent. REQUIRES:
// !tensor.as_floats.
void GatherRows(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count, std::byte* target);

// Reads the same rows from the file, also where they become floats. Reads a transposed matrix whole each time.
absl::Status ReadRows(std::span<const OpenedFile> files, const TensorInfo& tensor, int64_t first, int64_t count,
                      std::span<std::byte> target);

// Makes rows of blocks from rows [first, first + count) that GatherRows or ReadRows returned. REQUIRES: tensor.packed
// or tensor.scales, and !tensor.as_floats.
void MakeBlockRows(const TensorInfo& tensor, const std::byte* rows, const ScaleBytes& scales, int64_t first,
                   int64_t count, std::byte* target);

// Makes a panel of `format` from the same rows. `block_rows` has room for 32 rows of blocks where the tensor has
// scales, or of floats where they have groups; otherwise it is not used.
void PackRows(const TensorInfo& tensor, const std::byte* rows, const ScaleBytes& scales, int64_t first, int64_t count,
              WeightFormat format, std::byte* block_rows, std::byte* panel);

// Converts such rows to floats: [count, RowElements(tensor)].
void RowsToFloats(const TensorInfo& tensor, const std::byte* rows, const ScaleBytes& scales, int64_t first,
                  int64_t count, float* target);

}  // namespace penstock
