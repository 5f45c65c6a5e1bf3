#include "penstock/memory/weights.h"

namespace penstock {

WeightFormat ResidentFormat(const TensorInfo& tensor, ComputeDtype dtype) {
  if (tensor.packed.has_value()) return *tensor.packed;
  return dtype == ComputeDtype::kBF16 ? WeightFormat::kBF16 : FormatOf(tensor.dtype);
}

}  // namespace penstock
