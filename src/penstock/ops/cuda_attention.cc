// CudaOperations: projections before and after attention, from the norm to the residual.
#include <algorithm>

#include "penstock/kernels/kernels.h"
#include "penstock/ops/cuda_operations.h"

namespace penstock {

void CudaOperations::PreAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  if (config.parallel_experts || config.parallel_ffn) {
    const int64_t begin = rows.begin * config.model_dim, count = rows.size() * config.model_dim;
    cuda::CopyScaled(a.residual.data() + begin, 1, count, a.layer_input.data() + begin, args_.stream);
  }
  const NormedResidual& factors = config.normed_residual;
  NormRows(rows, {a.residual, layer.attention_norm, layer.attention_norm_bias}, args_.row_formats.attention,
           a.gemm_input.data());
  KeepNormed(rows, config.is_recurrent(layer_idx) ? factors.of_recurrent : factors.of_attention);
  if (config.is_recurrent(layer_idx)) return PrepareState(rows, layer_idx);
  if (config.attention_gate) {
    ProjectInputs(rows, {.w = layer.gate_proj,
                         .y = a.attention_gate,
                         .num_cols = config.gate_dim(layer_idx),
                         .inner_dim = config.model_dim,
                         .stride = config.gate_dim()});
  }
  config.mla.is_on() ? ProjectMla(rows, layer_idx) : ProjectQkv(rows, layer_idx);
}

