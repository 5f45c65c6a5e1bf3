#include "penstock/ops/cuda_operations.h"

#include <algorithm>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/kernels/cuda/recurrent.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/ops/cuda_table.h"
#include "penstock/ops/cuda_workspace.h"

namespace penstock {
namespace {

const float* DataOrNull(std::span<const float> span) { return span.empty() ? nullptr : span.data(); }

}  // namespace

void CudaOperations::Embed(const RowBatch&, RowRange) { PENSTOCK_CHECK(false); }

void CudaOperations::Project(RowRange rows, kernels::RowFormat format, const std::byte* x,
                             const Projection& projection) {
  const int64_t stride = kernels::RowBytes(format, projection.inner_dim);
  cuda::Gemm({.x_format = format,
              .w_format = projection.w.format,
              .num_cols = projection.num_cols,
              .inner_dim = projection.inner_dim,
              .x = x + rows.begin * stride,
              .x_stride_bytes = stride,
              .weights = {{projection.w.data}},
              .bias = {DataOrNull(projection.bias)},
              .y = projection.y,
              .y_stride = projection.num_cols,
              .groups = {.max_rows = rows.size()},
              .tuning = args_.tuning},
             args_.stream);
}

void CudaOperations::NormRows(RowRange rows, const NormOf& norm, kernels::RowFormat format, std::byte* buffer) {
  const int64_t dim = args_.config.model_dim, stride = kernels::RowBytes(format, dim);
  Activations& a = args_.activations;
  cuda::NormRows({.num_rows = rows.size(),
                  .dim = dim,
                  .x = norm.source.data() + rows.begin * dim,
                  .weight = norm.weight.data(),
                  .eps = args_.config.norm_eps,
                  .norm = args_.config.norm,
                  .bias = DataOrNull(norm.bias),
                  .normed = a.normed.data() + rows.begin * dim,
                  .format = format,
                  .prepared = buffer == nullptr ? nullptr : buffer + rows.begin * stride,
                  .prepared_stride_bytes = stride},
                 args_.stream);
}

// y[rows] = w x + bias, where gemm_input holds rows of x, prepared as attention's.
void CudaOperations::ProjectInputs(RowRange rows, const WeightView& w, std::span<const float> bias, std::span<float> y,
                                   int64_t num_cols, int64_t inner_dim) {
  Project(rows, args_.row_formats.attention, args_.activations.gemm_input.data(),
          {.w = w, .bias = bias, .num_cols = num_cols, .inner_dim = inner_dim, .y = y.data() + rows.begin * num_cols});
}

// residual = factor * normed, in models that add what attention and FFNs return to that.
void CudaOperations::KeepNormed(RowRange rows, float factor) {
  if (!args_.config.normed_residual.is_on()) return;
  Activations& a = args_.activations;
  const int64_t begin = rows.begin * args_.config.model_dim, count = rows.size() * args_.config.model_dim;
  cuda::CopyScaled(a.normed.data() + begin, factor, count, a.residual.data() + begin, args_.stream);
}

void CudaOperations::PreAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  const kernels::RowFormat format = args_.row_formats.attention;
  if (config.parallel_experts) {
    const int64_t begin = rows.begin * config.model_dim, count = rows.size() * config.model_dim;
    cuda::CopyScaled(a.residual.data() + begin, 1, count, a.layer_input.data() + begin, args_.stream);
  }
  const NormedResidual& factors = config.normed_residual;
  NormRows(rows, {a.residual, layer.attention_norm, layer.attention_norm_bias}, format, a.gemm_input.data());
  KeepNormed(rows, config.is_recurrent(layer_idx) ? factors.of_recurrent : factors.of_attention);
  if (config.is_recurrent(layer_idx)) return PrepareState(rows, layer_idx);
  if (config.attention_gate) ProjectInputs(rows, layer.gate_proj, {}, a.attention_gate, config.gate_dim());
  if (config.mla.is_on()) return ProjectMla(rows, layer_idx);
  ProjectInputs(rows, layer.q_proj, layer.q_bias, a.q, config.q_dim());
  ProjectInputs(rows, layer.k_proj, layer.k_bias, a.k, config.kv_dim());
  ProjectInputs(rows, layer.v_proj, layer.v_bias, a.v, config.kv_dim());
  const int64_t first_angle = rows.begin * config.num_angles() + config.first_angle_of(layer_idx);
  cuda::FinishQkv({.num_rows = rows.size(),
                   .num_heads = config.num_heads,
                   .num_kv_heads = config.num_kv_heads,
                   .head_dim = config.head_dim,
                   .q = a.q.data() + rows.begin * config.q_dim(),
                   .k = a.k.data() + rows.begin * config.kv_dim(),
                   .v = a.v.data() + rows.begin * config.kv_dim(),
                   .q_norm = DataOrNull(layer.q_norm),
                   .k_norm = DataOrNull(layer.k_norm),
                   .q_norm_dim = std::ssize(layer.q_norm),
                   .k_norm_dim = std::ssize(layer.k_norm),
                   .eps = config.norm_eps,
                   .clip = config.clip_qkv,
                   .rotary_dim = config.rotary_dim_of(layer_idx),
                   .cos = a.cos.data() + first_angle,
                   .sin = a.sin.data() + first_angle,
                   .angles_stride = config.num_angles(),
                   .is_interleaved = config.rope.is_interleaved,
                   .norms_after_rope = config.qk_norm == QkNorm::kPerHeadAfterRope},
                  args_.stream);
}

