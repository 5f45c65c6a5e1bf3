#include "penstock/ops/host_rows.h"

#include <algorithm>
#include <vector>

#include "penstock/base/checked.h"
#include "penstock/kernels/kernels.h"
#include "penstock/ops/prefetching.h"

namespace penstock::host {

int64_t ColumnsPerTask(int64_t num_cols, int64_t num_tasks_wanted) {
  const int64_t cols = (num_cols + num_tasks_wanted - 1) / num_tasks_wanted;
  return std::max<int64_t>(1, (cols + kTaskCols - 1) / kTaskCols) * kTaskCols;
}

void GemmColumns(const OpContext& context, const GemmCall& call, IndexRange cols) {
  const auto panel_bytes = static_cast<int64_t>(PanelBytes(call.w.format, call.inner_dim));
  RunGemm(context.kernels, {.num_rows = call.num_rows,
                            .num_cols = cols.size(),
                            .inner_dim = call.inner_dim,
                            .x_format = call.x.format,
                            .x = call.x.data,
                            .x_stride_bytes = call.x.stride_bytes,
                            .w_format = call.w.format,
                            .w = call.w.data + cols.begin / kPanelCols * panel_bytes,
                            .panel_bytes = panel_bytes,
                            .bias = call.bias == nullptr ? nullptr : call.bias + cols.begin,
                            .y = call.y,
                            .y_stride = call.y_stride});
}

void RunGemms(const OpContext& context, std::span<const GemmPart> parts) {
  struct Task {
    const GemmPart* part;
    IndexRange cols;
  };
  int64_t total_cols = 0;
  for (const GemmPart& part : parts) total_cols += part.num_cols;
  const int64_t cols_per_task = ColumnsPerTask(total_cols, 4 * context.pool.num_workers());
  std::vector<Task> tasks;
  for (const GemmPart& part : parts) {
    for (int64_t col = 0; col < part.num_cols; col += cols_per_task) {
      tasks.push_back({&part, {col, std::min(col + cols_per_task, part.num_cols)}});
    }
  }
  context.pool.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t task_idx, int) {
    GemmCall call = tasks[task_idx].part->call;
    call.y += tasks[task_idx].cols.begin;
    GemmColumns(context, call, tasks[task_idx].cols);
  });
}

void ForRowRanges(const OpContext& context, RowRange rows, absl::FunctionRef<void(RowRange)> body) {
  const int64_t rows_per_task =
      std::max<int64_t>(1, static_cast<int64_t>(CeilDiv(rows.size(), 4 * context.pool.num_workers())));
  context.pool.ParallelFor(static_cast<int64_t>(CeilDiv(rows.size(), rows_per_task)), [&](int64_t task_idx, int) {
    const int64_t begin = rows.begin + task_idx * rows_per_task;
    body({begin, std::min(begin + rows_per_task, rows.end)});
  });
}

RowsView ViewOf(std::span<const std::byte> buffer, kernels::RowFormat format, int64_t dim) {
  return {buffer.data(), kernels::RowBytes(format, dim), format};
}

void PrepareRows(const OpContext& context, std::span<const float> source, int64_t dim, RowRange rows,
                 kernels::RowFormat format, std::span<std::byte> buffer, int64_t stride) {
  const int64_t row_bytes = kernels::RowBytes(format, dim), source_stride = stride > 0 ? stride : dim;
  context.kernels.prepare_rows({.num_rows = rows.size(),
                                .dim = dim,
                                .first = 0,
                                .count = dim,
                                .source = source.data() + rows.begin * source_stride,
                                .source_stride = source_stride,
                                .format = format,
                                .target = buffer.data() + rows.begin * row_bytes,
                                .target_stride_bytes = row_bytes});
}

void NormPart(const OpContext& context, RowRange part, const NormOf& norm) {
  Activations& a = context.activations;
  const int64_t dim = context.config.model_dim;
  if (norm.weight.empty()) {
    std::copy_n(norm.source.begin() + part.begin * dim, part.size() * dim, a.normed.begin() + part.begin * dim);
    return;
  }
  context.kernels.norm({.num_rows = part.size(),
                        .dim = dim,
                        .x = norm.source.data() + part.begin * dim,
                        .x_stride = dim,
                        .weight = norm.weight.data(),
                        .eps = context.config.norm_eps,
                        .out = a.normed.data() + part.begin * dim,
                        .out_stride = dim,
                        .norm = context.config.norm,
                        .bias = DataOrNull(norm.bias)});
}

void NormOutputs(const OpContext& context, RowRange part, std::span<const float> weight, std::span<const float> x,
                 std::span<float> out) {
  const int64_t dim = context.config.model_dim;
  context.kernels.norm({.num_rows = part.size(),
                        .dim = dim,
                        .x = x.data() + part.begin * dim,
                        .x_stride = dim,
                        .weight = weight.data(),
                        .eps = context.config.norm_eps,
                        .out = out.data() + part.begin * dim,
                        .out_stride = dim});
}

void NormRows(const OpContext& context, RowRange rows, const NormOf& norm, kernels::RowFormat format,
              std::span<std::byte> buffer) {
  ForRowRanges(context, rows, [&](RowRange part) {
    NormPart(context, part, norm);
    PrepareRows(context, context.activations.normed, context.config.model_dim, part, format, buffer);
  });
}

void Observe(const OpContext& context, const InputPlace& place, const RowsView& x, int64_t num_rows, int64_t dim,
             std::span<const float> weights) {
  if (context.observer == nullptr || x.format != kernels::RowFormat::kF32) return;
  context.observer->OnInputs({.place = place,
                              .num_rows = num_rows,
                              .dim = dim,
                              .values = reinterpret_cast<const float*>(x.data),
                              .stride = x.stride_bytes / static_cast<int64_t>(sizeof(float)),
                              .weights = weights},
                             context.pool);
}

void ObserveLayer(const OpContext& context, RowRange rows, int64_t layer_idx) {
  if (context.observer == nullptr) return;
  const int64_t dim = context.config.model_dim;
  context.observer->OnLayer(layer_idx, context.activations.residual.subspan(rows.begin * dim, rows.size() * dim));
}

}  // namespace penstock::host
