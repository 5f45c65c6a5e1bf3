#include "penstock/schedule/host_operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/kernels/kernels.h"

namespace penstock {
namespace {

// Task boundaries: whole panels of weights, and whole groups of the rows that a task prepares.
constexpr int64_t kTaskCols = 128;
static_assert(kTaskCols % kPanelCols == 0 && kTaskCols % kInt8Group == 0 && kFfnScratchCols % kTaskCols == 0);

// A task should be long enough to pay for being handed out and short enough that the last one does not keep the others
// waiting: a few tasks per worker.
int64_t ColumnsPerTask(int64_t num_cols, int64_t num_tasks_wanted) {
  const int64_t cols = (num_cols + num_tasks_wanted - 1) / num_tasks_wanted;
  return std::max<int64_t>(1, (cols + kTaskCols - 1) / kTaskCols) * kTaskCols;
}

// Rows of activations as a GEMM takes them.
struct RowsView {
  const std::byte* data;
  int64_t stride_bytes;
  kernels::RowFormat format;

  RowsView From(int64_t row) const { return {data + row * stride_bytes, stride_bytes, format}; }
};

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
void GemmColumns(const OpContext& context, const GemmCall& call, IndexRange cols) {
  const auto panel_bytes = static_cast<int64_t>(PanelBytes(call.w.format, call.inner_dim));
  context.kernels.gemm({.num_rows = call.num_rows,
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

// Several GEMMs of one input in one parallel region.
struct GemmPart {
  GemmCall call;  // y of all columns
  int64_t num_cols;
};

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

// Calls body(part) for consecutive parts of `rows`.
void ForRowRanges(const OpContext& context, RowRange rows, absl::FunctionRef<void(RowRange)> body) {
  const int64_t rows_per_task =
      std::max<int64_t>(1, static_cast<int64_t>(CeilDiv(rows.size(), 4 * context.pool.num_workers())));
  context.pool.ParallelFor(static_cast<int64_t>(CeilDiv(rows.size(), rows_per_task)), [&](int64_t task_idx, int) {
    const int64_t begin = rows.begin + task_idx * rows_per_task;
    body({begin, std::min(begin + rows_per_task, rows.end)});
  });
}

// Prepared rows of `dim` inputs in a buffer.
RowsView ViewOf(std::span<const std::byte> buffer, kernels::RowFormat format, int64_t dim) {
  return {buffer.data(), kernels::RowBytes(format, dim), format};
}

// The rows of an f32 buffer [num_rows, dim] as a GEMM takes them, at the same places of `buffer`.
void PrepareRows(const OpContext& context, std::span<const float> source, int64_t dim, RowRange rows,
                 kernels::RowFormat format, std::span<std::byte> buffer) {
  const int64_t row_bytes = kernels::RowBytes(format, dim);
  context.kernels.prepare_rows({.num_rows = rows.size(),
                                .dim = dim,
                                .first = 0,
                                .count = dim,
                                .source = source.data() + rows.begin * dim,
                                .source_stride = dim,
                                .format = format,
                                .target = buffer.data() + rows.begin * row_bytes,
                                .target_stride_bytes = row_bytes});
}

// normed = norm(residual), and these rows as a GEMM of `format` takes them, at their places of `buffer`.
void NormPart(const OpContext& context, RowRange part, std::span<const float> weight) {
  Activations& a = context.activations;
  const int64_t dim = context.config.model_dim;
  context.kernels.rms_norm({.num_rows = part.size(),
                            .dim = dim,
                            .x = a.residual.data() + part.begin * dim,
                            .x_stride = dim,
                            .weight = weight.data(),
                            .eps = context.config.rms_norm_eps,
                            .out = a.normed.data() + part.begin * dim,
                            .out_stride = dim});
}

void NormRows(const OpContext& context, RowRange rows, std::span<const float> weight, kernels::RowFormat format,
              std::span<std::byte> buffer) {
  ForRowRanges(context, rows, [&](RowRange part) {
    NormPart(context, part, weight);
    PrepareRows(context, context.activations.normed, context.config.model_dim, part, format, buffer);
  });
}

void Clip(float limit, float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = std::clamp(values[i], -limit, limit);
}

void NormHeads(const OpContext& context, std::span<const float> weight, float* row, int64_t row_dim) {
  if (weight.empty()) return;
  const int64_t dim = static_cast<int64_t>(weight.size());
  context.kernels.rms_norm({.num_rows = row_dim / dim,
                            .dim = dim,
                            .x = row,
                            .x_stride = dim,
                            .weight = weight.data(),
                            .eps = context.config.rms_norm_eps,
                            .out = row,
                            .out_stride = dim});
}

// QK norm, clamp, RoPE, in this order.
void FinishQkv(const OpContext& context, const LayerWeights& layer, int64_t row_idx) {
  const ModelConfig& config = context.config;
  Activations& a = context.activations;
  float* q = a.q.data() + row_idx * config.q_dim();
  float* k = a.k.data() + row_idx * config.kv_dim();
  float* v = a.v.data() + row_idx * config.kv_dim();
  NormHeads(context, layer.q_norm, q, config.q_dim());
  NormHeads(context, layer.k_norm, k, config.kv_dim());
  if (config.clip_qkv > 0) {
    Clip(config.clip_qkv, q, config.q_dim());
    Clip(config.clip_qkv, k, config.kv_dim());
    Clip(config.clip_qkv, v, config.kv_dim());
  }
  kernels::RopeArgs rope = {.num_heads = config.num_heads,
                            .rotary_dim = config.head_dim,
                            .x = q,
                            .head_stride = config.head_dim,
                            .cos = a.cos.data() + row_idx * config.head_dim / 2,
                            .sin = a.sin.data() + row_idx * config.head_dim / 2};
  context.kernels.rope(rope);
  rope.num_heads = config.num_kv_heads;
  rope.x = k;
  context.kernels.rope(rope);
}

// The row's K and V into its KV page.
void StoreRowKv(const OpContext& context, const KvLayer& layer, std::span<std::byte* const> pages, int64_t pos,
                int64_t row_idx) {
  const ModelConfig& config = context.config;
  const Activations& a = context.activations;
  std::byte* page = pages[static_cast<size_t>(pos / KvCache::kPageTokens)];
  for (int64_t head_idx = 0; head_idx < config.num_kv_heads; ++head_idx) {
    const int64_t offset = row_idx * config.kv_dim() + head_idx * config.head_dim;
    context.kernels.store_kv({.format = layer.format,
                              .head_dim = config.head_dim,
                              .k = a.k.data() + offset,
                              .v = a.v.data() + offset,
                              .block = page + layer.head_offset_bytes(head_idx),
                              .token = pos % KvCache::kPageTokens});
  }
}

// Rows of one sequence at consecutive positions that see the same pages, no more than attention takes at once.
std::vector<RowRange> AttentionRuns(const RowBatch& batch, RowRange rows, int64_t max_rows) {
  std::vector<RowRange> runs;
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    if (!runs.empty()) {
      RowRange& run = runs.back();
      if (run.size() < max_rows && batch.sequence_ids[row_idx] == batch.sequence_ids[run.begin] &&
          batch.kv_pages[row_idx].data() == batch.kv_pages[run.begin].data() &&
          batch.positions[row_idx] == batch.positions[run.begin] + run.size()) {
        ++run.end;
        continue;
      }
    }
    runs.push_back({row_idx, row_idx + 1});
  }
  return runs;
}

void AttendHead(const OpContext& context, const KvLayer& layer, std::span<std::byte* const> pages, int64_t pos,
                RowRange rows, int64_t head_idx, int worker_idx) {
  const ModelConfig& config = context.config;
  Activations& a = context.activations;
  const int64_t group = config.num_heads / config.num_kv_heads;
  const int64_t q_offset = rows.begin * config.q_dim() + head_idx * group * config.head_dim;
  context.kernels.attention(
      {.num_rows = rows.size(),
       .group = group,
       .head_dim = config.head_dim,
       .q = a.q.data() + q_offset,
       .q_stride = config.q_dim(),
       .pages = pages.data(),
       .kv_format = layer.format,
       .head_offset_bytes = layer.head_offset_bytes(head_idx),
       .pos = pos,
       .window = config.sliding_window,
       .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
       .scratch = a.attention_scratch.data() + worker_idx * AttentionScratchFloats(config, a.dims.context_length),
       .out = a.attended.data() + q_offset,
       .out_stride = config.q_dim()});
}

const float* DataOrNull(std::span<const float> span) { return span.empty() ? nullptr : span.data(); }

// One FFN over a run of rows of the FFN buffers: an expert with its group, or the dense FFN with all rows.
struct FfnGroup {
  const FfnWeights* weights;
  RowRange rows;
};

// hidden[rows, cols] = silu(gate(x)) * up(x) of the group's rows. gate and up never leave the worker's scratch memory.
void GateUpColumns(const OpContext& context, const FfnGroup& group, const RowsView& x, IndexRange cols, int64_t ffn_dim,
                   const RowsView& hidden, int worker_idx) {
  Activations& a = context.activations;
  const int64_t num_rows = group.rows.size();
  const int64_t scratch_floats = FfnScratchFloats(a.dims.max_rows);
  float* scratch = a.ffn_scratch.data() + worker_idx * scratch_floats;
  const int64_t cols_at_once =
      (scratch_floats / (2 * num_rows) - kFfnScratchPadding) / kFfnScratchCols * kFfnScratchCols;
  for (int64_t begin = cols.begin; begin < cols.end; begin += cols_at_once) {
    const IndexRange part = {begin, std::min(begin + cols_at_once, cols.end)};
    const int64_t stride = part.size() + kFfnScratchPadding;
    const GemmCall gate = {.num_rows = num_rows,
                           .inner_dim = context.config.model_dim,
                           .x = x.From(group.rows.begin),
                           .w = group.weights->gate_proj,
                           .y = scratch,
                           .y_stride = stride};
    GemmCall up = gate;
    up.w = group.weights->up_proj;
    up.y += num_rows * stride;
    GemmColumns(context, gate, part);
    GemmColumns(context, up, part);
    context.kernels.swiglu({.num_rows = num_rows,
                            .dim = part.size(),
                            .gate = gate.y,
                            .gate_stride = stride,
                            .up = up.y,
                            .up_stride = stride,
                            .out = gate.y,
                            .out_stride = stride});
    context.kernels.prepare_rows({.num_rows = num_rows,
                                  .dim = ffn_dim,
                                  .first = part.begin,
                                  .count = part.size(),
                                  .source = gate.y,
                                  .source_stride = stride,
                                  .format = hidden.format,
                                  .target = a.hidden.data() + group.rows.begin * hidden.stride_bytes,
                                  .target_stride_bytes = hidden.stride_bytes});
  }
}

// expert_output[rows] = down(silu(gate(x)) * up(x)) for every group, in two parallel regions.
void RunFfns(const OpContext& context, std::span<const FfnGroup> groups, int64_t ffn_dim, const RowsView& x) {
  Activations& a = context.activations;
  const int64_t model_dim = context.config.model_dim;
  const kernels::RowFormat format = context.row_formats.ffn;
  const RowsView hidden = {a.hidden.data(), kernels::RowBytes(format, ffn_dim), format};
  const auto tasks_per_group =
      std::max<int64_t>(1, 8 * context.pool.num_workers() / std::max<int64_t>(1, groups.size()));
  const auto run = [&](int64_t num_cols, absl::FunctionRef<void(const FfnGroup&, IndexRange, int)> body) {
    const int64_t cols_per_task = ColumnsPerTask(num_cols, tasks_per_group);
    const int64_t tasks_per = static_cast<int64_t>(CeilDiv(num_cols, cols_per_task));
    context.pool.ParallelFor(static_cast<int64_t>(groups.size()) * tasks_per, [&](int64_t task_idx, int worker_idx) {
      const int64_t begin = task_idx % tasks_per * cols_per_task;
      body(groups[task_idx / tasks_per], {begin, std::min(begin + cols_per_task, num_cols)}, worker_idx);
    });
  };
  run(ffn_dim, [&](const FfnGroup& group, IndexRange cols, int worker_idx) {
    GateUpColumns(context, group, x, cols, ffn_dim, hidden, worker_idx);
  });
  run(model_dim, [&](const FfnGroup& group, IndexRange cols, int) {
    GemmColumns(context,
                {.num_rows = group.rows.size(),
                 .inner_dim = ffn_dim,
                 .x = hidden.From(group.rows.begin),
                 .w = group.weights->down_proj,
                 .y = a.expert_output.data() + group.rows.begin * model_dim + cols.begin,
                 .y_stride = model_dim},
                cols);
  });
}

RowsView ExpertInput(const OpContext& context) {
  return ViewOf(context.activations.expert_input, context.row_formats.ffn, context.config.model_dim);
}

}  // namespace

void HostOperations::Embed(const RowBatch& batch, RowRange rows) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  PENSTOCK_CHECK(batch.num_rows() <= a.dims.max_rows && rows.end <= batch.num_rows());
  const EmbeddingView& embedding = context_.weights.embedding();
  ForRowRanges(context_, rows, [&](RowRange part) {
    for (int64_t row_idx = part.begin; row_idx < part.end; ++row_idx) {
      const int64_t token = batch.token_ids[row_idx];
      float* residual = a.residual.data() + row_idx * config.model_dim;
      if (embedding.packed.has_value()) {
        UnpackColumn(*embedding.packed, embedding.data, token, config.model_dim, residual);
      } else {
        const std::byte* source =
            embedding.data + static_cast<uint64_t>(token * config.model_dim) * SizeOf(embedding.dtype);
        context_.kernels.to_f32(embedding.dtype, source, config.model_dim, residual);
      }
      // Frequencies and angles in f32, as the reference implementation has them.
      for (int64_t i = 0; i < config.head_dim / 2; ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
        const float frequency = 1.0f / std::pow(static_cast<float>(config.rope_theta), exponent);
        const float angle = static_cast<float>(batch.positions[row_idx]) * frequency;
        a.cos[row_idx * config.head_dim / 2 + i] = std::cos(angle);
        a.sin[row_idx * config.head_dim / 2 + i] = std::sin(angle);
      }
    }
  });
}

void HostOperations::PreAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const kernels::RowFormat format = context_.row_formats.attention;
  NormRows(context_, rows, layer.attention_norm, format, a.gemm_input);
  const auto project = [&](const WeightView& w, std::span<const float> bias, std::span<float> y, int64_t num_cols) {
    return GemmPart{{.num_rows = rows.size(),
                     .inner_dim = config.model_dim,
                     .x = ViewOf(a.gemm_input, format, config.model_dim).From(rows.begin),
                     .w = w,
                     .bias = DataOrNull(bias),
                     .y = y.data() + rows.begin * num_cols,
                     .y_stride = num_cols},
                    num_cols};
  };
  const GemmPart qkv[] = {project(layer.q_proj, layer.q_bias, a.q, config.q_dim()),
                          project(layer.k_proj, layer.k_bias, a.k, config.kv_dim()),
                          project(layer.v_proj, layer.v_bias, a.v, config.kv_dim())};
  RunGemms(context_, qkv);
  context_.pool.ParallelFor(rows.size(),
                            [&](int64_t task_idx, int) { FinishQkv(context_, layer, rows.begin + task_idx); });
}

void HostOperations::StoreKv(const RowBatch& batch, RowRange rows, const KvView& kv) {
  context_.pool.ParallelFor(rows.size(), [&](int64_t i, int) {
    const int64_t row_idx = rows.begin + i;
    StoreRowKv(context_, kv.layer, kv.pages[static_cast<size_t>(i)], batch.kv_positions[row_idx], row_idx);
  });
}

void HostOperations::Attend(const RowBatch& batch, RowRange rows, const KvView& kv) {
  const ModelConfig& config = context_.config;
  const std::vector<RowRange> runs = AttentionRuns(batch, rows, AttentionRows(config));
  const auto num_tasks = static_cast<int64_t>(runs.size()) * config.num_kv_heads;
  context_.pool.ParallelFor(num_tasks, [&](int64_t task_idx, int worker_idx) {
    // The longest rows come last in a chunk; beginning with them balances the end of the region.
    const int64_t reversed = num_tasks - 1 - task_idx;
    const RowRange& run = runs[static_cast<size_t>(reversed / config.num_kv_heads)];
    AttendHead(context_, kv.layer, kv.pages[static_cast<size_t>(run.begin - rows.begin)], batch.kv_positions[run.begin],
               run, reversed % config.num_kv_heads, worker_idx);
  });
}

void HostOperations::PostAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const kernels::RowFormat format = context_.row_formats.attention;
  ForRowRanges(context_, rows,
               [&](RowRange part) { PrepareRows(context_, a.attended, config.q_dim(), part, format, a.gemm_input); });
  const GemmPart output[] = {{{.num_rows = rows.size(),
                               .inner_dim = config.q_dim(),
                               .x = ViewOf(a.gemm_input, format, config.q_dim()).From(rows.begin),
                               .w = layer.o_proj,
                               .bias = DataOrNull(layer.o_bias),
                               .y = a.normed.data() + rows.begin * config.model_dim,
                               .y_stride = config.model_dim},
                              config.model_dim}};
  RunGemms(context_, output);
  context_.kernels.add(a.normed.data() + rows.begin * config.model_dim, rows.size() * config.model_dim,
                       a.residual.data() + rows.begin * config.model_dim);
}