// Computes q and k of MLA from gemm_input, which holds the normed rows.
void CudaOperations::ProjectMla(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  const Mla& mla = config.mla;
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  const kernels::RowFormat format = args_.row_formats.attention;
  const int64_t q_head_dim = mla.nope_dim + mla.rope_dim, q_dim = config.num_heads * q_head_dim;
  ProjectInputs(rows, layer.k_proj, layer.k_bias, a.k, config.kv_dim());
  if (const int64_t rank = mla.q_lora_rank; rank > 0) {
    ProjectInputs(rows, layer.q_a_proj, layer.q_a_bias, a.q_compressed, rank);
    float* const compressed = a.q_compressed.data() + rows.begin * rank;
    const int64_t stride = kernels::RowBytes(format, rank);
    cuda::NormRows({.num_rows = rows.size(),
                    .dim = rank,
                    .x = compressed,
                    .weight = layer.q_a_norm.data(),
                    .eps = mla.norm_eps,
                    .normed = compressed,
                    .format = format,
                    .prepared = a.gemm_input.data() + rows.begin * stride,
                    .prepared_stride_bytes = stride},
                   args_.stream);
    ProjectInputs(rows, layer.q_proj, {}, a.q_heads, q_dim, rank);
  } else {
    ProjectInputs(rows, layer.q_proj, {}, a.q_heads, q_dim);
  }
  ProjectHeads(rows, {.w = layer.k_up_proj,
                      .num_cols = mla.kv_lora_rank,
                      .inner_dim = mla.nope_dim,
                      .x = a.q_heads.data() + rows.begin * q_dim,
                      .x_head_stride = q_head_dim,
                      .y = a.q.data() + rows.begin * config.q_dim(),
                      .y_head_stride = config.head_dim});
  const int64_t first_angle = rows.begin * config.num_angles() + config.first_angle_of(layer_idx);
  cuda::FinishMla({.num_rows = rows.size(),
                   .num_heads = config.num_heads,
                   .nope_dim = mla.nope_dim,
                   .rope_dim = mla.rope_dim,
                   .kv_lora_rank = mla.kv_lora_rank,
                   .q_heads = a.q_heads.data() + rows.begin * q_dim,
                   .q = a.q.data() + rows.begin * config.q_dim(),
                   .k = a.k.data() + rows.begin * config.kv_dim(),
                   .k_norm = layer.k_norm.data(),
                   .eps = mla.norm_eps,
                   .rotary_dim = config.rotary_dim_of(layer_idx),
                   .cos = a.cos.data() + first_angle,
                   .sin = a.sin.data() + first_angle,
                   .angles_stride = config.num_angles(),
                   .is_interleaved = config.rope.is_interleaved},
                  args_.stream);
}

