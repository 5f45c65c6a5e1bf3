// HostOperations: attention, from the norm before it to the residual after it.
#include <algorithm>

#include "penstock/kernels/kernels.h"
#include "penstock/ops/host_operations.h"
#include "penstock/ops/host_rows.h"

namespace penstock {

using namespace host;  // NOLINT: the helpers of these operations

namespace {

void Clip(float limit, float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = std::clamp(values[i], -limit, limit);
}

// Norms heads of `dim` dims; without weights where `weight` is empty.
void NormHeads(const OpContext& context, std::span<const float> weight, int64_t dim, float* row, int64_t row_dim) {
  context.kernels.norm({.num_rows = row_dim / dim,
                        .dim = dim,
                        .x = row,
                        .x_stride = dim,
                        .weight = DataOrNull(weight),
                        .eps = context.config.norm_eps,
                        .out = row,
                        .out_stride = dim});
}

void ScaleQuery(const OpContext& context, int64_t layer_idx, int64_t row_idx) {
  if (!context.config.has_query_scale(layer_idx)) return;
  Activations& a = context.activations;
  float* const q = a.q.data() + row_idx * context.config.q_dim();
  for (int64_t i = 0; i < context.config.q_dim(); ++i) q[i] *= a.query_scales[row_idx];
}

// Applies norms, clamp, RoPE and the query's scale in this order; some kinds of QK norm come after RoPE. `ones` are
// the weights of kUnitAfterRope.
void FinishQkv(const OpContext& context, int64_t layer_idx, int64_t row_idx, std::span<const float> ones) {
  const ModelConfig& config = context.config;
  Activations& a = context.activations;
  const LayerHeads heads = config.heads_of(layer_idx);
  const int64_t q_dim = config.q_dim(layer_idx), kv_dim = config.kv_dim(layer_idx);
  float* q = a.q.data() + row_idx * config.q_dim();
  float* k = a.k.data() + row_idx * config.kv_dim();
  float* v = a.v.data() + row_idx * config.v_dim();
  const bool is_unit = config.qk_norm == QkNorm::kUnitAfterRope;
  const auto norm = [&] {
    if (config.qk_norm == QkNorm::kNone) return;
    const LayerWeights& layer = context.weights.layer(layer_idx);
    if (is_unit && config.rotary_dim_of(layer_idx) == 0) return;
    const std::span<const float> q_norm = is_unit ? ones : layer.q_norm, k_norm = is_unit ? ones : layer.k_norm;
    NormHeads(context, q_norm, std::ssize(q_norm), q, q_dim);
    NormHeads(context, k_norm, std::ssize(k_norm), k, kv_dim);
  };
  if (heads.keys_are_values) std::copy_n(k, kv_dim, v);
  if (config.v_norm) NormHeads(context, {}, heads.head_dim, v, kv_dim);
  if (config.value_scale != 1) {
    for (int64_t d = 0; d < config.v_dim(layer_idx); ++d) v[d] *= config.value_scale;
  }
  const bool is_after_rope = is_unit || config.qk_norm == QkNorm::kPerHeadAfterRope;
  if (!is_after_rope) norm();
  if (config.clip_qkv > 0) {
    Clip(config.clip_qkv, q, q_dim);
    Clip(config.clip_qkv, k, kv_dim);
    Clip(config.clip_qkv, v, config.v_dim(layer_idx));
  }
  const int64_t first_angle = row_idx * config.num_angles() + config.first_angle_of(layer_idx);
  kernels::RopeArgs rope = {.num_heads = config.num_heads_of(layer_idx),
                            .rotary_dim = config.rotary_dim_of(layer_idx),
                            .x = q,
                            .head_stride = heads.head_dim,
                            .cos = a.cos.data() + first_angle,
                            .sin = a.sin.data() + first_angle,
                            .is_interleaved = config.rope.is_interleaved};
  context.kernels.rope(rope);
  rope.num_heads = heads.num_kv_heads;
  rope.x = k;
  context.kernels.rope(rope);
  if (is_after_rope) norm();
  ScaleQuery(context, layer_idx, row_idx);
}

// Writes the row's K and V to its KV page.
void StoreRowKv(const OpContext& context, const KvLayer& layer, std::span<std::byte* const> pages, int64_t pos,
                int64_t row_idx) {
  const ModelConfig& config = context.config;
  const Activations& a = context.activations;
  std::byte* page = pages[pos / KvCache::kPageTokens];
  for (int64_t head_idx = 0; head_idx < layer.num_heads; ++head_idx) {
    const int64_t value_dim = layer.value_dim > 0 ? layer.value_dim : layer.head_dim;
    context.kernels.store_kv({.format = layer.format,
                              .head_dim = layer.head_dim,
                              .values_in_key = config.values_in_key(),
                              .is_by_token = layer.is_by_token,
                              .value_dim = layer.value_dim,
                              .k = a.k.data() + row_idx * config.kv_dim() + head_idx * layer.head_dim,
                              .v = a.v.data() + row_idx * config.v_dim() + head_idx * value_dim,
                              .block = page + layer.head_offset_bytes(head_idx),
                              .token = pos % KvCache::kPageTokens});
  }
  if (layer.first_index_bytes == 0) return;
  const int64_t dim = config.indexer.head_dim;
  const float* const k = a.indexer.k.data() + row_idx * dim;
  context.kernels.store_kv({.format = layer.format,
                            .head_dim = dim,
                            .values_in_key = dim,
                            .k = k,
                            .v = k,
                            .block = page + layer.first_index_bytes,
                            .token = pos % KvCache::kPageTokens});
}

// Returns runs of rows of one sequence at consecutive positions that see the same pages, from the same first position
// on in a layer with chunks. A run has at most `max_rows` rows, which attention takes at once.
std::vector<RowRange> AttentionRuns(const ModelConfig& config, const RowBatch& batch, RowRange rows,
                                    int64_t layer_idx) {
  const int64_t max_rows = AttentionRows(config, layer_idx);
  const auto first_of = [&](int64_t row_idx) { return config.first_of_chunk(layer_idx, batch.positions[row_idx]); };
  std::vector<RowRange> runs;
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    if (!runs.empty()) {
      RowRange& run = runs.back();
      if (run.size() < max_rows && batch.sequence_ids[row_idx] == batch.sequence_ids[run.begin] &&
          batch.kv_pages[row_idx].data() == batch.kv_pages[run.begin].data() &&
          batch.positions[row_idx] == batch.positions[run.begin] + run.size() &&
          first_of(row_idx) == first_of(run.begin)) {
        ++run.end;
        continue;
      }
    }
    runs.push_back({row_idx, row_idx + 1});
  }
  return runs;
}

}  // namespace

