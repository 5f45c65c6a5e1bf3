#include "penstock/checkpoint/tensor_rows.h"

#include <algorithm>
#include <cstring>

#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/tensor/block_formats.h"
#include "penstock/tensor/block_panels.h"

namespace penstock {
namespace {

// Returns the stored bytes of `elements` elements of a row.
uint64_t BytesOf(const TensorInfo& tensor, int64_t elements) {
  if (tensor.packed.has_value()) {
    PENSTOCK_CHECK(IsBlocks(*tensor.packed));
    return BlockRowBytes(*tensor.packed, elements);
  }
  // Two codes of four bits share a byte.
  if (tensor.scales.has_value() && tensor.dtype == Dtype::kU8 && tensor.scales->format != WeightFormat::kQ8_0) {
    return CeilDiv(static_cast<uint64_t>(elements), 2);
  }
  return static_cast<uint64_t>(elements) * SizeOf(tensor.dtype);
}

bool IsTransposed(const TensorInfo& tensor) { return tensor.places.has_value() && tensor.places->is_transposed; }

// Returns the elements of a stored row: the matrix's inputs, or its rows where it is transposed.
int64_t StoredElements(const TensorInfo& tensor) {
  return IsTransposed(tensor) ? tensor.places->stored_rows : RowElements(tensor);
}

CodeOrder OrderOf(const TensorInfo& tensor) {
  return tensor.scales.has_value() ? tensor.scales->order : CodeOrder::kRows;
}

// A transposed matrix is stored as rows of units, one for each output: an element, or a word of GPTQ's codes. If it
// becomes floats (MLA's k_up_proj), its stored rows are decoded before they are transposed.
struct Unit {
  int64_t inputs;
  uint64_t bytes;
};
Unit UnitOf(const TensorInfo& tensor) {
  if (OrderOf(tensor) != CodeOrder::kInputWords) return {1, SizeOf(tensor.dtype)};
  return {tensor.scales->format == WeightFormat::kQ8_0 ? 4 : 8, 4};
}
uint64_t StoredRowBytes(const TensorInfo& tensor) {
  const bool are_codes_together = tensor.as_floats || OrderOf(tensor) == CodeOrder::kRowWords;
  if (!IsTransposed(tensor) || are_codes_together) return BytesOf(tensor, StoredElements(tensor));
  return static_cast<uint64_t>(StoredElements(tensor)) * UnitOf(tensor).bytes;
}
// Returns the number of stored rows of a transposed matrix.
int64_t TransposedRows(const TensorInfo& tensor) { return RowElements(tensor) / UnitOf(tensor).inputs; }

// Returns the first stored row of the matrix that contains `row`.
int64_t FirstStoredRow(const TensorInfo& tensor, int64_t row) {
  return tensor.places.has_value() ? row / MatrixRows(tensor) * tensor.places->matrix_rows : 0;
}

// Returns the stored row within a matrix where its row `own` lies.
int64_t PlaceOf(const TensorInfo& tensor, int64_t own) {
  if (!tensor.places.has_value()) return own;
  const RowPlaces& places = *tensor.places;
  if (places.head_stride > 0) {
    return places.first + own / places.head_rows * places.head_stride + own % places.head_rows;
  }
  if (places.head_rows == 0) return places.first + own * places.step;
  const int64_t of_head = own % places.head_rows, half = places.head_rows / 2;
  return places.first + own - of_head + (of_head < half ? 2 * of_head : 2 * (of_head - half) + 1);
}

// Copies rows of the matrix that begins at `stored`.
void GatherOfMatrix(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count,
                    std::byte* target) {
  const uint64_t row_bytes = StoredRowBytes(tensor);
  if (!IsTransposed(tensor)) {
    for (int64_t row = first; row < first + count; ++row) {
      std::memcpy(target, stored + static_cast<uint64_t>(PlaceOf(tensor, row)) * row_bytes, row_bytes);
      target += row_bytes;
    }
    return;
  }
  if (OrderOf(tensor) == CodeOrder::kRowWords) {
    return GatherRowWords({StoredElements(tensor), RowElements(tensor)}, stored, first, count, target);
  }
  const uint64_t unit_bytes = UnitOf(tensor).bytes;
  for (int64_t row = first; row < first + count; ++row) {
    const std::byte* source = stored + static_cast<uint64_t>(PlaceOf(tensor, row)) * unit_bytes;
    for (int64_t i = 0; i < TransposedRows(tensor); ++i) {
      std::memcpy(target, source, unit_bytes);
      target += unit_bytes;
      source += row_bytes;
    }
  }
}

void MakeBlockRow(const TensorInfo& tensor, const std::byte* codes, const ScaleBytes& scales, int64_t stored_row,
                  std::byte* target) {
  const int64_t elements = tensor.as_floats ? StoredElements(tensor) : RowElements(tensor);
  const int64_t num_rows = IsTransposed(tensor) ? tensor.places->stored_rows : 0;
  MakeCodedRow(*tensor.scales, {num_rows, elements}, {codes, BytesOf(tensor, elements)}, scales, stored_row, target);
}

// Converts one stored row of codes or blocks to floats.
void DequantiseStored(const TensorInfo& tensor, const std::byte* stored, const ScaleBytes& scales, int64_t stored_row,
                      std::span<float> target) {
  if (tensor.packed.has_value()) return DequantiseRow(*tensor.packed, stored, target);
  if (tensor.scales->groups != nullptr) {
    const int64_t num_rows = tensor.places->stored_rows, inputs = RowElements(tensor);
    return DequantiseGroups(*tensor.scales, {num_rows, inputs}, {stored, BytesOf(tensor, inputs)}, scales, stored_row,
                            target);
  }
  std::vector<std::byte> blocks(BlockRowBytes(tensor.scales->format, std::ssize(target)));
  MakeBlockRow(tensor, stored, scales, stored_row, blocks.data());
  DequantiseRow(tensor.scales->format, blocks.data(), target);
}

absl::Status ReadStored(std::span<const OpenedFile> files, const TensorInfo& tensor, int64_t stored_row, int64_t count,
                        std::vector<std::byte>& stored) {
  const OpenedFile& file = files[tensor.file_idx];
  const uint64_t row_bytes = StoredRowBytes(tensor);
  stored.resize(static_cast<uint64_t>(count) * row_bytes);
  return PreadFully(file.fd.get(), stored, tensor.extent.offset_bytes + static_cast<uint64_t>(stored_row) * row_bytes,
                    file.path);
}

absl::Status ReadRowsAsFloats(std::span<const OpenedFile> files, const TensorInfo& tensor, int64_t first, int64_t count,
                              float* target) {
  PENSTOCK_ASSIGN_OR_RETURN(const ReadScales scales, ReadScales::Of(files, tensor));
  const int64_t begin = FirstStoredRow(tensor, first), own = first % MatrixRows(tensor);
  const size_t elements = StoredElements(tensor);
  std::vector<std::byte> stored;
  if (!IsTransposed(tensor)) {
    for (int64_t row = own; row < own + count; ++row) {
      const int64_t stored_row = begin + PlaceOf(tensor, row);
      PENSTOCK_RETURN_IF_ERROR(ReadStored(files, tensor, stored_row, 1, stored));
      DequantiseStored(tensor, stored.data(), scales.bytes(), stored_row, {target, elements});
      target += elements;
    }
    return absl::OkStatus();
  }
  const int64_t num_inputs = RowElements(tensor);
  PENSTOCK_RETURN_IF_ERROR(ReadStored(files, tensor, begin, num_inputs, stored));
  std::vector<float> values(elements);
  for (int64_t input = 0; input < num_inputs; ++input) {
    DequantiseStored(tensor, stored.data() + static_cast<uint64_t>(input) * StoredRowBytes(tensor), scales.bytes(),
                     begin + input, values);
    for (int64_t row = 0; row < count; ++row) {
      target[row * num_inputs + input] = values[PlaceOf(tensor, own + row)];
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t NumMatrices(const TensorInfo& tensor) { return tensor.shape.size() < 3 ? 1 : tensor.shape[0]; }

int64_t MatrixRows(const TensorInfo& tensor) {
  return tensor.shape.size() < 2 ? tensor.shape[0] : tensor.shape[tensor.shape.size() - 2];
}

int64_t RowElements(const TensorInfo& tensor) { return tensor.shape.size() < 2 ? 1 : tensor.shape.back(); }

uint64_t RowBytes(const TensorInfo& tensor) {
  if (tensor.as_floats) return static_cast<uint64_t>(RowElements(tensor)) * sizeof(float);
  return BytesOf(tensor, RowElements(tensor));
}

uint64_t StoredBytes(const TensorInfo& tensor) {
  uint64_t of_scales = tensor.scales.has_value() ? tensor.scales->extent.size_bytes : 0;
  if (of_scales > 0 && tensor.scales->extra != nullptr) of_scales += tensor.scales->extra->extent.size_bytes;
  if (of_scales > 0 && tensor.scales->groups != nullptr) of_scales += tensor.scales->groups->extent.size_bytes;
  if (!tensor.places.has_value()) return tensor.extent.size_bytes + of_scales;
  const uint64_t rows = static_cast<uint64_t>(NumRows(tensor));
  const auto all_rows = static_cast<uint64_t>(std::max(1, tensor.places->stored_rows));
  if (IsTransposed(tensor)) {
    return static_cast<uint64_t>(NumMatrices(tensor) * TransposedRows(tensor)) * StoredRowBytes(tensor) *
               static_cast<uint64_t>(MatrixRows(tensor)) / all_rows +
           of_scales;
  }
  // Other tensors may share the scales.
  return rows * StoredRowBytes(tensor) + of_scales * std::min(rows, all_rows) / all_rows;
}

uint64_t PanelsBytes(const TensorInfo& tensor, WeightFormat format) {
  return static_cast<uint64_t>(NumMatrices(tensor)) * PackedBytes(format, MatrixRows(tensor), RowElements(tensor));
}

uint64_t PackedStoreBytes(const TensorInfo& tensor, WeightFormat format) {
  if (!IsBlocks(format)) return PanelsBytes(tensor, format);
  return static_cast<uint64_t>(NumRows(tensor)) * BlockRowBytes(format, RowElements(tensor));
}

void GatherRows(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count, std::byte* target) {
  if (!tensor.places.has_value()) return GatherOfMatrix(tensor, stored, first, count, target);
  stored += static_cast<uint64_t>(FirstStoredRow(tensor, first)) * StoredRowBytes(tensor);
  GatherOfMatrix(tensor, stored, first % MatrixRows(tensor), count, target);
}

absl::Status ReadRows(std::span<const OpenedFile> files, const TensorInfo& tensor, int64_t first, int64_t count,
                      std::span<std::byte> target) {
  PENSTOCK_CHECK(target.size() == static_cast<uint64_t>(count) * RowBytes(tensor));
  auto* const floats = reinterpret_cast<float*>(target.data());
  if (tensor.as_floats) return ReadRowsAsFloats(files, tensor, first, count, floats);
  const OpenedFile& file = files[tensor.file_idx];
  const uint64_t row_bytes = StoredRowBytes(tensor);
  if (!tensor.places.has_value()) {
    return PreadFully(file.fd.get(), target, tensor.extent.offset_bytes + static_cast<uint64_t>(first) * row_bytes,
                      file.path);
  }
  const int64_t begin = FirstStoredRow(tensor, first), own = first % MatrixRows(tensor);
  std::vector<std::byte> stored;
  if (IsTransposed(tensor)) {
    PENSTOCK_RETURN_IF_ERROR(ReadStored(files, tensor, begin, TransposedRows(tensor), stored));
    GatherOfMatrix(tensor, stored.data(), own, count, target.data());
    return absl::OkStatus();
  }
  // Reads the whole range that contains the rows, with the rows in between.
  int64_t min = PlaceOf(tensor, own), max = min;
  for (int64_t row = own; row < own + count; ++row) {
    min = std::min(min, PlaceOf(tensor, row));
    max = std::max(max, PlaceOf(tensor, row));
  }
  PENSTOCK_RETURN_IF_ERROR(ReadStored(files, tensor, begin + min, max - min + 1, stored));
  for (int64_t row = 0; row < count; ++row) {
    const auto place = static_cast<uint64_t>(PlaceOf(tensor, own + row) - min);
    std::memcpy(target.data() + static_cast<uint64_t>(row) * row_bytes, stored.data() + place * row_bytes, row_bytes);
  }
  return absl::OkStatus();
}

void MakeBlockRows(const TensorInfo& tensor, const std::byte* rows, const ScaleBytes& scales, int64_t first,
                   int64_t count, std::byte* target) {
  const uint64_t row_bytes = RowBytes(tensor);
  if (tensor.packed.has_value()) {
    std::memcpy(target, rows, static_cast<uint64_t>(count) * row_bytes);
    return;
  }
  const uint64_t block_row_bytes = BlockRowBytes(tensor.scales->format, RowElements(tensor));
  const int64_t begin = FirstStoredRow(tensor, first), own = first % MatrixRows(tensor);
  for (int64_t i = 0; i < count; ++i) {
    MakeBlockRow(tensor, rows + static_cast<uint64_t>(i) * row_bytes, scales, begin + PlaceOf(tensor, own + i),
                 target + static_cast<uint64_t>(i) * block_row_bytes);
  }
}

void PackRows(const TensorInfo& tensor, const std::byte* rows, const ScaleBytes& scales, int64_t first, int64_t count,
              WeightFormat format, std::byte* block_rows, std::byte* panel) {
  const int64_t elements = RowElements(tensor);
  if (tensor.as_floats) return PackPanel(Dtype::kF32, rows, count, elements, format, panel);
  if (tensor.scales.has_value() && tensor.scales->groups != nullptr) {
    RowsToFloats(tensor, rows, scales, first, count, reinterpret_cast<float*>(block_rows));
    return PackPanel(Dtype::kF32, block_rows, count, elements, format, panel);
  }
  if (IsFloat(format)) return PackPanel(tensor.dtype, rows, count, elements, format, panel);
  if (tensor.packed.has_value()) return InterleaveBlocks(format, rows, count, elements, panel);
  MakeBlockRows(tensor, rows, scales, first, count, block_rows);
  InterleaveBlocks(format, block_rows, count, elements, panel);
}

void RowsToFloats(const TensorInfo& tensor, const std::byte* rows, const ScaleBytes& scales, int64_t first,
                  int64_t count, float* target) {
  const size_t elements = RowElements(tensor);
  const bool is_coded = !tensor.as_floats && (tensor.packed.has_value() || tensor.scales.has_value());
  if (!is_coded) {
    const Dtype dtype = tensor.as_floats ? Dtype::kF32 : tensor.dtype;
    return ToFloats(dtype, rows, {target, static_cast<size_t>(count) * elements});
  }
  const int64_t begin = FirstStoredRow(tensor, first), own = first % MatrixRows(tensor);
  for (int64_t i = 0; i < count; ++i) {
    DequantiseStored(tensor, rows + static_cast<uint64_t>(i) * RowBytes(tensor), scales,
                     begin + PlaceOf(tensor, own + i), {target + static_cast<size_t>(i) * elements, elements});
  }
}

}  // namespace penstock
