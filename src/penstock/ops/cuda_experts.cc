// CudaOperations: experts, from the router to the residual.
#include <algorithm>

#include "penstock/kernels/kernels.h"
#include "penstock/ops/cuda_operations.h"

namespace penstock {

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
                    .logit_scale = config.router_logit_scale,
                    .selection_bias = DataOrNull(layer.router_selection_bias),
                    .expert_scales = DataOrNull(layer.expert_scales),
                    .scores = own,
                    .topk_idx = topk_idx.data() + rows.begin * num_topk,
                    .topk_weights = topk_weights.data() + rows.begin * num_topk},
                   args_.stream);
}

// ffn_input[rows] = what experts read, and normed[rows] = what a router without its own norm reads.
void CudaOperations::NormForExperts(RowRange rows, const LayerWeights& layer) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  NormOf norm = FfnNorm(layer);
  if (config.parallel_experts) norm.source = a.layer_input;
  const bool is_latent = config.latent_dim > 0;
  const kernels::RowFormat format = args_.row_formats.ffn;
  NormRows(rows, norm, format, is_latent ? a.gemm_input.data() : a.ffn_input.data());
  KeepNormed(rows, config.normed_residual.of_ffn);
  if (config.num_identity_experts > 0) {
    const int64_t begin = rows.begin * config.model_dim, count = rows.size() * config.model_dim;
    cuda::CopyScaled(a.normed.data() + begin, 1, count, a.deferred.data() + begin, args_.stream);
  }
  if (!is_latent) return;
  Project(rows, format, a.gemm_input.data(),
          {.w = layer.latent_in_proj, .y = a.latent, .num_cols = config.latent_dim, .inner_dim = config.model_dim});
  PrepareRows(rows, format, a.latent.data() + rows.begin * config.latent_dim, config.latent_dim, config.latent_dim,
              a.ffn_input);
}

void CudaOperations::Route(RowRange rows, int64_t layer_idx) {
  Activations& a = args_.activations;
  const ModelConfig& config = args_.config;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  NormForExperts(rows, layer);
  if (config.router_norm) NormRows(rows, {a.residual, layer.router_norm, {}}, kernels::RowFormat::kF32, nullptr);
  ApplyGate(rows, layer, a.router_logits, a.topk_idx, a.topk_weights);
  if (!config.router_scales_input) return;
  cuda::MoveWeights(rows.size(), config.model_dim, a.normed.data() + rows.begin * config.model_dim,
                    a.topk_weights.data() + rows.begin, args_.stream);
  PrepareRows(rows, args_.row_formats.ffn, a.normed.data() + rows.begin * config.model_dim, config.model_dim,
              config.model_dim, a.ffn_input);
}

void CudaOperations::RouteAhead(RowRange rows, int64_t target_idx, int64_t ahead) {
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(target_idx);
  NormOf norm = FfnNorm(layer);
  norm.source = a.residual;
  if (args_.config.router_norm) norm = {a.residual, layer.router_norm, {}};
  NormRows(rows, norm, kernels::RowFormat::kF32, nullptr);
  ApplyGate(rows, layer, a.ahead_scores, a.topk_ahead(ahead), a.ahead_weights);
}

std::span<const int32_t> CudaOperations::Choices(RowRange rows) {
  const int64_t num_topk = args_.config.num_topk;
  choices_.resize(rows.size() * num_topk);
  args_.tables.Download(choices_.data(), args_.activations.topk_idx.data() + rows.begin * num_topk,
                        choices_.size() * sizeof(int32_t));
  return choices_;
}

