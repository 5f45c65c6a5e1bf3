// HostOperations: attention, from the norm before it to the residual behind it.
#include <algorithm>

#include "penstock/kernels/kernels.h"
#include "penstock/schedule/host_operations.h"
#include "penstock/schedule/host_rows.h"

namespace penstock {

using namespace host;  // NOLINT: these are its operations

namespace {

void Clip(float limit, float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = std::clamp(values[i], -limit, limit);
}

void NormHeads(const OpContext& context, std::span<const float> weight, float* row, int64_t row_dim) {
  if (weight.empty()) return;
  const int64_t dim = static_cast<int64_t>(weight.size());
  context.kernels.norm({.num_rows = row_dim / dim,
                        .dim = dim,
                        .x = row,
                        .x_stride = dim,
                        .weight = weight.data(),
                        .eps = context.config.norm_eps,
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
                            .rotary_dim = config.rotary_dim(),
                            .x = q,
                            .head_stride = config.head_dim,
                            .cos = a.cos.data() + row_idx * config.rotary_dim() / 2,
                            .sin = a.sin.data() + row_idx * config.rotary_dim() / 2,
                            .is_interleaved = config.rope.is_interleaved};
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

void AttendHead(const OpContext& context, int64_t layer_idx, const KvLayer& layer, std::span<std::byte* const> pages,
                int64_t pos, RowRange rows, int64_t head_idx, int worker_idx) {
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
       .window = config.window_of(layer_idx),
       .scale = config.attention_scale,
       .sinks = config.attention_sinks ? context.weights.layer(layer_idx).sinks.data() + head_idx * group : nullptr,
       .scratch = a.attention_scratch.data() + worker_idx * AttentionScratchFloats(config, a.dims.context_length),
       .out = a.attended.data() + q_offset,
       .out_stride = config.q_dim()});
}

}  // namespace

void HostOperations::PreAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const kernels::RowFormat format = context_.row_formats.attention;
  if (config.parallel_experts) {
    std::copy_n(a.residual.begin() + rows.begin * config.model_dim, rows.size() * config.model_dim,
                a.layer_input.begin() + rows.begin * config.model_dim);
  }
  NormRows(context_, rows, {a.residual, layer.attention_norm, layer.attention_norm_bias}, format, a.gemm_input);
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

void HostOperations::Attend(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) {
  const ModelConfig& config = context_.config;
  const std::vector<RowRange> runs = AttentionRuns(batch, rows, AttentionRows(config));
  const auto num_tasks = static_cast<int64_t>(runs.size()) * config.num_kv_heads;
  context_.pool.ParallelFor(num_tasks, [&](int64_t task_idx, int worker_idx) {
    // The longest rows come last in a chunk; beginning with them balances the end of the region.
    const int64_t reversed = num_tasks - 1 - task_idx;
    const RowRange& run = runs[static_cast<size_t>(reversed / config.num_kv_heads)];
    AttendHead(context_, layer_idx, kv.layer, kv.pages[static_cast<size_t>(run.begin - rows.begin)],
               batch.kv_positions[run.begin], run, reversed % config.num_kv_heads, worker_idx);
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
  AddBranch(rows);
}

}  // namespace penstock
