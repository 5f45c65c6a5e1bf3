#include "penstock/ops/host_operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/kernels/kernels.h"
#include "penstock/model/relative_bias.h"
#include "penstock/ops/host_rows.h"
#include "penstock/tensor/output_codes.h"

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
void GateUpColumns(const OpContext& context, const FfnGroup& group, const RowsView& x, IndexRange cols, int64_t ffn_dim,
                   const RowsView& hidden, int worker_idx) {
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
                         .inner_dim = context.config.model_dim,
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
                                  .dim = ffn_dim,
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
void RunFfns(const OpContext& context, std::span<const FfnGroup> groups, int64_t ffn_dim, const RowsView& x,
             std::span<float> output) {
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
                 .bias = group.bias.down_proj,
                 .y = output.data() + group.rows.begin * model_dim + cols.begin,
                 .y_stride = model_dim},
                cols);
  });
}

// Shows the inputs of an FFN's matrices to the observer, if there is one. `weights` are of the group's rows.
void ObserveFfn(const OpContext& context, const FfnGroup& group, InputPlace place, InputSite hidden_site,
                int64_t ffn_dim, const RowsView& x, std::span<const float> weights = {}) {
  if (context.observer == nullptr) return;
  place.expert_idx = group.expert_idx;
  Observe(context, place, x.From(group.rows.begin), group.rows.size(), context.config.model_dim, weights);
  place.site = hidden_site;
  const RowsView hidden = ViewOf(context.activations.hidden, context.row_formats.ffn, ffn_dim);
  Observe(context, place, hidden.From(group.rows.begin), group.rows.size(), ffn_dim, weights);
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
  return ViewOf(context.activations.expert_input, context.row_formats.ffn, context.config.model_dim);
}

}  // namespace

HostOperations::HostOperations(const OpContext& context) : context_(context) {
  context_.prefetching = FasterPrefetching(context.kernels);
  if (context.config.qk_norm == QkNorm::kUnitAfterRope) {
    unit_norm_.assign(static_cast<size_t>(context.config.head_dim), 1.0f);
  }
  if (!context.config.encoder.is_on()) return;
  const OuterWeights& outer = context.weights.outer();
  encoder_bias_ = BiasOfDistances(outer.encoder_bias, /*is_of_encoder=*/true, context.config);
  decoder_bias_ = BiasOfDistances(outer.decoder_bias, /*is_of_encoder=*/false, context.config);
}

// residual += residual_scale * normed.
void HostOperations::AddBranch(RowRange rows) {
  Activations& a = context_.activations;
  const int64_t dim = context_.config.model_dim;
  context_.kernels.add(a.normed.data() + rows.begin * dim, context_.config.residual_scale, rows.size() * dim,
                       a.residual.data() + rows.begin * dim);
}

namespace {

// Multiplies the weights of a row's experts by the layer's scales.
void ScaleExperts(const LayerWeights& layer, std::span<const int32_t> topk_idx, std::span<float> topk_weights) {
  if (layer.expert_scales.empty()) return;
  for (size_t i = 0; i < topk_weights.size(); ++i) topk_weights[i] *= layer.expert_scales[topk_idx[i]];
}

// Applies the layer's gate to a.normed. Always computes in f32, because a rounded score could choose another expert.
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
                 .bias = DataOrNull(layer.router_bias),
                 .y = scores.data() + part.begin * config.num_experts,
                 .y_stride = config.num_experts},
                {0, config.num_experts});
    if (config.router_logit_scale != 1) {
      for (int64_t i = part.begin * config.num_experts; i < part.end * config.num_experts; ++i) {
        scores[i] *= config.router_logit_scale;
      }
    }
    for (int64_t row_idx = part.begin; row_idx < part.end; ++row_idx) {
      context.kernels.router_topk({.num_experts = config.num_experts,
                                   .num_topk = config.num_topk,
                                   .scores = scores.data() + row_idx * config.num_experts,
                                   .rule = config.router,
                                   .selection_bias = DataOrNull(layer.router_selection_bias),
                                   .topk_idx = topk_idx.data() + row_idx * config.num_topk,
                                   .topk_weights = topk_weights.data() + row_idx * config.num_topk});
    }
    const int64_t first = part.begin * config.num_topk, count = part.size() * config.num_topk;
    ScaleExperts(layer, topk_idx.subspan(first, count), topk_weights.subspan(first, count));
  });
}

}  // namespace

