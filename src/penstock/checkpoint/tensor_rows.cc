#include "penstock/checkpoint/tensor_rows.h"

#include <cstring>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {

int64_t RowElements(const TensorInfo& tensor) { return tensor.shape.size() < 2 ? 1 : tensor.shape.back(); }

uint64_t StoredBytes(const TensorInfo& tensor) {
  if (!tensor.places.has_value()) return tensor.extent.size_bytes;
  return static_cast<uint64_t>(tensor.shape[0]) * RowBytes(tensor);
}

void GatherRows(const TensorInfo& tensor, const std::byte* stored, int64_t first, int64_t count, std::byte* target) {
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

absl::Status ReadRows(const OpenedFile& file, const TensorInfo& tensor, int64_t first, int64_t count,
                      std::span<std::byte> target) {
  const uint64_t row_bytes = RowBytes(tensor);
  const RowPlaces places = tensor.places.value_or(RowPlaces{});
  PENSTOCK_CHECK(!places.is_transposed && target.size() == static_cast<uint64_t>(count) * row_bytes);
  const uint64_t offset =
      tensor.extent.offset_bytes + static_cast<uint64_t>(places.first + first * places.step) * row_bytes;
  if (places.step == 1) return PreadFully(file.fd.get(), target, offset, file.path);
  // With what lies between them.
  std::vector<std::byte> stored(static_cast<uint64_t>((count - 1) * places.step + 1) * row_bytes);
  PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), stored, offset, file.path));
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(target.data() + static_cast<uint64_t>(row) * row_bytes,
                stored.data() + static_cast<uint64_t>(row * places.step) * row_bytes, row_bytes);
  }
  return absl::OkStatus();
}

}  // namespace penstock
