// HostOperations: the FFNs of a layer, dense, shared and of experts.
#include <algorithm>
#include <cstring>

#include "penstock/base/checked.h"
#include "penstock/kernels/kernels.h"
#include "penstock/ops/host_operations.h"
#include "penstock/ops/host_rows.h"

namespace penstock {

using namespace host;  // NOLINT: the helpers of these operations

namespace {

// One FFN over a run of rows of the FFN buffers: an expert with its group, or another FFN with all rows.
struct FfnGroup {
  const FfnWeights* weights;
  RowRange rows;
  GluRule glu;
  FfnParts<const float*> bias = {};  // null: no bias
  int64_t expert_idx = 0;
};

struct FfnDims {
  int64_t row_dim;  // of what FFNs read and return
  int64_t ffn_dim;
};

// Computes max(0, x) or its square in place; NaN stays NaN.
void Relu(int64_t num_rows, int64_t dim, float* x, int64_t stride, bool squares) {
  for (int64_t row = 0; row < num_rows; ++row) {
    float* values = x + row * stride;
    for (int64_t i = 0; i < dim; ++i) values[i] = values[i] < 0 ? 0 : values[i];
    for (int64_t i = 0; squares && i < dim; ++i) values[i] *= values[i];
  }
}

// hidden[rows, cols] = glu(gate(x), up(x)) of the group's rows, or relu(up(x)) without gates. gate and up never leave
// the worker's scratch memory.
void GateUpColumns(const OpContext& context, const FfnGroup& group, const RowsView& x, IndexRange cols,
                   const FfnDims& dims, const RowsView& hidden, int worker_idx) {
  Activations& a = context.activations;
  const int64_t num_rows = group.rows.size();
  const int64_t scratch_floats = FfnScratchFloats(a.dims.max_expert_rows());
  float* scratch = a.ffn_scratch.data() + worker_idx * scratch_floats;
  const int64_t cols_at_once =
      (scratch_floats / (2 * num_rows) - kFfnScratchPadding) / kFfnScratchCols * kFfnScratchCols;
  for (int64_t begin = cols.begin; begin < cols.end; begin += cols_at_once) {
    const IndexRange part = {begin, std::min(begin + cols_at_once, cols.end)};
    const int64_t stride = part.size() + kFfnScratchPadding;
    const GemmCall up = {.num_rows = num_rows,
                         .inner_dim = dims.row_dim,
                         .x = x.From(group.rows.begin),
                         .w = group.weights->up_proj,
                         .bias = group.bias.up_proj,
                         .y = scratch,
                         .y_stride = stride};
    GemmColumns(context, up, part);
    if (context.config.is_gated) {
      GemmCall gate = up;
      gate.w = group.weights->gate_proj;
      gate.bias = group.bias.gate_proj;
      gate.y += num_rows * stride;
      GemmColumns(context, gate, part);
      context.kernels.swiglu({.num_rows = num_rows,
                              .dim = part.size(),
                              .gate = gate.y,
                              .gate_stride = stride,
                              .up = up.y,
                              .up_stride = stride,
                              .out = up.y,
                              .out_stride = stride,
                              .rule = group.glu});
    } else {
      Relu(num_rows, part.size(), up.y, stride, context.config.squares_relu);
    }
    context.kernels.prepare_rows({.num_rows = num_rows,
                                  .dim = dims.ffn_dim,
                                  .first = part.begin,
                                  .count = part.size(),
                                  .source = up.y,
                                  .source_stride = stride,
                                  .format = hidden.format,
                                  .target = a.hidden.data() + group.rows.begin * hidden.stride_bytes,
                                  .target_stride_bytes = hidden.stride_bytes});
  }
}

// output[rows] = down(glu(gate(x), up(x))) for every group, in two parallel regions.
void RunFfns(const OpContext& context, std::span<const FfnGroup> groups, const FfnDims& dims, const RowsView& x,
             std::span<float> output) {
  Activations& a = context.activations;
  const auto [row_dim, ffn_dim] = dims;
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
    GateUpColumns(context, group, x, cols, dims, hidden, worker_idx);
  });
  run(row_dim, [&](const FfnGroup& group, IndexRange cols, int) {
    GemmColumns(context,
                {.num_rows = group.rows.size(),
                 .inner_dim = dims.ffn_dim,
                 .x = hidden.From(group.rows.begin),
                 .w = group.weights->down_proj,
                 .bias = group.bias.down_proj,
                 .y = output.data() + group.rows.begin * dims.row_dim + cols.begin,
                 .y_stride = dims.row_dim},
                cols);
  });
}