namespace {

// Returns the norm before a layer's FFNs.
NormOf FfnNorm(const OpContext& context, const LayerWeights& layer) {
  const Activations& a = context.activations;
  if (context.config.parallel_ffn) return {a.layer_input, layer.attention_norm, layer.attention_norm_bias};
  return {a.residual, layer.ffn_norm, layer.ffn_norm_bias};
}

}  // namespace

void HostOperations::NormForExperts(RowRange rows, int64_t layer_idx) {
  Activations& a = context_.activations;
  NormOf norm = FfnNorm(context_, context_.weights.layer(layer_idx));
  if (context_.config.parallel_experts) norm.source = a.layer_input;
  NormRows(context_, rows, norm, context_.row_formats.ffn, a.ffn_input);
  KeepNormed(rows, context_.config.normed_residual.of_ffn);
}

void HostOperations::NormForFfn(RowRange rows, int64_t layer_idx) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const NormOf norm = layer.shared_norm.empty() ? FfnNorm(context_, layer) : NormOf{a.residual, layer.shared_norm, {}};
  NormRows(context_, rows, norm, context_.row_formats.ffn, a.gemm_input);
}

void HostOperations::RouteByTable(RowRange rows, int64_t layer_idx, const ExpertTable& table) {
  NormForExperts(rows, layer_idx);
  Activations& a = context_.activations;
  const int64_t first = rows.begin * context_.config.num_topk, count = rows.size() * context_.config.num_topk;
  std::copy_n(table.choices.begin() + first, count, a.topk_idx.begin() + first);
  std::copy_n(table.weights.begin() + first, count, a.topk_weights.begin() + first);
  ScaleExperts(context_.weights.layer(layer_idx), a.topk_idx.subspan(first, count),
               a.topk_weights.subspan(first, count));
  ScaleInputs(rows);
}

void HostOperations::Route(RowRange rows, int64_t layer_idx) {
  NormForExperts(rows, layer_idx);
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  if (context_.config.router_norm) {
    ForRowRanges(context_, rows, [&](RowRange part) { NormPart(context_, part, {a.residual, layer.router_norm, {}}); });
  }
  ApplyGate(context_, rows, layer, a.router_logits, a.topk_idx, a.topk_weights);
  ScaleInputs(rows);
}

void HostOperations::ScaleInputs(RowRange rows) {
  if (!context_.config.router_scales_input) return;
  Activations& a = context_.activations;
  const int64_t dim = context_.config.model_dim;
  ForRowRanges(context_, rows, [&](RowRange part) {
    for (int64_t row_idx = part.begin; row_idx < part.end; ++row_idx) {
      float* const normed = a.normed.data() + row_idx * dim;
      for (int64_t d = 0; d < dim; ++d) normed[d] *= a.topk_weights[row_idx];
      a.topk_weights[row_idx] = 1;
    }
    PrepareRows(context_, a.normed, dim, part, context_.row_formats.ffn, a.ffn_input);
  });
}

void HostOperations::LimitExperts(const RowBatch& batch, RowRange rows) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  std::vector<int64_t> num_rows(static_cast<size_t>(config.num_experts));
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if (row == rows.begin || batch.sequence_ids[row] != batch.sequence_ids[row - 1]) std::ranges::fill(num_rows, 0);
    for (int64_t i = row * config.num_topk; i < (row + 1) * config.num_topk; ++i) {
      if (++num_rows[a.topk_idx[i]] > config.encoder.expert_capacity) a.topk_weights[i] = 0;
    }
  }
}

void HostOperations::RouteAhead(RowRange rows, int64_t target_idx, int64_t ahead) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(target_idx);
  NormOf norm = FfnNorm(context_, layer);
  norm.source = a.residual;
  if (context_.config.router_norm) norm = {a.residual, layer.router_norm, {}};
  ForRowRanges(context_, rows, [&](RowRange part) { NormPart(context_, part, norm); });
  ApplyGate(context_, rows, layer, a.ahead_scores, a.topk_ahead(ahead), a.ahead_weights);
}