void CudaOperations::ProjectHeads(RowRange rows, const HeadsProjection& heads) {
  const int64_t num_heads = args_.config.num_heads;
  const kernels::RowFormat format = args_.row_formats.attention;
  const int64_t row_bytes = kernels::RowBytes(format, heads.inner_dim);
  std::byte* const prepared = args_.activations.gemm_input.data() + rows.begin * num_heads * row_bytes;
  cuda::PrepareRows({.num_rows = rows.size() * num_heads,
                     .dim = heads.inner_dim,
                     .x = heads.x,
                     .x_stride = heads.x_head_stride,
                     .format = format,
                     .prepared = prepared,
                     .prepared_stride_bytes = row_bytes},
                    args_.stream);
  const auto matrix_bytes = static_cast<int64_t>(PackedBytes(heads.w.format, heads.num_cols, heads.inner_dim));
  for (int64_t first = 0; first < num_heads; first += cuda::kMaxGroups) {
    const int64_t count = std::min<int64_t>(cuda::kMaxGroups, num_heads - first);
    cuda::GemmLaunch launch{.x_format = format,
                            .w_format = heads.w.format,
                            .num_cols = heads.num_cols,
                            .inner_dim = heads.inner_dim,
                            .x = prepared + first * row_bytes,
                            .x_stride_bytes = num_heads * row_bytes,
                            .y = heads.y + first * heads.y_head_stride,
                            .y_stride = num_heads * heads.y_head_stride,
                            .groups = {.num_groups = static_cast<int32_t>(count),
                                       .max_rows = rows.size(),
                                       .x_step_bytes = row_bytes,
                                       .y_step = heads.y_head_stride},
                            .tuning = args_.tuning};
    for (int64_t i = 0; i < count; ++i) launch.weights.w[i] = heads.w.data + (first + i) * matrix_bytes;
    cuda::Gemm(launch, args_.stream);
  }
}

template <typename Visit>
void CudaOperations::ForEachKvPart(const RowBatch& batch, RowRange rows, const KvView& kv, const Visit& visit) {
  for (int64_t begin = rows.begin; begin < rows.end;) {
    std::vector<std::byte*> pages;
    std::vector<int64_t> first_page;
    std::span<std::byte* const> last;
    int64_t end = begin;
    for (; end < rows.end; ++end) {
      const std::span<std::byte* const> own = kv.pages[end - rows.begin];
      const bool is_new = end == begin || own.data() != last.data();  // rows of one sequence share a list
      const size_t num_pages = pages.size() + (is_new ? own.size() : 0);
      const size_t num_rows = end - begin;
      const size_t bytes = RowTableBytes(static_cast<int64_t>(num_pages)) + 2 * sizeof(int64_t) * num_rows;
      if (end > begin && bytes > args_.tables.max_bytes()) break;
      first_page.push_back(is_new ? std::ssize(pages) : first_page.back());
      if (is_new) pages.insert(pages.end(), own.begin(), own.end());
      last = own;
    }
    const size_t num_rows = end - begin;
    const auto positions = std::span<const int64_t>(batch.kv_positions).subspan(begin, num_rows);
    CudaTable table;
    const size_t pages_at = table.Add(std::span<std::byte* const>(pages));
    const size_t first_page_at = table.Add(std::span<const int64_t>(first_page));
    const size_t positions_at = table.Add(positions);
    const std::byte* const on_device = args_.tables.Upload(table.bytes());
    visit(begin, cuda::KvRows{.format = kv.layer.format,
                              .head_dim = args_.config.head_dim,
                              .values_in_key = args_.config.values_in_key(),
                              .num_kv_heads = kv.layer.num_heads,
                              .first_block_bytes = kv.layer.first_block_bytes,
                              .block_bytes = kv.layer.block_bytes,
                              .num_rows = end - begin,
                              .pages = reinterpret_cast<std::byte* const*>(on_device + pages_at),
                              .first_page = reinterpret_cast<const int64_t*>(on_device + first_page_at),
                              .positions = reinterpret_cast<const int64_t*>(on_device + positions_at)});
    begin = end;
  }
}

