// Sees what passes compute on the host: for statistics and comparisons. Results do not change.
#pragma once

#include <cstdint>
#include <span>

#include "penstock/base/thread_pool.h"
#include "penstock/checkpoint/importance.h"

namespace penstock {

class PassObserver {
 public:
  virtual ~PassObserver() = default;

  // Rows that a GEMM takes, if it takes floats.
  struct Inputs {
    InputPlace place;
    int64_t num_rows;
    int64_t dim;
    const float* values;
    int64_t stride;                  // floats from row to row
    std::span<const float> weights;  // [num_rows]: what outputs are multiplied by; empty: nothing
  };
  virtual void OnInputs(const Inputs& inputs, ThreadPool& pool) = 0;

  // Rows of the residual behind a layer's FFNs, [num_rows, model_dim]. A sequence's rows come in order.
  virtual void OnLayer(int64_t layer_idx, std::span<const float> residual) = 0;
};

}  // namespace penstock