void HostOperations::AttendHeads(int64_t layer_idx, const KvLayer& layer, std::span<std::byte* const> pages,
                                 int64_t pos, RowRange rows, int64_t part_idx, const Sight& sight, int worker_idx) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const int64_t group = config.num_heads_of(layer_idx) / layer.num_heads;
  const int64_t max_heads = AttentionHeads(config, layer_idx);
  const int64_t parts_of_head = PartsOfKvHead(config, layer_idx), kv_head_idx = part_idx / parts_of_head;
  const int64_t first_head = kv_head_idx * group + part_idx % parts_of_head * max_heads;
  const int64_t num_heads = std::min(max_heads, (kv_head_idx + 1) * group - first_head);
  const int64_t reach = config.encoder.max_distance;
  context_.kernels.attention(
      {.num_rows = rows.size(),
       .group = num_heads,
       .head_dim = layer.head_dim,
       .values_in_key = config.values_in_key(),
       .value_dim = layer.value_dim,
       .q = a.q.data() + rows.begin * config.q_dim() + first_head * layer.head_dim,
       .q_stride = config.q_dim(),
       .pages = pages.data(),
       .kv_format = layer.format,
       .head_offset_bytes = layer.head_offset_bytes(kv_head_idx),
       .pos = pos,
       .window = config.windows_are_chunks ? 0 : config.window_of(layer_idx),
       .first = sight.first,
       .end = sight.end,
       .scale = config.attention_scale,
       .sinks = config.has_sinks(layer_idx) ? context_.weights.layer(layer_idx).sinks.data() + first_head : nullptr,
       .bias = sight.bias == nullptr ? nullptr : sight.bias + first_head * (2 * reach + 1),
       .bias_reach = reach,
       .scratch = a.attention_scratch.data() + worker_idx * AttentionScratchFloats(config, a.dims.context_length),
       .out = a.attended.data() + rows.begin * config.attended_dim() + first_head * config.value_dim(layer_idx),
       .out_stride = config.attended_dim()});
}