void CudaOperations::StoreKv(const RowBatch& batch, RowRange rows, const KvView& kv) {
  const int64_t kv_dim = args_.config.kv_dim();
  const Activations& a = args_.activations;
  const auto exists = [&](int64_t row) { return batch.has_kv[row] != 0 && !kv.is_copy; };
  for (int64_t begin = rows.begin; begin < rows.end;) {
    int64_t end = begin;
    while (end < rows.end && !exists(end)) ++end;
    KvView own = kv;
    own.pages = kv.pages.subspan(begin - rows.begin, end - begin);
    ForEachKvPart(batch, {begin, end}, own, [&](int64_t first_row, const cuda::KvRows& part) {
      const float* const v = a.v.empty() ? nullptr : a.v.data() + first_row * kv_dim;  // MLA has none
      cuda::StoreKv(part, a.k.data() + first_row * kv_dim, v, args_.stream);
    });
    for (begin = end; begin < rows.end && exists(begin);) ++begin;
  }
}

void CudaOperations::Attend(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) {
  if (args_.config.is_recurrent(layer_idx)) return AdvanceState(batch, rows, layer_idx, *kv.states);
  bool share_pages = false;
  for (size_t i = 1; i < kv.pages.size(); ++i) share_pages |= kv.pages[i].data() == kv.pages[i - 1].data();
  ForEachKvPart(batch, rows, kv, [&](int64_t first_row, const cuda::KvRows& part) {
    AttendPart(batch, first_row, layer_idx, part, share_pages);
  });
}

// Attends as many rows at a time as there is room for their scores.
void CudaOperations::AttendPart(const RowBatch& batch, int64_t first_row, int64_t layer_idx, cuda::KvRows part,
                                bool share_pages) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const auto room = static_cast<int64_t>(args_.attention_scores.size());
  for (int64_t num_left = part.num_rows; num_left > 0;) {
    int64_t num_rows = 0, num_positions = 0;
    for (; num_rows < num_left; ++num_rows) {
      const int64_t own = batch.kv_positions[first_row + num_rows] + 1;
      const int64_t max = std::max(num_positions, own);
      if (num_rows > 0 && (num_rows + 1) * CudaScoresFloats(config, max) > room) break;
      num_positions = max;
    }
    const int64_t max_positions = PaddedPositions(num_positions + (config.attention_sinks ? 1 : 0));
    PENSTOCK_CHECK(num_rows * CudaScoresFloats(config, num_positions) <= room);
    part.num_rows = num_rows;
    float* const scores = args_.attention_scores.data();
    cuda::Attention({.rows = part,
                     .num_heads = config.num_heads,
                     .window = config.window_of(layer_idx),
                     .scale = config.attention_scale,
                     .sinks = config.attention_sinks ? args_.weights.layer(layer_idx).sinks.data() : nullptr,
                     .q = a.q.data() + first_row * config.q_dim(),
                     .out = a.attended.data() + first_row * config.attended_dim(),
                     .max_positions = max_positions,
                     .scores = scores,
                     .totals = scores + num_rows * config.num_heads * max_positions,
                     .rows_share_pages = share_pages},
                    args_.stream);
    part.first_page += num_rows;
    part.positions += num_rows;
    first_row += num_rows;
    num_left -= num_rows;
  }
}

void CudaOperations::PostAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  if (config.is_recurrent(layer_idx)) {
    FinishState(rows, layer_idx);
    return AddOutputs(rows, layer, config.recurrent.values_dim());
  }
  int64_t attended_dim = config.attended_dim();
  float* const own = a.attended.data() + rows.begin * attended_dim;
  if (config.attention_gate) {
    cuda::Gate({.count = rows.size() * attended_dim,
                .x = own,
                .gate = a.attention_gate.data() + rows.begin * config.gate_dim(),
                .rule = config.gate_is_softplus ? cuda::GateRule::kSoftplus : cuda::GateRule::kSigmoid,
                .dims_of_gate = attended_dim / config.gate_dim()},
               args_.stream);
  }
  const float* attended = own;
  if (const Mla& mla = config.mla; mla.is_on()) {
    attended_dim = config.num_heads * mla.value_dim;
    float* const values = a.value_heads.data() + rows.begin * attended_dim;
    ProjectHeads(rows, {.w = layer.v_up_proj,
                        .num_cols = mla.value_dim,
                        .inner_dim = mla.kv_lora_rank,
                        .x = own,
                        .x_head_stride = mla.kv_lora_rank,
                        .y = values,
                        .y_head_stride = mla.value_dim});
    attended = values;
  }
  PrepareInputs(rows, attended, attended_dim);
  AddOutputs(rows, layer, attended_dim);
}

