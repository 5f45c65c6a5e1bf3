// HostOperations: recurrent layers (Recurrent in model/model_config.h).
#include <algorithm>
#include <cmath>
#include <vector>

#include "penstock/kernels/kernels.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/ops/host_operations.h"
#include "penstock/ops/host_rows.h"
#include "penstock/ops/recurrent_layers.h"

namespace penstock {

using namespace host;  // NOLINT: the helpers of these operations

namespace {

// Norms vectors of `weight.size()` dims in place, one after another.
void NormVectors(const OpContext& context, float* x, int64_t count, std::span<const float> weight, float eps) {
  const auto dim = std::ssize(weight);
  context.kernels.norm({.num_rows = count,
                        .dim = dim,
                        .x = x,
                        .x_stride = dim,
                        .weight = weight.data(),
                        .eps = eps,
                        .out = x,
                        .out_stride = dim});
}

// Divides q and k by their lengths, and q by sqrt(key_dim), too: norms with weights that make up for the mean.
void NormaliseKeys(const OpContext& context, RowRange rows) {
  const Recurrent& r = context.config.recurrent;
  const auto dim = static_cast<float>(r.key_dim);
  const std::vector<float> of_q(static_cast<size_t>(r.key_dim), 1 / dim), of_k(of_q.size(), 1 / std::sqrt(dim));
  RecurrentRows& a = context.activations.recurrent;
  ForRowRanges(context, rows, [&](RowRange part) {
    const int64_t first = part.begin * r.keys_dim(), count = part.size() * r.num_key_heads;
    NormVectors(context, a.q.data() + first, count, of_q, kLengthEps / dim);
    NormVectors(context, a.k.data() + first, count, of_k, kLengthEps / dim);
  });
}

// Takes rows of one sequence through the channels [first, end) of the convolution. `kept`: the inputs of the positions
// before. kShortConv writes to `out`, the others in place.
void Convolve(const OpContext& context, const LayerWeights& layer, std::span<const ConvInput> inputs, RowRange rows,
              IndexRange channels, float* kept) {
  const Recurrent& r = context.config.recurrent;
  const bool is_alone = r.kind == RecurrentKind::kShortConv;
  int64_t first_of_input = 0;  // among all channels
  for (const ConvInput& input : inputs) {
    const IndexRange own = {std::max(channels.begin, first_of_input),
                            std::min(channels.end, first_of_input + input.count)};
    const int64_t first = own.begin - first_of_input;  // among the input's
    first_of_input += input.count;
    if (own.size() <= 0) continue;
    float* const x = input.rows.data() + rows.begin * input.count + first;
    context.kernels.short_conv(
        {.num_rows = rows.size(),
         .num_channels = own.size(),
         .width = r.conv_width,
         .x = x,
         .x_stride = input.count,
         .weight = input.weight.data() + input.first_of_weight + first,
         .weight_stride = input.WeightStride(r.conv_width),
         .bias = layer.conv_bias.empty() ? nullptr : layer.conv_bias.data() + own.begin,
         .state = kept + own.begin - channels.begin,
         .state_stride = channels.size(),
         .out = is_alone ? context.activations.recurrent.out.data() + rows.begin * input.count + first : x,
         .out_stride = input.count,
         .has_silu = !is_alone});
  }
}

// Changes columns of the matrix of a value head for rows of one sequence, and computes their outputs. `columns` are
// among those of all heads. `decays`: of each head, where the rows have none.
void AdvanceMatrix(const OpContext& context, const LayerWeights& layer, std::span<const float> decays, RowRange rows,
                   IndexRange columns, float* matrix) {
  const Recurrent& r = context.config.recurrent;
  RecurrentRows& a = context.activations.recurrent;
  const int64_t head = columns.begin / r.value_dim;
  const int64_t keys = rows.begin * r.keys_dim() + r.key_head_of(head) * r.key_dim;
  const int64_t values = rows.begin * r.values_dim() + columns.begin;
  if (r.kind == RecurrentKind::kMamba1) {
    context.kernels.selective_scan({.num_rows = rows.size(),
                                    .key_dim = r.key_dim,
                                    .value_dim = columns.size(),
                                    .q = a.q.data() + keys,
                                    .k = a.k.data() + keys,
                                    .k_stride = r.keys_dim(),
                                    .v = a.v.data() + values,
                                    .step = a.decay.data() + values,
                                    .v_stride = r.values_dim(),
                                    .decay_log = layer.decay_log.data() + columns.begin,
                                    .log_stride = r.values_dim(),
                                    .skip = layer.skip.data() + columns.begin,
                                    .state = matrix,
                                    .out = a.out.data() + values});
    return;
  }
  const bool decays_dims = r.kind == RecurrentKind::kKimiDelta, is_constant = !decays.empty();
  constexpr float kOne = 1;
  const float* const decay = a.decay.data() + (decays_dims ? keys : rows.begin * r.num_value_heads + head);
  context.kernels.state_rule({.num_rows = rows.size(),
                              .key_dim = r.key_dim,
                              .value_dim = columns.size(),
                              .q = a.q.data() + keys,
                              .k = a.k.data() + keys,
                              .k_stride = r.keys_dim(),
                              .v = a.v.data() + values,
                              .v_stride = r.values_dim(),
                              .decay = is_constant ? &decays[head] : decay,
                              .decay_stride = r.decay_cols(),
                              .beta = is_constant ? &kOne : a.beta.data() + rows.begin * r.num_value_heads + head,
                              .beta_stride = is_constant ? 0 : r.num_value_heads,
                              .decays_dims = decays_dims,
                              .has_delta = r.is_delta(),
                              .skip = layer.skip.empty() ? 0 : layer.skip[head],
                              .state = matrix,
                              .out = a.out.data() + values,
                              .out_stride = r.values_dim()});
}

// Calls advance(part, idx, pages) for parts of each run, and copy(from, to, idx) after those whose states are kept, for
// idx < count. Calls for different runs or indices are parallel.
void ForStates(const OpContext& context, const RowBatch& batch, std::span<const RowRange> runs, int64_t count,
               absl::FunctionRef<void(RowRange, int64_t, std::span<std::byte* const>)> advance,
               absl::FunctionRef<void(std::span<std::byte* const>, std::span<std::byte* const>, int64_t)> copy) {
  context.pool.ParallelFor(std::ssize(runs) * count, [&](int64_t task_idx, int) {
    RowRange part = runs[task_idx / count];
    const int64_t idx = task_idx % count, begin = part.begin, end = part.end;
    const auto pages = batch.state_pages[begin];
    for (const StateCopy& kept : batch.state_copies) {
      if (kept.row < begin || kept.row >= end) continue;
      part.end = kept.row + 1;
      if (part.size() > 0) advance(part, idx, pages);  // a row may be copied twice
      copy(pages, kept.pages, idx);
      part = {part.end, end};
    }
    if (part.size() > 0) advance(part, idx, pages);
  });
}

}  // namespace

void HostOperations::PrepareState(RowRange rows, int64_t layer_idx) {
  const Recurrent& r = context_.config.recurrent;
  RecurrentRows& a = context_.activations.recurrent;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const bool has_rank = r.kind == RecurrentKind::kKimiDelta && r.rank > 0;
  const WeightView none;
  Project(rows, {{r.projects_values() ? none : layer.q_proj, {}, a.q, r.keys_dim()},
                 {r.projects_values() ? none : layer.k_proj, {}, a.k, r.k_cols()},
                 {layer.v_proj, {}, a.v, r.values_dim()},
                 {has_rank ? layer.gate_a_proj : layer.gate_proj,
                  {},
                  has_rank ? a.gate_a : a.gate,
                  has_rank ? r.rank : r.values_dim()},
                 {layer.beta_proj, {}, a.beta, r.beta_cols()},
                 {r.projects_values() ? none
                  : has_rank          ? layer.decay_a_proj
                                      : layer.decay_proj,
                  {},
                  has_rank ? a.decay_a : a.decay,
                  has_rank ? r.rank : r.decay_cols()}});
  if (r.projects_values()) return;
  if (r.kind == RecurrentKind::kShortConv) {
    ForRowRanges(context_, rows, [&](RowRange part) {
      for (int64_t i = part.begin * r.values_dim(); i < part.end * r.values_dim(); ++i) a.v[i] *= a.k[i];
    });
    return;
  }
  if (r.kind == RecurrentKind::kLightning) {
    ForRowRanges(context_, rows, [&](RowRange part) {
      for (const auto& [x, dim] :
           {std::pair(a.q, r.keys_dim()), std::pair(a.k, r.keys_dim()), std::pair(a.v, r.values_dim())}) {
        float* const first = x.data() + part.begin * dim;
        context_.kernels.scale_by_sigmoid(first, part.size() * dim, first);  // SiLU
      }
    });
    return;
  }
  if (has_rank) {
    const kernels::RowFormat format = context_.row_formats.attention;
    Activations& all = context_.activations;
    ForRowRanges(context_, rows,
                 [&](RowRange part) { PrepareRows(context_, a.gate_a, r.rank, part, format, all.gemm_input); });
    Project(rows, r.rank, {{layer.gate_proj, {}, a.gate, r.values_dim()}});
    ForRowRanges(context_, rows,
                 [&](RowRange part) { PrepareRows(context_, a.decay_a, r.rank, part, format, all.gemm_input); });
    Project(rows, r.rank, {{layer.decay_proj, {}, a.decay, r.decay_cols()}});
  }
  ForRowRanges(context_, rows, [&](RowRange part) {
    for (int64_t row = part.begin; row < part.end; ++row) {
      context_.kernels.recurrent_gates(GatesOf(r, a, layer, row));
    }
  });
}

void HostOperations::ProjectValues(RowRange rows, int64_t layer_idx) {
  const Recurrent& r = context_.config.recurrent;
  Activations& all = context_.activations;
  RecurrentRows& a = all.recurrent;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const kernels::RowFormat format = context_.row_formats.attention;
  const float eps = context_.config.norm_eps;
  ForRowRanges(context_, rows,
               [&](RowRange part) { PrepareRows(context_, a.v, r.values_dim(), part, format, all.gemm_input); });
  Project(rows, r.values_dim(),
          {{layer.decay_a_proj, {}, a.decay_a, r.rank},
           {layer.k_proj, {}, a.k, r.key_dim},
           {layer.q_proj, {}, a.q, r.key_dim}});
  ForRowRanges(context_, rows, [&](RowRange part) {
    NormVectors(context_, a.decay_a.data() + part.begin * r.rank, part.size(), layer.decay_norm, eps);
    NormVectors(context_, a.k.data() + part.begin * r.key_dim, part.size(), layer.k_norm, eps);
    NormVectors(context_, a.q.data() + part.begin * r.key_dim, part.size(), layer.q_norm, eps);
    PrepareRows(context_, a.decay_a, r.rank, part, format, all.gemm_input);
  });
  Project(rows, r.rank, {{layer.decay_proj, {}, a.decay, r.decay_cols()}});
  ForRowRanges(context_, rows, [&](RowRange part) {
    for (int64_t row = part.begin; row < part.end; ++row) {
      context_.kernels.recurrent_gates(GatesOf(r, a, layer, row));
    }
  });
}

void HostOperations::AdvanceState(const RowBatch& batch, RowRange rows, int64_t layer_idx,
                                  const RecurrentState& states) {
  using Pages = std::span<std::byte* const>;
  const Recurrent& r = context_.config.recurrent;
  const int64_t layer = context_.config.recurrent_layer_of(layer_idx);
  const LayerWeights& weights = context_.weights.layer(layer_idx);
  const std::vector<RowRange> runs = SequenceRuns(batch, rows);
  const std::vector<ConvInput> inputs = ConvInputs(r, context_.activations.recurrent, weights);
  ForStates(
      context_, batch, runs, RecurrentState::NumConvParts(r),
      [&](RowRange part, int64_t conv_part, Pages pages) {
        const int64_t first = conv_part * kConvPartChannels;
        Convolve(context_, weights, inputs, part, {first, std::min(first + kConvPartChannels, r.num_channels())},
                 states.conv_inputs(pages, layer, conv_part));
      },
      [&](Pages from, Pages to, int64_t conv_part) { states.CopyConvInputs(from, to, layer, conv_part); });
  if (!r.has_matrix()) return;
  if (r.is_delta()) NormaliseKeys(context_, rows);
  if (r.projects_values()) ProjectValues(rows, layer_idx);
  const bool is_lightning = r.kind == RecurrentKind::kLightning;
  const std::vector<float> decays = is_lightning ? LightningDecays(context_.config, layer_idx) : std::vector<float>();
  ForStates(
      context_, batch, runs, states.num_pieces(),
      [&](RowRange part, int64_t piece, Pages pages) {
        const int64_t first = piece * states.piece_columns();
        AdvanceMatrix(context_, weights, decays, part, {first, first + states.piece_columns()},
                      states.piece(pages, layer, piece));
      },
      [&](Pages from, Pages to, int64_t piece) { states.CopyPiece(from, to, layer, piece); });
}

void HostOperations::FinishState(RowRange rows, int64_t layer_idx) {
  const Recurrent& r = context_.config.recurrent;
  RecurrentRows& a = context_.activations.recurrent;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const int64_t dim = r.values_dim();
  const float eps = context_.config.norm_eps;
  context_.pool.ParallelFor(rows.size(), [&](int64_t i, int) {
    float* const x = a.out.data() + (rows.begin + i) * dim;
    const float* const gate = a.gate.data() + (rows.begin + i) * dim;
    if (r.is_delta()) NormVectors(context_, x, r.num_value_heads, layer.mixer_norm, eps);
    switch (r.kind) {
      case RecurrentKind::kShortConv:
        for (int64_t j = 0; j < dim; ++j) x[j] *= gate[j];
        break;
      case RecurrentKind::kLightning:
        NormVectors(context_, x, 1, layer.mixer_norm, kLightningEps);
        context_.kernels.scale_by_sigmoid(gate, dim, x);
        break;
      case RecurrentKind::kKimiDelta: context_.kernels.scale_by_sigmoid(gate, dim, x); break;
      default:
        context_.kernels.swiglu({.num_rows = 1,
                                 .dim = dim,
                                 .gate = gate,
                                 .gate_stride = dim,
                                 .up = x,
                                 .up_stride = dim,
                                 .out = x,
                                 .out_stride = dim});
    }
    if (r.kind != RecurrentKind::kMamba2) return;
    const int64_t of_key = dim / r.num_key_heads;
    for (int64_t first = 0; first < dim; first += of_key) {
      NormVectors(context_, x + first, 1, layer.mixer_norm.subspan(first, of_key), eps);
    }
  });
}

}  // namespace penstock
