#include "penstock/memory/weights.h"

#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/tensor/block_formats.h"

namespace penstock {

WeightFormat ResidentFormat(const TensorInfo& tensor, ComputeDtype dtype) {
  if (!tensor.as_floats && tensor.packed.has_value()) return *tensor.packed;
  const bool has_groups = tensor.scales.has_value() && tensor.scales->groups != nullptr;
  if (!tensor.as_floats && tensor.scales.has_value() && !has_groups) return tensor.scales->format;
  if (dtype == ComputeDtype::kBF16) return WeightFormat::kBF16;
  return tensor.as_floats || has_groups ? WeightFormat::kF32 : FormatOf(tensor.dtype);
}

uint64_t StoredPanelBytes(const TensorInfo& tensor) {
  if (IsReady(tensor)) return 0;
  uint64_t row_bytes = RowBytes(tensor);
  if (!tensor.as_floats && tensor.scales.has_value()) {
    const int64_t elements = RowElements(tensor);
    row_bytes += tensor.scales->groups != nullptr ? static_cast<uint64_t>(elements) * sizeof(float)
                                                  : BlockRowBytes(tensor.scales->format, elements);
  }
  return kPanelCols * row_bytes;
}

}  // namespace penstock
