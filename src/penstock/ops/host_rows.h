// Helpers that hand rows of a pass to the host's kernels, spread over the thread pool.
#pragma once

#include <span>

#include "absl/functional/function_ref.h"
#include "penstock/ops/host_operations.h"

namespace penstock::host {

// Tasks begin at multiples of this many columns: at whole panels of weights, and at whole groups of the rows that a
// task prepares.
inline constexpr int64_t kTaskCols = 128;
static_assert(kTaskCols % kPanelCols == 0 && kTaskCols % kInt8Group == 0 && kFfnScratchCols % kTaskCols == 0);

// Returns the columns of a task, a multiple of kTaskCols. A task should be long enough to pay for its start. It should
// be short enough that the last one does not keep the others waiting: a few tasks per worker.
int64_t ColumnsPerTask(int64_t num_cols, int64_t num_tasks_wanted);

// Rows of activations as a GEMM takes them.
struct RowsView {
  const std::byte* data;
  int64_t stride_bytes;
  kernels::RowFormat format;

  RowsView From(int64_t row) const { return {data + row * stride_bytes, stride_bytes, format}; }
};
// Returns a view of prepared rows of `dim` inputs in a buffer.
RowsView ViewOf(std::span<const std::byte> buffer, kernels::RowFormat format, int64_t dim);

// y = x w[cols]^T + bias[cols] for the columns that a task takes.
struct GemmCall {
  int64_t num_rows;
  int64_t inner_dim;
  RowsView x;
  WeightView w;
  const float* bias = nullptr;  // of all columns
  float* y;                     // [num_rows, cols.size()]
  int64_t y_stride;
};
// REQUIRES: cols.begin is the first column of a panel.
void GemmColumns(const OpContext& context, const GemmCall& call, IndexRange cols);

// One of several GEMMs that run in one parallel region.
struct GemmPart {
  GemmCall call;  // its y has all columns
  int64_t num_cols;
};
void RunGemms(const OpContext& context, std::span<const GemmPart> parts);

// Calls body(part) for consecutive parts of `rows`, in parallel.
void ForRowRanges(const OpContext& context, RowRange rows, absl::FunctionRef<void(RowRange)> body);

// Prepares rows of an f32 buffer [num_rows, dim] for a GEMM, at the same places of `buffer`. Above 0, `stride` is from
// row to row of the source.
void PrepareRows(const OpContext& context, std::span<const float> source, int64_t dim, RowRange rows,
                 kernels::RowFormat format, std::span<std::byte> buffer, int64_t stride = 0);

// The input of a norm, its weights and its bias.
struct NormOf {
  std::span<const float> source;  // [num_rows, model_dim]
  std::span<const float> weight;
  std::span<const float> bias;
};
// normed[part] = norm(source[part]), or source[part] without weights.
void NormPart(const OpContext& context, RowRange part, const NormOf& norm);
// out[part] = norm(x[part]) of rows [num_rows, model_dim], an RMSNorm. `out` may be `x`.
void NormOutputs(const OpContext& context, RowRange part, std::span<const float> weight, std::span<const float> x,
                 std::span<float> out);
// Does what NormPart() does for all `rows`, and prepares them for a GEMM of `format` at their places in `buffer`.
void NormRows(const OpContext& context, RowRange rows, const NormOf& norm, kernels::RowFormat format,
              std::span<std::byte> buffer);

// Shows rows of floats that a GEMM takes to the observer, if there is one. PassObserver::Inputs has the arguments.
void Observe(const OpContext& context, const InputPlace& place, const RowsView& x, int64_t num_rows, int64_t dim,
             std::span<const float> weights = {});
// Shows it the residual behind a layer.
void ObserveLayer(const OpContext& context, RowRange rows, int64_t layer_idx);

}  // namespace penstock::host
