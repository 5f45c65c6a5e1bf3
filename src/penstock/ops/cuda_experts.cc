// The operations of experts on a CUDA device.
#include <algorithm>

#include "penstock/kernels/kernels.h"
#include "penstock/ops/cuda_operations.h"

namespace penstock {

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
               .input_bytes = kernels::RowBytes(args_.row_formats.ffn, args_.config.model_dim)},
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
  const int64_t hidden_stride = kernels::RowBytes(format, config.expert_dim);
  ForEachLaunch(experts, &FfnWeights::gate_proj, [&](WeightFormat w_format, std::span<const ExpertToRun* const> own) {
    cuda::GateUpLaunch launch{.x_format = format,
                              .w_format = w_format,
                              .ffn_dim = config.expert_dim,
                              .inner_dim = config.model_dim,
                              .x = a.expert_input.data(),
                              .x_stride_bytes = kernels::RowBytes(format, config.model_dim),
                              .gate_bias = {bias.gate_proj, true},
                              .up_bias = {bias.up_proj, true},
                              .rule = config.glu,
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
                            .num_cols = config.model_dim,
                            .inner_dim = config.expert_dim,
                            .x = a.hidden.data(),
                            .x_stride_bytes = hidden_stride,
                            .bias = {bias.down_proj, true},
                            .y = a.expert_output.data(),
                            .y_stride = config.model_dim,
                            .groups = GroupsOf(own),
                            .tuning = args_.tuning};
    for (size_t i = 0; i < own.size(); ++i) launch.weights.w[i] = own[i]->weights.down_proj.data;
    cuda::Gemm(launch, args_.stream);
  });
}

std::vector<int64_t> CudaOperations::ClearExpert(int64_t expert_idx) {
  Activations& a = args_.activations;
  const int64_t dim = args_.config.model_dim;
  IndexRange places;
  args_.tables.Download(&places, a.group_offsets.data() + expert_idx, sizeof(places));
  std::vector<int64_t> rows(places.size());
  args_.tables.Download(rows.data(), a.assigned_row.data() + places.begin, rows.size() * sizeof(int64_t));
  cuda::Clear(a.expert_output.data() + places.begin * dim, places.size() * dim, args_.stream);
  return rows;
}

void CudaOperations::Combine(RowRange rows, int64_t) {
  Activations& a = args_.activations;
  const int64_t dim = args_.config.model_dim, num_topk = args_.config.num_topk;
  cuda::Combine({.num_rows = rows.size(),
                 .dim = dim,
                 .num_topk = num_topk,
                 .residual = a.residual.data() + rows.begin * dim,
                 .residual_stride = dim,
                 .z = a.expert_output.data(),
                 .z_stride = dim,
                 .assignments = a.assignments.data() + rows.begin * num_topk,
                 .weights = a.topk_weights.data() + rows.begin * num_topk,
                 .y = a.residual.data() + rows.begin * dim,
                 .y_stride = dim,
                 .scale = args_.config.residual_scale},
                args_.stream);
}

}  // namespace penstock