void HostOperations::Group(RowRange rows) {
  Activations& a = context_.activations;
  const int64_t num_topk = context_.config.num_topk;
  // These rows' assignments take the places from rows.begin * num_topk to rows.end * num_topk, sorted by expert (stable
  // in rows).
  const IndexRange places = {rows.begin * num_topk, rows.end * num_topk};
  std::fill(a.group_offsets.begin(), a.group_offsets.end(), 0);
  for (int64_t i = places.begin; i < places.end; ++i) ++a.group_offsets[a.topk_idx[i] + 1];
  a.group_offsets[0] = places.begin;
  for (int64_t e = 0; e < context_.config.num_experts; ++e) a.group_offsets[e + 1] += a.group_offsets[e];
  // Filling moves each offset to the end of its group, which is the start of the next. The offsets are shifted back
  // afterwards.
  for (int64_t i = places.begin; i < places.end; ++i) {
    const int64_t place = a.group_offsets[a.topk_idx[i]]++;
    a.assignments[i] = place;
    a.assigned_row[place] = i / num_topk;
  }
  for (int64_t e = context_.config.num_experts; e > 0; --e) a.group_offsets[e] = a.group_offsets[e - 1];
  a.group_offsets[0] = places.begin;
  GatherPlaces(places);
}

void HostOperations::GroupRanks(const RankAssignments& ranks) {
  Activations& a = context_.activations;
  PENSTOCK_CHECK(ranks.input_rows.size() <= a.assigned_row.size());
  std::copy(ranks.group_offsets.begin(), ranks.group_offsets.end(), a.group_offsets.begin());
  std::copy(ranks.input_rows.begin(), ranks.input_rows.end(), a.assigned_row.begin());
}

void HostOperations::GatherInputs(std::span<const ExpertToRun> experts) {
  const std::span<const int64_t> offsets = context_.activations.group_offsets;
  IndexRange places;  // of neighbouring experts, which are gathered together
  for (const ExpertToRun& expert : experts) {
    const IndexRange of_expert = {offsets[expert.expert_idx], offsets[expert.expert_idx + 1]};
    if (of_expert.begin != places.end) {
      GatherPlaces(places);
      places.begin = of_expert.begin;
    }
    places.end = of_expert.end;
  }
  GatherPlaces(places);
}

void HostOperations::PlaceOutputs(RowRange rows, std::span<const int64_t> places) {
  PENSTOCK_CHECK(std::ssize(places) == rows.size() * context_.config.num_topk);
  std::copy(places.begin(), places.end(),
            context_.activations.assignments.begin() + rows.begin * context_.config.num_topk);
}

void HostOperations::SumOutputs(int64_t first, std::span<const int64_t> places, std::span<const float> weights) {
  Activations& a = context_.activations;
  const int64_t dim = context_.config.model_dim, num_topk = context_.config.num_topk;
  ForRowRanges(context_, {0, std::ssize(places) / num_topk}, [&](RowRange part) {
    float* sums = a.expert_output.data() + (first + part.begin) * dim;
    std::fill_n(sums, part.size() * dim, 0.0f);
    context_.kernels.combine({.num_rows = part.size(),
                              .dim = dim,
                              .num_topk = num_topk,
                              .residual = sums,
                              .residual_stride = dim,
                              .z = a.expert_output.data(),
                              .z_stride = dim,
                              .assignments = places.data() + part.begin * num_topk,
                              .weights = weights.data() + part.begin * num_topk,
                              .y = sums,
                              .y_stride = dim});
  });
}

void HostOperations::AddSums(RowRange rows, int64_t layer_idx, std::span<const int64_t> sums, int num_sums) {
  PENSTOCK_CHECK(std::ssize(sums) == rows.size() * num_sums);
  const std::vector<float> ones(sums.size(), 1.0f);
  AddOutputs(rows, layer_idx, num_sums, sums.data(), ones.data());
}

void HostOperations::AddOutputs(RowRange rows, int64_t layer_idx, int64_t num_outputs, const int64_t* places,
                                const float* weights) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const int64_t dim = config.model_dim;
  const bool is_normed = !layer.ffn_output_norm.empty();
  const std::span<float> sums = is_normed ? a.normed : a.residual;
  ForRowRanges(context_, rows, [&](RowRange part) {
    const int64_t first = (part.begin - rows.begin) * num_outputs, begin = part.begin * dim, count = part.size() * dim;
    if (is_normed) std::fill_n(sums.begin() + begin, count, 0.0f);
    context_.kernels.combine({.num_rows = part.size(),
                              .dim = dim,
                              .num_topk = num_outputs,
                              .residual = sums.data() + begin,
                              .residual_stride = dim,
                              .z = a.expert_output.data(),
                              .z_stride = dim,
                              .assignments = places + first,
                              .weights = weights + first,
                              .y = sums.data() + begin,
                              .y_stride = dim,
                              .scale = is_normed ? 1 : config.residual_scale});
    if (is_normed) {
      if (!layer.expert_output_norm.empty()) {
        NormOutputs(context_, part, layer.expert_output_norm, a.normed, a.normed);
      }
      if (config.shared_ffn_dim > 0) {
        context_.kernels.add(a.shared_output.data() + begin, config.shared_scale, count, a.normed.data() + begin);
      }
      NormOutputs(context_, part, layer.ffn_output_norm, a.normed, a.normed);
      context_.kernels.add(a.normed.data() + begin, config.residual_scale, count, a.residual.data() + begin);
    }
    if (!config.layer_scales) return;
    for (int64_t i = begin; i < begin + count; ++i) a.residual[i] *= layer.layer_scale[0];
  });
}

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

