#include "penstock/checkpoint/tensor_rows.h"

#include <cstring>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// Bytes from the start of a tensor's extent to the stored matrix that has a row.
uint64_t MatrixOffset(const TensorInfo& tensor, int64_t row) {
  const RowPlaces& places = *tensor.places;
  const uint64_t stored_row_bytes =
      places.is_transposed ? static_cast<uint64_t>(places.stored_rows) * SizeOf(tensor.dtype) : RowBytes(tensor);
  return static_cast<uint64_t>(row / MatrixRows(tensor) * places.matrix_rows) * stored_row_bytes;
}

// Rows of a matrix from where it begins.
void GatherOfMatrix(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count,
                    std::byte* target) {
  const uint64_t row_bytes = RowBytes(tensor), element_bytes = SizeOf(tensor.dtype);
  const RowPlaces places = tensor.places.value_or(RowPlaces{});
  for (int64_t row = first; row < first + count; ++row) {
    const auto place = static_cast<uint64_t>(places.first + row * places.step);
    if (!places.is_transposed) {
      std::memcpy(target, stored + place * row_bytes, row_bytes);
      target += row_bytes;
      continue;
    }
    const std::byte* source = stored + place * element_bytes;
    for (int64_t i = 0; i < RowElements(tensor); ++i) {
      std::memcpy(target, source, element_bytes);
      target += element_bytes;
      source += static_cast<uint64_t>(places.stored_rows) * element_bytes;
    }
  }
}

}  // namespace

int64_t NumMatrices(const TensorInfo& tensor) { return tensor.shape.size() < 3 ? 1 : tensor.shape[0]; }

int64_t MatrixRows(const TensorInfo& tensor) {
  return tensor.shape.size() < 2 ? tensor.shape[0] : tensor.shape[tensor.shape.size() - 2];
}

int64_t RowElements(const TensorInfo& tensor) { return tensor.shape.size() < 2 ? 1 : tensor.shape.back(); }

uint64_t StoredBytes(const TensorInfo& tensor) {
  if (!tensor.places.has_value()) return tensor.extent.size_bytes;
  return static_cast<uint64_t>(NumRows(tensor)) * RowBytes(tensor);
}

uint64_t PanelsBytes(const TensorInfo& tensor, WeightFormat format) {
  return static_cast<uint64_t>(NumMatrices(tensor)) * PackedBytes(format, MatrixRows(tensor), RowElements(tensor));
}

void GatherRows(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count, std::byte* target) {
  if (!tensor.places.has_value()) return GatherOfMatrix(tensor, stored, first, count, target);
  GatherOfMatrix(tensor, stored + MatrixOffset(tensor, first), first % MatrixRows(tensor), count, target);
}

absl::Status ReadRows(const OpenedFile& file, const TensorInfo& tensor, int64_t first, int64_t count,
                      std::span<std::byte> target) {
  const uint64_t row_bytes = RowBytes(tensor);
  PENSTOCK_CHECK(target.size() == static_cast<uint64_t>(count) * row_bytes);
  if (!tensor.places.has_value()) {
    return PreadFully(file.fd.get(), target, tensor.extent.offset_bytes + static_cast<uint64_t>(first) * row_bytes,
                      file.path);
  }
  const RowPlaces& places = *tensor.places;
  const int64_t own = first % MatrixRows(tensor);
  uint64_t offset = tensor.extent.offset_bytes + MatrixOffset(tensor, first);
  std::vector<std::byte> stored;
  if (places.is_transposed) {
    stored.resize(static_cast<uint64_t>(RowElements(tensor) * places.stored_rows) * SizeOf(tensor.dtype));
    PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), stored, offset, file.path));
    GatherOfMatrix(tensor, stored.data(), own, count, target.data());
    return absl::OkStatus();
  }
  offset += static_cast<uint64_t>(places.first + own * places.step) * row_bytes;
  if (places.step == 1) return PreadFully(file.fd.get(), target, offset, file.path);
  // With what lies between them.
  stored.resize(static_cast<uint64_t>((count - 1) * places.step + 1) * row_bytes);
  PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), stored, offset, file.path));
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(target.data() + static_cast<uint64_t>(row) * row_bytes,
                stored.data() + static_cast<uint64_t>(row * places.step) * row_bytes, row_bytes);
  }
  return absl::OkStatus();
}

}  // namespace penstock