HostOperations::Sight HostOperations::SightOf(const RowBatch& batch, int64_t row_idx, int64_t layer_idx) const {
  const ModelConfig& config = context_.config;
  if (!config.encoder.is_on()) return {.first = config.first_of_chunk(layer_idx, batch.positions[row_idx])};
  const int64_t prompt_length = batch.sequence_lengths[row_idx];
  // The decoder's positions follow the prompt's.
  if (!config.is_of_encoder(layer_idx)) return {.first = prompt_length, .bias = decoder_bias_.data()};
  return {.end = prompt_length, .bias = encoder_bias_.data()};
}

void HostOperations::PreAttention(RowRange rows, int64_t layer_idx) {
  NormForAttention(rows, layer_idx);
  if (context_.config.is_recurrent(layer_idx)) return PrepareState(rows, layer_idx);
  if (context_.config.mla.is_on()) return ProjectMla(rows, layer_idx);
  ProjectQkv(rows, layer_idx);
}

void HostOperations::NormForAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  if (config.parallel_experts || config.parallel_ffn) {
    std::copy_n(a.residual.begin() + rows.begin * config.model_dim, rows.size() * config.model_dim,
                a.layer_input.begin() + rows.begin * config.model_dim);
  }
  NormRows(context_, rows, {a.residual, layer.attention_norm, layer.attention_norm_bias},
           context_.row_formats.attention, a.gemm_input);
  const NormedResidual& factors = config.normed_residual;
  KeepNormed(rows, config.is_recurrent(layer_idx) ? factors.of_recurrent : factors.of_attention);
}

void HostOperations::KeepNormed(RowRange rows, float factor) {
  if (!context_.config.normed_residual.is_on()) return;
  Activations& a = context_.activations;
  const int64_t dim = context_.config.model_dim;
  ForRowRanges(context_, rows, [&](RowRange part) {
    for (int64_t i = part.begin * dim; i < part.end * dim; ++i) a.residual[i] = factor * a.normed[i];
  });
}

void HostOperations::Project(RowRange rows, int64_t inner_dim, std::initializer_list<Projection> projections) {
  const RowsView x = ViewOf(context_.activations.gemm_input, context_.row_formats.attention, inner_dim);
  std::vector<GemmPart> gemms;
  for (const Projection& projection : projections) {
    if (projection.w.data == nullptr) continue;
    gemms.push_back({{.num_rows = rows.size(),
                      .inner_dim = inner_dim,
                      .x = x.From(rows.begin),
                      .w = projection.w,
                      .bias = DataOrNull(projection.bias),
                      .y = projection.y.data() + rows.begin * projection.stride,
                      .y_stride = projection.stride},
                     projection.num_cols});
  }
  RunGemms(context_, gemms);
}

// Computes the gate of what attention will return. REQUIRES: gemm_input holds what attention reads.
void HostOperations::ProjectGate(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = context_.config;
  if (!config.attention_gate) return;
  Project(rows, {{context_.weights.layer(layer_idx).gate_proj,
                  {},
                  context_.activations.attention_gate,
                  config.gate_dim(layer_idx),
                  config.gate_dim()}});
}