namespace {

// What a gate makes of a.normed. It always computes in f32: a rounded score could choose another expert.
void ApplyGate(const OpContext& context, RowRange rows, const LayerWeights& layer, std::span<float> scores,
               std::span<int32_t> topk_idx, std::span<float> topk_weights) {
  const ModelConfig& config = context.config;
  const Activations& a = context.activations;
  ForRowRanges(context, rows, [&](RowRange part) {
    GemmColumns(context,
                {.num_rows = part.size(),
                 .inner_dim = config.model_dim,
                 .x = {reinterpret_cast<const std::byte*>(a.normed.data() + part.begin * config.model_dim),
                       4 * config.model_dim, kernels::RowFormat::kF32},
                 .w = layer.router_proj,
                 .y = scores.data() + part.begin * config.num_experts,
                 .y_stride = config.num_experts},
                {0, config.num_experts});
    for (int64_t row_idx = part.begin; row_idx < part.end; ++row_idx) {
      context.kernels.router_topk(
          {.num_experts = config.num_experts,
           .num_topk = config.num_topk,
           .scores = scores.data() + row_idx * config.num_experts,
           .renormalise = config.norm_topk_prob ? kernels::Renormalise::kYes : kernels::Renormalise::kNo,
           .topk_idx = topk_idx.data() + row_idx * config.num_topk,
           .topk_weights = topk_weights.data() + row_idx * config.num_topk});
    }
  });
}

}  // namespace

