// Steps on whole rows, which several kernels share: the scale of norms, and prepared rows.
#pragma once

#include "penstock/kernels/cuda/math.cuh"

namespace penstock::cuda {

inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / kWarpThreads;

// Returns the scale that normalises a row after `mean` (RMSNorm: 0) is subtracted. All lanes of a warp must call it.
PENSTOCK_DEVICE float NormScale(const float* x, int64_t dim, float mean, float eps) {
  float squares = 0;
  for (int64_t i = 0; i < dim; i += 16) {
    const int64_t k = i + Lane() % 16;
    const float value = k < dim ? x[k] - mean : 0.0f;
    squares = __fmaf_rn(value, value, squares);
  }
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(SumOf16Lanes(squares), static_cast<float>(dim)) + eps));
}

// Prepares a row as described at PrepareRowsArgs. All threads of a block of kRowThreads must call it.
PENSTOCK_DEVICE void PrepareRow(kernels::RowFormat format, const float* x, int64_t dim, std::byte* target) {
  for (int64_t first = static_cast<int64_t>(Warp()) * kInt8Group; first < dim; first += kRowWarps * kInt8Group) {
    float values[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t k = first + 4 * Lane() + i;
      values[i] = k < dim ? x[k] : 0.0f;
    }
    StorePrepared(format, values, first, dim, target);
  }
}

}  // namespace penstock::cuda