void CudaOperations::Group(RowRange rows) {
  Activations& a = args_.activations;
  const int64_t num_topk = args_.config.num_topk;
  grouped_ = rows;
  cuda::Group({.begin = rows.begin * num_topk,
               .end = rows.end * num_topk,
               .num_experts = args_.config.num_experts,
               .num_topk = num_topk,
               .topk_idx = a.topk_idx.data(),
               .offsets = a.group_offsets.data(),
               .assignments = a.assignments.data(),
               .assigned_row = a.assigned_row.data(),
               .input = a.ffn_input.data(),
               .gathered = a.expert_input.data(),
               .input_bytes = kernels::RowBytes(args_.row_formats.ffn, args_.config.expert_row_dim())},
              args_.stream);
  if (args_.config.num_identity_experts == 0) return;
  cuda::ReturnInputs({.begin = rows.begin * num_topk,
                      .end = rows.end * num_topk,
                      .first_expert = args_.config.num_stored_experts(),
                      .offsets = a.group_offsets.data(),
                      .assigned_row = a.assigned_row.data(),
                      .input = a.deferred.data(),
                      .output = a.expert_output.data(),
                      .dim = args_.config.model_dim},
                     args_.stream);
}

// Calls launch(format, experts) for the experts whose matrix has a format, as many as a launch takes.
template <typename Launch>
void CudaOperations::ForEachLaunch(std::span<const ExpertToRun> experts, WeightView FfnWeights::*matrix,
                                   const Launch& launch) {
  for (const WeightFormatTraits& format : kWeightFormats) {
    std::vector<const ExpertToRun*> own;
    for (const ExpertToRun& expert : experts) {
      if ((expert.weights.*matrix).format == format.value) own.push_back(&expert);
    }
    for (size_t begin = 0; begin < own.size(); begin += cuda::kMaxGroups) {
      launch(format.value, std::span(own).subspan(begin, std::min<size_t>(cuda::kMaxGroups, own.size() - begin)));
    }
  }
}

// A row chooses an expert at most once, so no group has more than grouped_.size() rows. Most have half as many again as
// the mean, at most.
cuda::RowGroups CudaOperations::GroupsOf(std::span<const ExpertToRun* const> experts) const {
  const ModelConfig& config = args_.config;
  cuda::RowGroups groups{.num_groups = static_cast<int32_t>(experts.size()),
                         .offsets = args_.activations.group_offsets.data(),
                         .max_rows = grouped_.size(),
                         .typical_rows = 1 + grouped_.size() * config.num_topk * 3 / (2 * config.num_experts)};
  for (size_t i = 0; i < experts.size(); ++i) groups.expert_idx[i] = static_cast<int32_t>(experts[i]->expert_idx);
  return groups;
}

void CudaOperations::Experts(int64_t layer_idx, std::span<const ExpertToRun> experts) {
  const ModelConfig& config = args_.config;
  FfnParts<const float*> bias;
  if (config.expert_bias) {
    const LayerWeights& layer = args_.weights.layer(layer_idx);
    bias = {layer.expert_gate_bias.data(), layer.expert_up_bias.data(), layer.expert_down_bias.data()};
  }
  Activations& a = args_.activations;
  const kernels::RowFormat format = args_.row_formats.ffn;
  const int64_t hidden_stride = kernels::RowBytes(format, config.expert_dim), row_dim = config.expert_row_dim();
  ForEachLaunch(experts, &FfnWeights::up_proj, [&](WeightFormat w_format, std::span<const ExpertToRun* const> own) {
    cuda::GateUpLaunch launch{.x_format = format,
                              .w_format = w_format,
                              .ffn_dim = config.expert_dim,
                              .inner_dim = row_dim,
                              .x = a.expert_input.data(),
                              .x_stride_bytes = kernels::RowBytes(format, row_dim),
                              .gate_bias = {bias.gate_proj, true},
                              .up_bias = {bias.up_proj, true},
                              .rule = config.expert_glu(layer_idx),
                              .is_gated = config.is_gated,
                              .squares_relu = config.squares_relu,
                              .hidden = a.hidden.data(),
                              .hidden_stride_bytes = hidden_stride,
                              .groups = GroupsOf(own),
                              .tuning = args_.tuning};
    for (size_t i = 0; i < own.size(); ++i) {
      launch.gate.w[i] = own[i]->weights.gate_proj.data;
      launch.up.w[i] = own[i]->weights.up_proj.data;
    }
    cuda::GateUp(launch, args_.stream);
  });
  ForEachLaunch(experts, &FfnWeights::down_proj, [&](WeightFormat w_format, std::span<const ExpertToRun* const> own) {
    cuda::GemmLaunch launch{.x_format = format,
                            .w_format = w_format,
                            .num_cols = row_dim,
                            .inner_dim = config.expert_dim,
                            .x = a.hidden.data(),
                            .x_stride_bytes = hidden_stride,
                            .bias = {bias.down_proj, true},
                            .y = a.expert_output.data(),
                            .y_stride = row_dim,
                            .groups = GroupsOf(own),
                            .tuning = args_.tuning};
    for (size_t i = 0; i < own.size(); ++i) launch.weights.w[i] = own[i]->weights.down_proj.data;
    cuda::Gemm(launch, args_.stream);
  });
}