void HostOperations::Route(RowRange rows, int64_t layer_idx) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  NormRows(context_, rows, layer.ffn_norm, context_.row_formats.ffn, a.ffn_input);
  ApplyGate(context_, rows, layer, a.router_logits, a.topk_idx, a.topk_weights);
}

void HostOperations::RouteAhead(RowRange rows, int64_t target_idx, int64_t ahead) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(target_idx);
  ForRowRanges(context_, rows, [&](RowRange part) { NormPart(context_, part, layer.ffn_norm); });
  ApplyGate(context_, rows, layer, a.ahead_scores, a.topk_ahead(ahead), a.ahead_weights);
}

void HostOperations::Group(RowRange rows) {
  Activations& a = context_.activations;
  const int64_t num_topk = context_.config.num_topk;
  // The places of these rows' assignments are those of the rows themselves, sorted by expert (stable in rows).
  const IndexRange places = {rows.begin * num_topk, rows.end * num_topk};
  std::fill(a.group_offsets.begin(), a.group_offsets.end(), 0);
  for (int64_t i = places.begin; i < places.end; ++i) ++a.group_offsets[a.topk_idx[i] + 1];
  a.group_offsets[0] = places.begin;
  for (int64_t e = 0; e < context_.config.num_experts; ++e) a.group_offsets[e + 1] += a.group_offsets[e];
  // Filling moves each offset to the end of its group, which is the start of the next: shift back afterwards.
  for (int64_t i = places.begin; i < places.end; ++i) {
    const int64_t place = a.group_offsets[a.topk_idx[i]]++;
    a.assignments[i] = place;
    a.assigned_row[place] = i / num_topk;
  }
  for (int64_t e = context_.config.num_experts; e > 0; --e) a.group_offsets[e] = a.group_offsets[e - 1];
  a.group_offsets[0] = places.begin;
  const RowsView input = ExpertInput(context_);
  ForRowRanges(context_, places, [&](IndexRange part) {
    for (int64_t place = part.begin; place < part.end; ++place) {
      std::memcpy(a.expert_input.data() + place * input.stride_bytes,
                  a.ffn_input.data() + a.assigned_row[place] * input.stride_bytes,
                  static_cast<size_t>(input.stride_bytes));
    }
  });
}