void HostOperations::ProjectQkv(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const int64_t q_dim = config.q_dim(layer_idx), kv_dim = config.kv_dim(layer_idx);
  const Projection q{layer.q_proj, layer.q_bias, a.q, q_dim, config.q_dim()};
  const Projection k{layer.k_proj, layer.k_bias, a.k, kv_dim, config.kv_dim()};
  if (config.heads_of(layer_idx).keys_are_values) {
    Project(rows, {q, k});
  } else {
    Project(rows, {q, k, {layer.v_proj, layer.v_bias, a.v, config.v_dim(layer_idx), config.v_dim()}});
  }
  ProjectGate(rows, layer_idx);
  Observe(context_, {layer_idx, InputSite::kAttention},
          ViewOf(a.gemm_input, context_.row_formats.attention, config.model_dim).From(rows.begin), rows.size(),
          config.model_dim);
  context_.pool.ParallelFor(
      rows.size(), [&](int64_t task_idx, int) { FinishQkv(context_, layer_idx, rows.begin + task_idx, unit_norm_); });
}

namespace {

// y[row, head] = w[head] x[row, head] for each head. x and y are f32 rows; w holds one matrix for each head, one after
// another.
struct HeadsGemm {
  int64_t num_cols;
  int64_t inner_dim;
  const float* x;  // of the first row
  int64_t x_head_stride;
  WeightView w;
  float* y;  // of the first row
  int64_t y_head_stride;
};

void RunHeads(const OpContext& context, RowRange rows, const HeadsGemm& gemm) {
  const kernels::RowFormat format = context.row_formats.attention;
  const int64_t num_heads = context.config.num_heads, row_bytes = kernels::RowBytes(format, gemm.inner_dim);
  std::byte* const prepared = context.activations.gemm_input.data() + rows.begin * num_heads * row_bytes;
  ForRowRanges(context, {0, rows.size()}, [&](RowRange part) {
    context.kernels.prepare_rows({.num_rows = part.size() * num_heads,
                                  .dim = gemm.inner_dim,
                                  .first = 0,
                                  .count = gemm.inner_dim,
                                  .source = gemm.x + part.begin * num_heads * gemm.x_head_stride,
                                  .source_stride = gemm.x_head_stride,
                                  .format = format,
                                  .target = prepared + part.begin * num_heads * row_bytes,
                                  .target_stride_bytes = row_bytes});
  });
  const auto matrix_bytes = static_cast<int64_t>(PackedBytes(gemm.w.format, gemm.num_cols, gemm.inner_dim));
  context.pool.ParallelFor(num_heads, [&](int64_t head, int) {
    GemmColumns(context,
                {.num_rows = rows.size(),
                 .inner_dim = gemm.inner_dim,
                 .x = {prepared + head * row_bytes, num_heads * row_bytes, format},
                 .w = {gemm.w.data + head * matrix_bytes, gemm.w.format},
                 .y = gemm.y + head * gemm.y_head_stride,
                 .y_stride = num_heads * gemm.y_head_stride},
                {0, gemm.num_cols});
  });
}

void NormRow(const OpContext& context, float* x, std::span<const float> weight, float eps) {
  const auto dim = std::ssize(weight);
  context.kernels.norm({.num_rows = 1,
                        .dim = dim,
                        .x = x,
                        .x_stride = dim,
                        .weight = weight.data(),
                        .eps = eps,
                        .out = x,
                        .out_stride = dim});
}

}  // namespace

