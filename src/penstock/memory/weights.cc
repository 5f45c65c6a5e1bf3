#include "penstock/memory/weights.h"

#include "penstock/checkpoint/tensor_rows.h"

namespace penstock {

WeightFormat ResidentFormat(const TensorInfo& tensor, ComputeDtype dtype) {
  if (tensor.packed.has_value()) return *tensor.packed;
  return dtype == ComputeDtype::kBF16 ? WeightFormat::kBF16 : FormatOf(tensor.dtype);
}

uint64_t StoredPanelBytes(const TensorInfo& tensor) {
  if (tensor.packed.has_value()) return 0;
  return static_cast<uint64_t>(kPanelCols * RowElements(tensor)) * SizeOf(tensor.dtype);
}

}  // namespace penstock