std::span<const int32_t> HostOperations::Choices(RowRange rows) {
  const int64_t num_topk = context_.config.num_topk;
  return context_.activations.topk_idx.subspan(static_cast<size_t>(rows.begin * num_topk),
                                               static_cast<size_t>(rows.size() * num_topk));
}

void HostOperations::Experts(std::span<const ExpertToRun> experts) {
  const Activations& a = context_.activations;
  std::vector<FfnGroup> groups;
  groups.reserve(experts.size());
  for (const ExpertToRun& expert : experts) {
    const IndexRange places = {a.group_offsets[expert.expert_idx], a.group_offsets[expert.expert_idx + 1]};
    if (places.size() > 0) groups.push_back({&expert.weights, places});
  }
  // Experts with the most rows first: small ones fill up the end of the region.
  std::sort(groups.begin(), groups.end(), [](const FfnGroup& x, const FfnGroup& y) {
    return x.rows.size() != y.rows.size() ? x.rows.size() > y.rows.size() : x.rows.begin < y.rows.begin;
  });
  RunFfns(context_, groups, context_.config.expert_dim, ExpertInput(context_));
}

std::vector<int64_t> HostOperations::ClearExpert(int64_t expert_idx) {
  Activations& a = context_.activations;
  const int64_t dim = context_.config.model_dim;
  const IndexRange places = {a.group_offsets[expert_idx], a.group_offsets[expert_idx + 1]};
  std::fill_n(a.expert_output.data() + places.begin * dim, places.size() * dim, 0.0f);
  return {a.assigned_row.begin() + places.begin, a.assigned_row.begin() + places.end};
}