// Shows the inputs of an FFN's matrices to the observer, if there is one. `weights` are of the group's rows.
void ObserveFfn(const OpContext& context, const FfnGroup& group, InputPlace place, InputSite hidden_site,
                const FfnDims& dims, const RowsView& x, std::span<const float> weights = {}) {
  if (context.observer == nullptr) return;
  place.expert_idx = group.expert_idx;
  Observe(context, place, x.From(group.rows.begin), group.rows.size(), dims.row_dim, weights);
  place.site = hidden_site;
  const RowsView hidden = ViewOf(context.activations.hidden, context.row_formats.ffn, dims.ffn_dim);
  Observe(context, place, hidden.From(group.rows.begin), group.rows.size(), dims.ffn_dim, weights);
}

// Returns the router's weights for an expert, of the rows at its places.
std::vector<float> WeightsOf(const OpContext& context, const FfnGroup& group) {
  const Activations& a = context.activations;
  const int64_t num_topk = context.config.num_topk;
  std::vector<float> weights;
  for (int64_t place = group.rows.begin; place < group.rows.end; ++place) {
    const int64_t first = a.assigned_row[place] * num_topk;
    const auto chosen = std::find(a.topk_idx.begin() + first, a.topk_idx.begin() + first + num_topk, group.expert_idx);
    weights.push_back(a.topk_weights[chosen - a.topk_idx.begin()]);
  }
  return weights;
}

RowsView ExpertInput(const OpContext& context) {
  return ViewOf(context.activations.expert_input, context.row_formats.ffn, context.config.expert_row_dim());
}

}  // namespace

void HostOperations::GatherPlaces(IndexRange places) {
  Activations& a = context_.activations;
  const RowsView input = ExpertInput(context_);
  ForRowRanges(context_, places, [&](IndexRange part) {
    for (int64_t place = part.begin; place < part.end; ++place) {
      std::memcpy(a.expert_input.data() + place * input.stride_bytes,
                  a.ffn_input.data() + a.assigned_row[place] * input.stride_bytes,
                  static_cast<size_t>(input.stride_bytes));
    }
  });
}

void HostOperations::SharedFfn(RowRange rows, int64_t layer_idx) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const int64_t dim = config.model_dim;
  NormForFfn(rows, layer_idx);
  if (config.shared_gate) {
    ForRowRanges(context_, rows, [&](RowRange part) {
      GemmColumns(context_,
                  {.num_rows = part.size(),
                   .inner_dim = dim,
                   .x = {reinterpret_cast<const std::byte*>(a.normed.data() + part.begin * dim), 4 * dim,
                         kernels::RowFormat::kF32},
                   .w = layer.shared_gate_proj,
                   .y = a.shared_gate.data() + part.begin,
                   .y_stride = 1},
                  {0, 1});
    });
  }
  const FfnGroup group = {&layer.shared_ffn, rows, config.ffn_glu(layer_idx)};
  const RowsView x = ViewOf(a.gemm_input, context_.row_formats.ffn, dim);
  const FfnDims dims = {dim, config.shared_ffn_dim};
  RunFfns(context_, {&group, 1}, dims, x, a.normed);
  ObserveFfn(context_, group, {layer_idx, InputSite::kSharedFfn}, InputSite::kSharedHidden, dims, x);
  if (!layer.ffn_output_norm.empty()) {
    return ForRowRanges(context_, rows, [&](RowRange part) {
      const int64_t begin = part.begin * dim, count = part.size() * dim;
      if (layer.shared_output_norm.empty()) {
        std::copy_n(a.normed.begin() + begin, count, a.shared_output.begin() + begin);
      } else {
        NormOutputs(context_, part, layer.shared_output_norm, a.normed, a.shared_output);
      }
    });
  }
  const float scale = config.residual_scale * config.shared_scale;
  if (!config.shared_gate) {
    context_.kernels.add(a.normed.data() + rows.begin * dim, scale, rows.size() * dim,
                         a.residual.data() + rows.begin * dim);
    return;
  }
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    float gate = -a.shared_gate[row_idx];
    context_.kernels.exp(&gate, 1, &gate);
    context_.kernels.add(a.normed.data() + row_idx * dim, scale * (1 / (1 + gate)), dim,
                         a.residual.data() + row_idx * dim);
  }
}