// gemm_input[rows] = x, prepared as attention's rows. `x` is of the first of them.
void CudaOperations::PrepareInputs(RowRange rows, const float* x, int64_t dim) {
  const kernels::RowFormat format = args_.row_formats.attention;
  const int64_t stride = kernels::RowBytes(format, dim);
  cuda::PrepareRows({.num_rows = rows.size(),
                     .dim = dim,
                     .x = x,
                     .x_stride = dim,
                     .format = format,
                     .prepared = args_.activations.gemm_input.data() + rows.begin * stride,
                     .prepared_stride_bytes = stride},
                    args_.stream);
}

// Adds the output projection of gemm_input to the residual.
void CudaOperations::AddOutputs(RowRange rows, const LayerWeights& layer, int64_t inner_dim) {
  ProjectInputs(rows, layer.o_proj, layer.o_bias, args_.activations.normed, args_.config.model_dim, inner_dim);
  AddBranch(rows);
}

// residual += residual_scale * normed.
void CudaOperations::AddBranch(RowRange rows) {
  Activations& a = args_.activations;
  const int64_t begin = rows.begin * args_.config.model_dim, count = rows.size() * args_.config.model_dim;
  cuda::Add(a.normed.data() + begin, args_.config.residual_scale, count, a.residual.data() + begin, args_.stream);
}

// y = w normed + bias.
void CudaOperations::GateOf(RowRange rows, const WeightView& w, std::span<const float> bias, int64_t num_cols,
                            float* y) {
  const int64_t dim = args_.config.model_dim;
  cuda::Gemm({.x_format = kernels::RowFormat::kF32,
              .w_format = w.format,
              .num_cols = num_cols,
              .inner_dim = dim,
              .x = reinterpret_cast<const std::byte*>(args_.activations.normed.data() + rows.begin * dim),
              .x_stride_bytes = 4 * dim,
              .weights = {{w.data}},
              .bias = {DataOrNull(bias)},
              .y = y,
              .y_stride = num_cols,
              .groups = {.max_rows = rows.size()},
              .tuning = args_.tuning},
             args_.stream);
}

// Always computes in f32, because a rounded score could choose another expert.
void CudaOperations::ApplyGate(RowRange rows, const LayerWeights& layer, std::span<float> scores,
                               std::span<int32_t> topk_idx, std::span<float> topk_weights) {
  const ModelConfig& config = args_.config;
  const int64_t num_experts = config.num_experts, num_topk = config.num_topk;
  float* const own = scores.data() + rows.begin * num_experts;
  GateOf(rows, layer.router_proj, layer.router_bias, num_experts, own);
  cuda::RouterTopk({.num_rows = rows.size(),
                    .num_experts = num_experts,
                    .num_topk = num_topk,
                    .rule = config.router,
                    .selection_bias = DataOrNull(layer.router_selection_bias),
                    .scores = own,
                    .topk_idx = topk_idx.data() + rows.begin * num_topk,
                    .topk_weights = topk_weights.data() + rows.begin * num_topk},
                   args_.stream);
}

void CudaOperations::Route(RowRange rows, int64_t layer_idx) {
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  NormRows(rows, {args_.config.parallel_experts ? a.layer_input : a.residual, layer.ffn_norm, layer.ffn_norm_bias},
           args_.row_formats.ffn, a.ffn_input.data());
  KeepNormed(rows, args_.config.normed_residual.of_ffn);
  ApplyGate(rows, layer, a.router_logits, a.topk_idx, a.topk_weights);
}

void CudaOperations::RouteAhead(RowRange rows, int64_t target_idx, int64_t ahead) {
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(target_idx);
  NormRows(rows, {a.residual, layer.ffn_norm, layer.ffn_norm_bias}, kernels::RowFormat::kF32, nullptr);
  ApplyGate(rows, layer, a.ahead_scores, a.topk_ahead(ahead), a.ahead_weights);
}

std::span<const int32_t> CudaOperations::Choices(RowRange rows) {
  const int64_t num_topk = args_.config.num_topk;
  choices_.resize(rows.size() * num_topk);
  args_.tables.Download(choices_.data(), args_.activations.topk_idx.data() + rows.begin * num_topk,
                        choices_.size() * sizeof(int32_t));
  return choices_;
}