// Computes q and k of MLA from gemm_input, which holds the normed rows.
void HostOperations::ProjectMla(RowRange rows, int64_t layer_idx) {
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const ModelConfig& config = context_.config;
  const Mla& mla = config.mla;
  Activations& a = context_.activations;
  const kernels::RowFormat format = context_.row_formats.attention;
  const int64_t q_head_dim = mla.nope_dim + mla.rope_dim, q_dim = config.num_heads * q_head_dim;
  const auto project = [&](int64_t inner_dim, const WeightView& w, std::span<const float> bias, std::span<float> y,
                           int64_t num_cols) {
    return GemmPart{{.num_rows = rows.size(),
                     .inner_dim = inner_dim,
                     .x = ViewOf(a.gemm_input, format, inner_dim).From(rows.begin),
                     .w = w,
                     .bias = DataOrNull(bias),
                     .y = y.data() + rows.begin * num_cols,
                     .y_stride = num_cols},
                    num_cols};
  };
  ProjectGate(rows, layer_idx);
  const GemmPart k = project(config.model_dim, layer.k_proj, layer.k_bias, a.k, config.kv_dim());
  const bool has_indexer = config.has_indexer(layer_idx);
  if (mla.q_lora_rank > 0) {
    std::vector<GemmPart> first = {
        project(config.model_dim, layer.q_a_proj, layer.q_a_bias, a.q_compressed, mla.q_lora_rank), k};
    if (has_indexer) {
      const int64_t num_heads = config.indexer.num_heads, head_dim = config.indexer.head_dim;
      first.push_back(project(config.model_dim, layer.index_k_proj, {}, a.indexer.k, head_dim));
      // The weights choose positions, as a router chooses experts, and are computed from f32 rows like one.
      GemmPart weights = project(config.model_dim, layer.index_weights_proj, {}, a.indexer.weights, num_heads);
      weights.call.x = {reinterpret_cast<const std::byte*>(a.normed.data() + rows.begin * config.model_dim),
                        4 * config.model_dim, kernels::RowFormat::kF32};
      first.push_back(weights);
    }
    RunGemms(context_, first);
    ForRowRanges(context_, rows, [&](RowRange part) {
      for (int64_t row = part.begin; row < part.end; ++row) {
        NormRow(context_, a.q_compressed.data() + row * mla.q_lora_rank, layer.q_a_norm, mla.norm_eps);
      }
      PrepareRows(context_, a.q_compressed, mla.q_lora_rank, part, format, a.gemm_input);
    });
    std::vector<GemmPart> second = {project(mla.q_lora_rank, layer.q_proj, {}, a.q_heads, q_dim)};
    if (has_indexer) {
      second.push_back(project(mla.q_lora_rank, layer.index_q_proj, {}, a.indexer.q, config.indexer.q_dim()));
    }
    RunGemms(context_, second);
  } else {
    const GemmPart both[] = {project(config.model_dim, layer.q_proj, {}, a.q_heads, q_dim), k};
    RunGemms(context_, both);
  }
  RunHeads(context_, rows,
           {.num_cols = mla.kv_lora_rank,
            .inner_dim = mla.nope_dim,
            .x = a.q_heads.data() + rows.begin * q_dim,
            .x_head_stride = q_head_dim,
            .w = layer.k_up_proj,
            .y = a.q.data() + rows.begin * config.q_dim(),
            .y_head_stride = config.head_dim});
  RotateMla(rows, layer_idx);
  if (has_indexer) FinishIndexer(rows, layer_idx);
}

// Completes q and k of MLA: copies the part of q that rotates behind the compressed part, norms k, and applies RoPE.
void HostOperations::RotateMla(RowRange rows, int64_t layer_idx) {
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const ModelConfig& config = context_.config;
  const Mla& mla = config.mla;
  Activations& a = context_.activations;
  const int64_t q_head_dim = mla.nope_dim + mla.rope_dim, q_dim = config.num_heads * q_head_dim;
  context_.pool.ParallelFor(rows.size(), [&](int64_t i, int) {
    const int64_t row = rows.begin + i;
    float* const q = a.q.data() + row * config.q_dim();
    float* const k_row = a.k.data() + row * config.kv_dim();
    for (int64_t head = 0; head < config.num_heads; ++head) {
      std::copy_n(a.q_heads.data() + row * q_dim + head * q_head_dim + mla.nope_dim, mla.rope_dim,
                  q + head * config.head_dim + mla.kv_lora_rank);
    }
    NormRow(context_, k_row, layer.k_norm, mla.norm_eps);
    for (int64_t d = 0; mla.kv_scale != 1 && d < mla.kv_lora_rank; ++d) k_row[d] *= mla.kv_scale;
    const int64_t first_angle = row * config.num_angles() + config.first_angle_of(layer_idx);
    kernels::RopeArgs rope = {.num_heads = config.num_heads,
                              .rotary_dim = config.rotary_dim_of(layer_idx),
                              .x = q + mla.kv_lora_rank,
                              .head_stride = config.head_dim,
                              .cos = a.cos.data() + first_angle,
                              .sin = a.sin.data() + first_angle,
                              .is_interleaved = config.rope.is_interleaved};
    context_.kernels.rope(rope);
    rope.num_heads = 1;
    rope.x = k_row + mla.kv_lora_rank;
    context_.kernels.rope(rope);
    ScaleQuery(context_, layer_idx, row);
  });
}

