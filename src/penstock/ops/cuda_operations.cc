#include "penstock/ops/cuda_operations.h"

#include "penstock/base/check.h"
#include "penstock/kernels/kernels.h"

namespace penstock {

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
              .y = projection.y.data() + rows.begin * projection.y_stride(),
              .y_stride = projection.y_stride(),
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
                  .weight = DataOrNull(norm.weight),
                  .eps = args_.config.norm_eps,
                  .norm = args_.config.norm,
                  .bias = DataOrNull(norm.bias),
                  .normed = a.normed.data() + rows.begin * dim,
                  .format = format,
                  .prepared = buffer == nullptr ? nullptr : buffer + rows.begin * stride,
                  .prepared_stride_bytes = stride},
                 args_.stream);
}

// gemm_input holds x, prepared as attention's rows.
void CudaOperations::ProjectInputs(RowRange rows, const Projection& projection) {
  Project(rows, args_.row_formats.attention, args_.activations.gemm_input.data(), projection);
}

void CudaOperations::PrepareRows(RowRange rows, kernels::RowFormat format, const float* x, int64_t dim, int64_t stride,
                                 std::span<std::byte> target) {
  const int64_t row_bytes = kernels::RowBytes(format, dim);
  cuda::PrepareRows({.num_rows = rows.size(),
                     .dim = dim,
                     .x = x,
                     .x_stride = stride,
                     .format = format,
                     .prepared = target.data() + rows.begin * row_bytes,
                     .prepared_stride_bytes = row_bytes},
                    args_.stream);
}

// out[rows] = norm(x[rows]). Leaves them as they are without weights.
void CudaOperations::NormOutputs(RowRange rows, std::span<const float> weight, std::span<const float> x,
                                 std::span<float> out) {
  const int64_t dim = args_.config.model_dim;
  if (weight.empty() && x.data() == out.data()) return;
  cuda::NormRows({.num_rows = rows.size(),
                  .dim = dim,
                  .x = x.data() + rows.begin * dim,
                  .weight = DataOrNull(weight),
                  .eps = args_.config.norm_eps,
                  .normed = out.data() + rows.begin * dim},
                 args_.stream);
}

// residual = factor * normed, in models that add what attention and FFNs return to that.
void CudaOperations::KeepNormed(RowRange rows, float factor) {
  if (!args_.config.normed_residual.is_on()) return;
  Activations& a = args_.activations;
  const int64_t begin = rows.begin * args_.config.model_dim, count = rows.size() * args_.config.model_dim;
  cuda::CopyScaled(a.normed.data() + begin, factor, count, a.residual.data() + begin, args_.stream);
}

// residual += residual_scale * normed.
void CudaOperations::AddBranch(RowRange rows) {
  Activations& a = args_.activations;
  const int64_t begin = rows.begin * args_.config.model_dim, count = rows.size() * args_.config.model_dim;
  cuda::Add(a.normed.data() + begin, args_.config.residual_scale, count, a.residual.data() + begin, args_.stream);
}

// Returns the norm before a layer's FFNs.
CudaOperations::NormOf CudaOperations::FfnNorm(const LayerWeights& layer) const {
  const Activations& a = args_.activations;
  if (args_.config.parallel_ffn) return {a.layer_input, layer.attention_norm, layer.attention_norm_bias};
  return {a.residual, layer.ffn_norm, layer.ffn_norm_bias};
}

// gemm_input[rows] = what dense and shared FFNs read.
void CudaOperations::NormForFfn(RowRange rows, const LayerWeights& layer) {
  const NormOf norm =
      layer.shared_norm.empty() ? FfnNorm(layer) : NormOf{args_.activations.residual, layer.shared_norm, {}};
  NormRows(rows, norm, args_.row_formats.ffn, args_.activations.gemm_input.data());
}

void CudaOperations::DenseFfn(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  Activations& a = args_.activations;
  NormForFfn(rows, layer);
  RunFfn(rows, layer.dense_ffn, {config.dense_ffn_dim, config.ffn_glu(layer_idx)});
  NormOutputs(rows, layer.ffn_output_norm, a.normed, a.normed);
  AddBranch(rows);
  if (!config.takes_deferred(layer_idx)) return;
  const int64_t begin = rows.begin * config.model_dim, count = rows.size() * config.model_dim;
  cuda::Add(a.deferred.data() + begin, 1, count, a.residual.data() + begin, args_.stream);
}

void CudaOperations::SharedFfn(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  Activations& a = args_.activations;
  const int64_t begin = rows.begin * config.model_dim, count = rows.size() * config.model_dim;
  NormForFfn(rows, layer);
  if (config.shared_gate) {
    GateOf(rows, layer.shared_gate_proj, {}, 1, a.shared_gate.data() + rows.begin);
  }
  RunFfn(rows, layer.shared_ffn, {config.shared_ffn_dim, config.ffn_glu(layer_idx)});
  if (!layer.ffn_output_norm.empty()) return NormOutputs(rows, layer.shared_output_norm, a.normed, a.shared_output);
  const float scale = config.residual_scale * config.shared_scale;
  if (!config.shared_gate) {
    return cuda::Add(a.normed.data() + begin, scale, count, a.residual.data() + begin, args_.stream);
  }
  cuda::AddGated({.num_rows = rows.size(),
                  .dim = config.model_dim,
                  .source = a.normed.data() + begin,
                  .gates = a.shared_gate.data() + rows.begin,
                  .scale = scale,
                  .target = a.residual.data() + begin},
                 args_.stream);
}

// normed = ffn(gemm_input).
void CudaOperations::RunFfn(RowRange rows, const FfnWeights& ffn, const FfnRule& rule) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const kernels::RowFormat format = args_.row_formats.ffn;
  const int64_t dim = config.model_dim, stride = kernels::RowBytes(format, dim);
  const int64_t hidden_stride = kernels::RowBytes(format, rule.ffn_dim);
  cuda::GateUp({.x_format = format,
                .w_format = ffn.up_proj.format,
                .ffn_dim = rule.ffn_dim,
                .inner_dim = dim,
                .x = a.gemm_input.data() + rows.begin * stride,
                .x_stride_bytes = stride,
                .gate = {{ffn.gate_proj.data}},
                .up = {{ffn.up_proj.data}},
                .rule = rule.glu,
                .is_gated = config.is_gated,
                .squares_relu = config.squares_relu,
                .hidden = a.hidden.data() + rows.begin * hidden_stride,
                .hidden_stride_bytes = hidden_stride,
                .groups = {.max_rows = rows.size()},
                .tuning = args_.tuning},
               args_.stream);
  Project(rows, format, a.hidden.data(),
          {.w = ffn.down_proj, .y = a.normed, .num_cols = dim, .inner_dim = rule.ffn_dim});
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
  Project(
      {0, num_rows}, format, a.gemm_input.data(),
      {.w = outer.lm_head, .bias = outer.lm_head_bias, .y = a.logits, .num_cols = config.vocab_size, .inner_dim = dim});
  if (config.logit_scale != 1) {
    cuda::Scale(config.logit_scale, num_rows * config.vocab_size, a.logits.data(), args_.stream);
  }
  if (config.logit_cap != 0) {
    cuda::SoftCap(config.logit_cap, num_rows * config.vocab_size, a.logits.data(), args_.stream);
  }
}

}  // namespace penstock