std::vector<int64_t> CudaOperations::ClearExpert(int64_t expert_idx) {
  Activations& a = args_.activations;
  const int64_t dim = args_.config.expert_row_dim();
  IndexRange places;
  args_.tables.Download(&places, a.group_offsets.data() + expert_idx, sizeof(places));
  std::vector<int64_t> rows(places.size());
  args_.tables.Download(rows.data(), a.assigned_row.data() + places.begin, rows.size() * sizeof(int64_t));
  cuda::Clear(a.expert_output.data() + places.begin * dim, places.size() * dim, args_.stream);
  return rows;
}

void CudaOperations::Combine(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  const int64_t dim = config.expert_row_dim(), num_topk = config.num_topk, begin = rows.begin * dim;
  const bool is_latent = config.latent_dim > 0, is_normed = !layer.ffn_output_norm.empty();
  const std::span<float> sums = a.ExpertSums(config, is_normed);
  const bool is_apart = sums.data() != a.residual.data();
  if (is_apart) cuda::Clear(sums.data() + begin, rows.size() * dim, args_.stream);
  cuda::Combine({.num_rows = rows.size(),
                 .dim = dim,
                 .num_topk = num_topk,
                 .residual = sums.data() + begin,
                 .residual_stride = dim,
                 .z = a.expert_output.data(),
                 .z_stride = dim,
                 .assignments = a.assignments.data() + rows.begin * num_topk,
                 .weights = a.topk_weights.data() + rows.begin * num_topk,
                 .y = sums.data() + begin,
                 .y_stride = dim,
                 .scale = is_apart ? 1 : config.residual_scale},
                args_.stream);
  if (is_latent) {
    PrepareRows(rows, args_.row_formats.ffn, a.latent.data() + begin, dim, dim, a.gemm_input);
    Project(rows, args_.row_formats.ffn, a.gemm_input.data(),
            {.w = layer.latent_out_proj, .y = a.normed, .num_cols = config.model_dim, .inner_dim = dim});
  }
  AddSummed(rows, layer);
}

// Adds the sums of experts' outputs in `normed` to the residual, where they are not there yet.
void CudaOperations::AddSummed(RowRange rows, const LayerWeights& layer) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const int64_t begin = rows.begin * config.model_dim, count = rows.size() * config.model_dim;
  const bool is_normed = !layer.ffn_output_norm.empty();
  if (is_normed) {
    NormOutputs(rows, layer.expert_output_norm, a.normed, a.normed);
    if (config.shared_ffn_dim > 0) {
      cuda::Add(a.shared_output.data() + begin, config.shared_scale, count, a.normed.data() + begin, args_.stream);
    }
    NormOutputs(rows, layer.ffn_output_norm, a.normed, a.normed);
  }
  if (is_normed || config.latent_dim > 0) AddBranch(rows);
  if (config.layer_scales) {
    cuda::ScaleBy(layer.layer_scale.data(), count, a.residual.data() + begin, args_.stream);
  }
}

}  // namespace penstock
