// Tables that tell kernels of recurrent layers where the states of rows lie on the device.
#pragma once

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "penstock/kernels/cuda/recurrent.h"
#include "penstock/ops/cuda_operations.h"
#include "penstock/ops/operations.h"

namespace penstock {

// The parts in which a layer's states lie, and numbers that a kernel needs besides. `part_of` gives a part of the state
// that lies in pages.
struct StateParts {
  int64_t num_parts = 0;
  absl::FunctionRef<float*(std::span<std::byte* const>, int64_t)> part_of;
  std::span<const float> others;
};

// Calls visit(runs, others on the device) for parts of `rows`, one after another, whose tables fit into one upload.
// REQUIRES: tables.max_bytes() is at least MinStateTableBytes().
void ForEachStateTable(const RowBatch& batch, RowRange rows, const StateParts& parts, DeviceTables& tables,
                       absl::FunctionRef<void(const cuda::StateRuns&, const float*)> visit);

}  // namespace penstock