void HostOperations::Experts(int64_t layer_idx, std::span<const ExpertToRun> experts) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const IndexRange cols = context_.expert_cols.size() > 0 ? context_.expert_cols : IndexRange{0, config.expert_dim};
  const FfnDims dims = {config.expert_row_dim(), cols.size()};
  std::vector<FfnGroup> groups;
  groups.reserve(experts.size());
  for (const ExpertToRun& expert : experts) {
    const IndexRange places = {a.group_offsets[expert.expert_idx], a.group_offsets[expert.expert_idx + 1]};
    if (places.size() == 0) continue;
    FfnGroup& group =
        groups.emplace_back(FfnGroup{&expert.weights, places, config.expert_glu(layer_idx), {}, expert.expert_idx});
    if (!config.expert_bias) continue;
    const LayerWeights& layer = context_.weights.layer(layer_idx);
    const int64_t first = expert.expert_idx * config.expert_dim + cols.begin;
    group.bias = {.gate_proj = layer.expert_gate_bias.data() + first, .up_proj = layer.expert_up_bias.data() + first};
    // The parts of an output are added up, so only one of them has the bias.
    if (cols.begin == 0) group.bias.down_proj = layer.expert_down_bias.data() + expert.expert_idx * dims.row_dim;
  }
  // Experts with the most rows come first: small ones fill up the end of the parallel region.
  std::sort(groups.begin(), groups.end(), [](const FfnGroup& x, const FfnGroup& y) {
    return x.rows.size() != y.rows.size() ? x.rows.size() > y.rows.size() : x.rows.begin < y.rows.begin;
  });
  RunFfns(context_, groups, dims, ExpertInput(context_), a.expert_output);
  if (context_.observer == nullptr) return;
  for (const FfnGroup& group : groups) {
    ObserveFfn(context_, group, {layer_idx, InputSite::kExperts}, InputSite::kExpertsHidden, dims,
               ExpertInput(context_), WeightsOf(context_, group));
  }
}

void HostOperations::DenseFfn(RowRange rows, int64_t layer_idx) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const int64_t dim = context_.config.model_dim;
  NormForFfn(rows, layer_idx);
  const FfnGroup group = {&layer.dense_ffn, rows, context_.config.ffn_glu(layer_idx)};
  const RowsView x = ViewOf(a.gemm_input, context_.row_formats.ffn, dim);
  const FfnDims dims = {dim, context_.config.dense_ffn_dim};
  RunFfns(context_, {&group, 1}, dims, x, a.normed);
  ObserveFfn(context_, group, {layer_idx, InputSite::kFfn}, InputSite::kHidden, dims, x);
  if (!layer.ffn_output_norm.empty()) {
    ForRowRanges(context_, rows,
                 [&](RowRange part) { NormOutputs(context_, part, layer.ffn_output_norm, a.normed, a.normed); });
  }
  AddBranch(rows);
  if (context_.config.takes_deferred(layer_idx)) {
    context_.kernels.add(a.deferred.data() + rows.begin * dim, 1, rows.size() * dim,
                         a.residual.data() + rows.begin * dim);
  }
  ObserveLayer(context_, rows, layer_idx);
}

}  // namespace penstock