void CudaOperations::ProjectQkv(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  const LayerHeads heads = config.heads_of(layer_idx);
  ProjectInputs(rows, {.w = layer.q_proj,
                       .bias = layer.q_bias,
                       .y = a.q,
                       .num_cols = config.q_dim(layer_idx),
                       .inner_dim = config.model_dim,
                       .stride = config.q_dim()});
  ProjectInputs(rows, {.w = layer.k_proj,
                       .bias = layer.k_bias,
                       .y = a.k,
                       .num_cols = config.kv_dim(layer_idx),
                       .inner_dim = config.model_dim,
                       .stride = config.kv_dim()});
  if (!heads.keys_are_values) {
    ProjectInputs(rows, {.w = layer.v_proj,
                         .bias = layer.v_bias,
                         .y = a.v,
                         .num_cols = config.v_dim(layer_idx),
                         .inner_dim = config.model_dim,
                         .stride = config.v_dim()});
  }
  const int64_t rotary_dim = config.rotary_dim_of(layer_idx);
  const int64_t first_angle = rows.begin * config.num_angles() + config.first_angle_of(layer_idx);
  const bool is_unit = config.qk_norm == QkNorm::kUnitAfterRope;
  const int64_t unit_dim = is_unit && rotary_dim > 0 ? heads.head_dim : 0;
  cuda::FinishQkv({.num_rows = rows.size(),
                   .num_heads = config.num_heads_of(layer_idx),
                   .num_kv_heads = heads.num_kv_heads,
                   .head_dim = heads.head_dim,
                   .value_dim = config.value_dim(layer_idx),
                   .q = a.q.data() + rows.begin * config.q_dim(),
                   .k = a.k.data() + rows.begin * config.kv_dim(),
                   .v = a.v.data() + rows.begin * config.v_dim(),
                   .q_stride = config.q_dim(),
                   .k_stride = config.kv_dim(),
                   .v_stride = config.v_dim(),
                   .keys_are_values = heads.keys_are_values,
                   .norms_v = config.v_norm,
                   .value_scale = config.value_scale,
                   .q_norm = DataOrNull(layer.q_norm),
                   .k_norm = DataOrNull(layer.k_norm),
                   .q_norm_dim = is_unit ? unit_dim : std::ssize(layer.q_norm),
                   .k_norm_dim = is_unit ? unit_dim : std::ssize(layer.k_norm),
                   .eps = config.norm_eps,
                   .clip = config.clip_qkv,
                   .rotary_dim = rotary_dim,
                   .cos = a.cos.data() + first_angle,
                   .sin = a.sin.data() + first_angle,
                   .angles_stride = config.num_angles(),
                   .is_interleaved = config.rope.is_interleaved,
                   .norms_after_rope = is_unit || config.qk_norm == QkNorm::kPerHeadAfterRope,
                   .query_scales = config.has_query_scale(layer_idx) ? a.query_scales.data() + rows.begin : nullptr},
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
  ProjectInputs(
      rows,
      {.w = layer.k_proj, .bias = layer.k_bias, .y = a.k, .num_cols = config.kv_dim(), .inner_dim = config.model_dim});
  if (const int64_t rank = mla.q_lora_rank; rank > 0) {
    ProjectInputs(rows, {.w = layer.q_a_proj,
                         .bias = layer.q_a_bias,
                         .y = a.q_compressed,
                         .num_cols = rank,
                         .inner_dim = config.model_dim});
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
    ProjectInputs(rows, {.w = layer.q_proj, .y = a.q_heads, .num_cols = q_dim, .inner_dim = rank});
  } else {
    ProjectInputs(rows, {.w = layer.q_proj, .y = a.q_heads, .num_cols = q_dim, .inner_dim = config.model_dim});
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
                   .k_scale = mla.kv_scale,
                   .rotary_dim = config.rotary_dim_of(layer_idx),
                   .cos = a.cos.data() + first_angle,
                   .sin = a.sin.data() + first_angle,
                   .angles_stride = config.num_angles(),
                   .is_interleaved = config.rope.is_interleaved,
                   .query_scales = config.has_query_scale(layer_idx) ? a.query_scales.data() + rows.begin : nullptr},
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

void CudaOperations::PostAttention(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  if (config.is_recurrent(layer_idx)) {
    FinishState(rows, layer_idx);
    return AddOutputs(rows, layer, config.recurrent.values_dim());
  }
  const int64_t dim = config.attended_dim(layer_idx), stride = config.attended_dim();
  float* const attended = a.attended.data() + rows.begin * stride;
  if (config.attention_gate) {
    cuda::Gate({.num_rows = rows.size(),
                .dim = dim,
                .x = attended,
                .gate = a.attention_gate.data() + rows.begin * config.gate_dim(),
                .x_stride = stride,
                .gate_stride = config.gate_dim(),
                .rule = config.gate_is_softplus ? cuda::GateRule::kSoftplus : cuda::GateRule::kSigmoid,
                .dims_of_gate = dim / config.gate_dim(layer_idx)},
               args_.stream);
  }
  const Mla& mla = config.mla;
  if (!mla.is_on()) {
    PrepareInputs(rows, attended, dim, stride);
    return AddOutputs(rows, layer, dim);
  }
  const int64_t values_dim = config.num_heads * mla.value_dim;
  float* const values = a.value_heads.data() + rows.begin * values_dim;
  ProjectHeads(rows, {.w = layer.v_up_proj,
                      .num_cols = mla.value_dim,
                      .inner_dim = mla.kv_lora_rank,
                      .x = attended,
                      .x_head_stride = mla.kv_lora_rank,
                      .y = values,
                      .y_head_stride = mla.value_dim});
  PrepareInputs(rows, values, values_dim, values_dim);
  AddOutputs(rows, layer, values_dim);
}

// Adds the output projection of gemm_input, or its norm, to the residual.
void CudaOperations::AddOutputs(RowRange rows, const LayerWeights& layer, int64_t inner_dim) {
  std::span<float> normed = args_.activations.normed;
  ProjectInputs(rows, {.w = layer.o_proj,
                       .bias = layer.o_bias,
                       .y = normed,
                       .num_cols = args_.config.model_dim,
                       .inner_dim = inner_dim});
  NormOutputs(rows, layer.attention_output_norm, normed, normed);
  AddBranch(rows);
}

}  // namespace penstock