std::span<const int32_t> HostOperations::Choices(RowRange rows) {
  const int64_t num_topk = context_.config.num_topk;
  return context_.activations.topk_idx.subspan(rows.begin * num_topk, rows.size() * num_topk);
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
  RunFfns(context_, {&group, 1}, config.shared_ffn_dim, x, a.normed);
  ObserveFfn(context_, group, {layer_idx, InputSite::kSharedFfn}, InputSite::kSharedHidden, config.shared_ffn_dim, x);
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
    if (cols.begin == 0) group.bias.down_proj = layer.expert_down_bias.data() + expert.expert_idx * config.model_dim;
  }
  // Experts with the most rows come first: small ones fill up the end of the parallel region.
  std::sort(groups.begin(), groups.end(), [](const FfnGroup& x, const FfnGroup& y) {
    return x.rows.size() != y.rows.size() ? x.rows.size() > y.rows.size() : x.rows.begin < y.rows.begin;
  });
  RunFfns(context_, groups, cols.size(), ExpertInput(context_), a.expert_output);
  if (context_.observer == nullptr) return;
  for (const FfnGroup& group : groups) {
    ObserveFfn(context_, group, {layer_idx, InputSite::kExperts}, InputSite::kExpertsHidden, cols.size(),
               ExpertInput(context_), WeightsOf(context_, group));
  }
}

void HostOperations::RoundOutputs(IndexRange places, CommFormat format) {
  const int64_t dim = context_.config.model_dim;
  ForRowRanges(context_, places, [&](IndexRange part) {
    penstock::RoundOutputs(format, context_.activations.expert_output.subspan(part.begin * dim, part.size() * dim),
                           dim);
  });
}

std::vector<int64_t> HostOperations::ClearExpert(int64_t expert_idx) {
  Activations& a = context_.activations;
  const int64_t dim = context_.config.model_dim;
  const IndexRange places = {a.group_offsets[expert_idx], a.group_offsets[expert_idx + 1]};
  std::fill_n(a.expert_output.data() + places.begin * dim, places.size() * dim, 0.0f);
  return {a.assigned_row.begin() + places.begin, a.assigned_row.begin() + places.end};
}

void HostOperations::Combine(RowRange rows, int64_t layer_idx) {
  const Activations& a = context_.activations;
  const int64_t num_topk = context_.config.num_topk, first = rows.begin * num_topk;
  AddOutputs(rows, layer_idx, num_topk, a.assignments.data() + first, a.topk_weights.data() + first);
  ObserveLayer(context_, rows, layer_idx);
}

void HostOperations::DenseFfn(RowRange rows, int64_t layer_idx) {
  Activations& a = context_.activations;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const int64_t dim = context_.config.model_dim;
  NormForFfn(rows, layer_idx);
  const FfnGroup group = {&layer.dense_ffn, rows, context_.config.ffn_glu(layer_idx)};
  const RowsView x = ViewOf(a.gemm_input, context_.row_formats.ffn, dim);
  RunFfns(context_, {&group, 1}, context_.config.dense_ffn_dim, x, a.normed);
  ObserveFfn(context_, group, {layer_idx, InputSite::kFfn}, InputSite::kHidden, context_.config.dense_ffn_dim, x);
  if (!layer.ffn_output_norm.empty()) {
    ForRowRanges(context_, rows,
                 [&](RowRange part) { NormOutputs(context_, part, layer.ffn_output_norm, a.normed, a.normed); });
  }
  AddBranch(rows);
  ObserveLayer(context_, rows, layer_idx);
}

}  // namespace penstock
