// Makes panels of quantised weights (packed_matrix.h) from floats.
#pragma once

#include <cstddef>
#include <span>

#include "penstock/tensor/error_weights.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// Writes one panel from `num_cols` <= 32 consecutive rows of `inner_dim` weights.
//   kInt8: for each output and 128 inputs, scale = max |w| / 127 rounded up to bf16 and code = round(w / scale).
//   kHqq4 to kHqq2: HQQ (hqq.h) for each output and 64 inputs. Scales and zeros are rounded to 8 bits for the 32
//   outputs x 4 groups of a block together. The codes are made with the rounded values. With `errors`, scales and zeros
//   have small errors as these weigh them, and within a block later inputs make up for the errors of earlier ones.
//   kTernary: likewise, but least squares find the scales. There are no zeros.
// A weight that is not finite turns all weights with the same scale into NaN (HQQ: all weights in the same block).
// REQUIRES: !IsFloat(format); rows.size() == num_cols * inner_dim.
void QuantisePanel(WeightFormat format, std::span<const float> rows, int64_t num_cols, int64_t inner_dim,
                   std::byte* target, const ErrorWeights* errors = nullptr);

}  // namespace penstock