void HostOperations::Combine(RowRange rows) {
  Activations& a = context_.activations;
  const int64_t dim = context_.config.model_dim;
  const int64_t num_topk = context_.config.num_topk;
  ForRowRanges(context_, rows, [&](RowRange part) {
    context_.kernels.combine({.num_rows = part.size(),
                              .dim = dim,
                              .num_topk = num_topk,
                              .residual = a.residual.data() + part.begin * dim,
                              .residual_stride = dim,
                              .z = a.expert_output.data(),
                              .z_stride = dim,
                              .assignments = a.assignments.data() + part.begin * num_topk,
                              .weights = a.topk_weights.data() + part.begin * num_topk,
                              .y = a.residual.data() + part.begin * dim,
                              .y_stride = dim});
  });
}

void HostOperations::DenseFfn(RowRange rows, int64_t layer_idx) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const int64_t dim = context_.config.model_dim;
  NormRows(context_, rows, layer.ffn_norm, context_.row_formats.ffn, a.ffn_input);
  const FfnGroup group = {&layer.dense_ffn, rows};
  RunFfns(context_, {&group, 1}, context_.config.dense_ffn_dim, ViewOf(a.ffn_input, context_.row_formats.ffn, dim));
  context_.kernels.add(a.expert_output.data() + rows.begin * dim, rows.size() * dim,
                       a.residual.data() + rows.begin * dim);
}

void HostOperations::Logits(std::span<const int64_t> rows) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  PENSTOCK_CHECK(num_rows <= a.dims.max_logit_rows && num_rows <= a.dims.max_rows);
  const int64_t dim = config.model_dim;
  for (int64_t i = 0; i < num_rows; ++i) {
    context_.kernels.rms_norm({.num_rows = 1,
                               .dim = dim,
                               .x = a.residual.data() + rows[i] * dim,
                               .x_stride = dim,
                               .weight = context_.weights.final_norm().data(),
                               .eps = config.rms_norm_eps,
                               .out = a.normed.data() + i * dim,
                               .out_stride = dim});
  }
  const kernels::RowFormat format = context_.row_formats.lm_head;
  PrepareRows(context_, a.normed, dim, {0, num_rows}, format, a.gemm_input);
  const GemmPart head[] = {{{.num_rows = num_rows,
                             .inner_dim = dim,
                             .x = ViewOf(a.gemm_input, format, dim),
                             .w = context_.weights.lm_head(),
                             .y = a.logits.data(),
                             .y_stride = config.vocab_size},
                            config.vocab_size}};
  RunGemms(context_, head);
}

}  // namespace penstock