// Returns V's up-projection of what the heads of these rows attended to.
std::span<const float> HostOperations::ValuesOfHeads(RowRange rows, const LayerWeights& layer) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  RunHeads(context_, rows,
           {.num_cols = config.mla.value_dim,
            .inner_dim = config.mla.kv_lora_rank,
            .x = a.attended.data() + rows.begin * config.attended_dim(),
            .x_head_stride = config.mla.kv_lora_rank,
            .w = layer.v_up_proj,
            .y = a.value_heads.data() + rows.begin * config.num_heads * config.mla.value_dim,
            .y_head_stride = config.mla.value_dim});
  return a.value_heads;
}

void HostOperations::StoreKv(const RowBatch& batch, RowRange rows, const KvView& kv) {
  context_.pool.ParallelFor(rows.size(), [&](int64_t i, int) {
    const int64_t row_idx = rows.begin + i;
    if (batch.has_kv[row_idx] != 0 && !kv.is_copy) return;
    StoreRowKv(context_, kv.layer, kv.pages[i], batch.kv_positions[row_idx], row_idx);
  });
}

void HostOperations::Attend(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) {
  if (context_.config.is_recurrent(layer_idx)) return AdvanceState(batch, rows, layer_idx, *kv.states);
  if (context_.config.indexer.is_on()) return AttendSelected(batch, rows, layer_idx, kv);
  AttendRuns(batch, rows, layer_idx, kv, [&](int64_t row_idx) { return SightOf(batch, row_idx, layer_idx); });
}

void HostOperations::AttendRuns(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv,
                                absl::FunctionRef<Sight(int64_t row_idx)> sight_of) {
  const ModelConfig& config = context_.config;
  const std::vector<RowRange> runs = AttentionRuns(config, batch, rows, layer_idx);
  const int64_t num_parts = kv.layer.num_heads * PartsOfKvHead(config, layer_idx);
  const auto num_tasks = static_cast<int64_t>(runs.size()) * num_parts;
  context_.pool.ParallelFor(num_tasks, [&](int64_t task_idx, int worker_idx) {
    // The rows that see the most positions come last in a chunk. Beginning with them balances the end of the parallel
    // region.
    const int64_t reversed = num_tasks - 1 - context_.pool.DealtIdx(task_idx, num_tasks);
    const RowRange& run = runs[reversed / num_parts];
    AttendHeads(layer_idx, kv.layer, kv.pages[run.begin - rows.begin], batch.kv_positions[run.begin], run,
                reversed % num_parts, sight_of(run.begin), worker_idx);
  });
}

namespace {

// Multiplies what attention returned by its gate.
void GateAttended(const OpContext& context, RowRange part, int64_t layer_idx) {
  const ModelConfig& config = context.config;
  Activations& a = context.activations;
  const int64_t dim = config.attended_dim(layer_idx), num_gates = config.gate_dim(layer_idx);
  const int64_t dims_of_gate = dim / num_gates;
  const std::vector<float> zeros(static_cast<size_t>(config.gate_is_softplus ? num_gates : 0));
  std::vector<float> factors(static_cast<size_t>(num_gates));
  for (int64_t row = part.begin; row < part.end; ++row) {
    float* const gate = a.attention_gate.data() + row * config.gate_dim();
    float* const attended = a.attended.data() + row * config.attended_dim();
    if (!config.gate_is_softplus && !config.gate_is_per_head) {
      context.kernels.scale_by_sigmoid(gate, dim, attended);
      continue;
    }
    if (config.gate_is_softplus) {  // as the steps of recurrent layers are
      std::copy_n(gate, num_gates, factors.begin());
      context.kernels.recurrent_gates({.num_decays = num_gates,
                                       .decay_bias = zeros.data(),
                                       .decay_log = nullptr,
                                       .decay = factors.data(),
                                       .num_betas = 0,
                                       .beta = nullptr});
    } else {
      std::ranges::fill(factors, 1.0f);
      context.kernels.scale_by_sigmoid(gate, num_gates, factors.data());
    }
    for (int64_t d = 0; d < dim; ++d) attended[d] *= factors[d / dims_of_gate];
  }
}

}  // namespace

