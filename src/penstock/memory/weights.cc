#include "penstock/memory/weights.h"

#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/tensor/block_formats.h"

namespace penstock {

WeightFormat ResidentFormat(const TensorInfo& tensor, ComputeDtype dtype) {
  if (!tensor.as_floats && tensor.packed.has_value()) return *tensor.packed;
  if (!tensor.as_floats && tensor.scales.has_value()) return tensor.scales->format;
  if (dtype == ComputeDtype::kBF16) return WeightFormat::kBF16;
  return tensor.as_floats ? WeightFormat::kF32 : FormatOf(tensor.dtype);
}

uint64_t StoredPanelBytes(const TensorInfo& tensor) {
  if (IsReady(tensor)) return 0;
  uint64_t row_bytes = RowBytes(tensor);
  if (!tensor.as_floats && tensor.scales.has_value()) {
    row_bytes += BlockRowBytes(tensor.scales->format, RowElements(tensor));
  }
  return kPanelCols * row_bytes;
}

}  // namespace penstock