void CudaOperations::DenseFfn(RowRange rows, int64_t layer_idx) {
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  Activations& a = args_.activations;
  NormRows(rows, {a.residual, layer.ffn_norm, layer.ffn_norm_bias}, args_.row_formats.ffn, a.gemm_input.data());
  RunFfn(rows, layer.dense_ffn, args_.config.dense_ffn_dim);
  AddBranch(rows);
}

void CudaOperations::SharedFfn(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  Activations& a = args_.activations;
  const int64_t dim = config.model_dim;
  const bool has_own_norm = !layer.shared_norm.empty();
  NormRows(rows,
           {a.residual, has_own_norm ? layer.shared_norm : layer.ffn_norm,
            has_own_norm ? std::span<const float>() : layer.ffn_norm_bias},
           args_.row_formats.ffn, a.gemm_input.data());
  if (config.shared_gate) {
    GateOf(rows, layer.shared_gate_proj, {}, 1, a.shared_gate.data() + rows.begin);
  }
  RunFfn(rows, layer.shared_ffn, config.shared_ffn_dim);
  if (!config.shared_gate) return AddBranch(rows);
  cuda::AddGated({.num_rows = rows.size(),
                  .dim = dim,
                  .source = a.normed.data() + rows.begin * dim,
                  .gates = a.shared_gate.data() + rows.begin,
                  .scale = config.residual_scale,
                  .target = a.residual.data() + rows.begin * dim},
                 args_.stream);
}

// normed = ffn(gemm_input).
void CudaOperations::RunFfn(RowRange rows, const FfnWeights& ffn, int64_t ffn_dim) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const kernels::RowFormat format = args_.row_formats.ffn;
  const int64_t dim = config.model_dim, stride = kernels::RowBytes(format, dim);
  const int64_t hidden_stride = kernels::RowBytes(format, ffn_dim);
  cuda::GateUp({.x_format = format,
                .w_format = ffn.gate_proj.format,
                .ffn_dim = ffn_dim,
                .inner_dim = dim,
                .x = a.gemm_input.data() + rows.begin * stride,
                .x_stride_bytes = stride,
                .gate = {{ffn.gate_proj.data}},
                .up = {{ffn.up_proj.data}},
                .rule = config.glu,
                .hidden = a.hidden.data() + rows.begin * hidden_stride,
                .hidden_stride_bytes = hidden_stride,
                .groups = {.max_rows = rows.size()},
                .tuning = args_.tuning},
               args_.stream);
  Project(
      rows, format, a.hidden.data(),
      {.w = ffn.down_proj, .bias = {}, .num_cols = dim, .inner_dim = ffn_dim, .y = a.normed.data() + rows.begin * dim});
}

void CudaOperations::Logits(std::span<const int64_t> rows) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const int64_t dim = config.model_dim, num_rows = std::ssize(rows);
  PENSTOCK_CHECK(num_rows <= a.dims.max_logit_rows && num_rows <= a.dims.max_rows);
  const OuterWeights& outer = args_.weights.outer();
  const kernels::RowFormat format = args_.row_formats.lm_head;
  const int64_t stride = kernels::RowBytes(format, dim);
  for (int64_t begin = 0; begin < num_rows;) {
    // Consecutive rows share a launch.
    int64_t end = begin + 1;
    while (end < num_rows && rows[end] == rows[begin] + end - begin) ++end;
    cuda::NormRows({.num_rows = end - begin,
                    .dim = dim,
                    .x = a.residual.data() + rows[begin] * dim,
                    .weight = outer.final_norm.data(),
                    .eps = config.norm_eps,
                    .norm = config.norm,
                    .bias = DataOrNull(outer.final_norm_bias),
                    .normed = a.normed.data() + begin * dim,
                    .format = format,
                    .prepared = a.gemm_input.data() + begin * stride,
                    .prepared_stride_bytes = stride},
                   args_.stream);
    begin = end;
  }
  Project({0, num_rows}, format, a.gemm_input.data(),
          {.w = outer.lm_head,
           .bias = outer.lm_head_bias,
           .num_cols = config.vocab_size,
           .inner_dim = dim,
           .y = a.logits.data()});
  if (config.logit_scale != 1) {
    cuda::Scale(config.logit_scale, num_rows * config.vocab_size, a.logits.data(), args_.stream);
  }
}

}  // namespace penstock