void HostOperations::PostAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = context_.config;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  if (config.is_recurrent(layer_idx)) {
    FinishState(rows, layer_idx);
    return AddAttended(rows, {context_.activations.recurrent.out, config.recurrent.values_dim()}, layer.o_proj,
                       layer.o_bias, layer.attention_output_norm);
  }
  // With MLA the gate is one number for each head, which may come before V's up-projection.
  if (config.attention_gate) {
    ForRowRanges(context_, rows, [&](RowRange part) { GateAttended(context_, part, layer_idx); });
  }
  if (config.mla.is_on()) {
    return AddAttended(rows, {ValuesOfHeads(rows, layer), config.num_heads * config.mla.value_dim}, layer.o_proj,
                       layer.o_bias, layer.attention_output_norm);
  }
  const int64_t dim = config.attended_dim(layer_idx);
  AddAttended(rows, {context_.activations.attended, dim, config.attended_dim()}, layer.o_proj, layer.o_bias,
              layer.attention_output_norm);
  Observe(context_, {layer_idx, InputSite::kAttended},
          ViewOf(context_.activations.gemm_input, context_.row_formats.attention, dim).From(rows.begin), rows.size(),
          dim);
}

void HostOperations::PreCross(RowRange rows, int64_t layer_idx) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  NormRows(context_, rows, {a.residual, layer.cross_norm, {}}, context_.row_formats.attention, a.gemm_input);
  Project(rows, {{layer.cross_q_proj, {}, a.q, context_.config.q_dim()}});
}

void HostOperations::AttendCross(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) {
  AttendRuns(batch, rows, layer_idx, kv,
             [&](int64_t row_idx) -> Sight { return {.end = batch.sequence_lengths[row_idx]}; });
}

void HostOperations::PostCross(RowRange rows, int64_t layer_idx) {
  AddAttended(rows, {context_.activations.attended, context_.config.attended_dim()},
              context_.weights.layer(layer_idx).cross_o_proj, {});
}

void HostOperations::NormEncoded(RowRange rows) {
  Activations& a = context_.activations;
  NormRows(context_, rows, {a.residual, context_.weights.outer().encoder_norm, {}}, context_.row_formats.attention,
           a.gemm_input);
}

void HostOperations::ProjectCross(RowRange rows, int64_t layer_idx) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const int64_t kv_dim = context_.config.kv_dim();
  Project(rows, {{layer.cross_k_proj, {}, a.k, kv_dim}, {layer.cross_v_proj, {}, a.v, kv_dim}});
}

void HostOperations::AddAttended(RowRange rows, const AttendedRows& attended, const WeightView& o_proj,
                                 std::span<const float> o_bias, std::span<const float> output_norm) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const kernels::RowFormat format = context_.row_formats.attention;
  ForRowRanges(context_, rows, [&](RowRange part) {
    PrepareRows(context_, attended.source, attended.dim, part, format, a.gemm_input, attended.stride);
  });
  const GemmPart output[] = {{{.num_rows = rows.size(),
                               .inner_dim = attended.dim,
                               .x = ViewOf(a.gemm_input, format, attended.dim).From(rows.begin),
                               .w = o_proj,
                               .bias = DataOrNull(o_bias),
                               .y = a.normed.data() + rows.begin * config.model_dim,
                               .y_stride = config.model_dim},
                              config.model_dim}};
  RunGemms(context_, output);
  if (!output_norm.empty()) {
    ForRowRanges(context_, rows, [&](RowRange part) { NormOutputs(context_, part, output_norm, a.normed, a.normed); });
  }
  AddBranch(rows);
}

}  // namespace penstock
