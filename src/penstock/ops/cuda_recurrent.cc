// CudaOperations: recurrent layers (Recurrent in model/model_config.h).
#include <algorithm>
#include <cmath>

#include "penstock/kernels/kernels.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/ops/cuda_operations.h"
#include "penstock/ops/cuda_state_tables.h"
#include "penstock/ops/recurrent_layers.h"

namespace penstock {
void CudaOperations::PrepareState(RowRange rows, int64_t layer_idx) {
  const Recurrent& r = args_.config.recurrent;
  RecurrentRows& a = args_.activations.recurrent;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  const bool has_rank = r.kind == RecurrentKind::kKimiDelta && r.rank > 0;
  const auto project = [&](const WeightView& w, std::span<float> y, int64_t num_cols) {
    if (w.data == nullptr) return;
    ProjectInputs(rows, {.w = w, .y = y, .num_cols = num_cols, .inner_dim = args_.config.model_dim});
  };
  project(layer.v_proj, a.v, r.values_dim());
  project(has_rank ? layer.gate_a_proj : layer.gate_proj, has_rank ? a.gate_a : a.gate,
          has_rank ? r.rank : r.values_dim());
  if (r.projects_values()) return;
  project(layer.q_proj, a.q, r.keys_dim());
  project(layer.k_proj, a.k, r.k_cols());
  project(layer.beta_proj, a.beta, r.beta_cols());
  project(has_rank ? layer.decay_a_proj : layer.decay_proj, has_rank ? a.decay_a : a.decay,
          has_rank ? r.rank : r.decay_cols());
  const auto gate = [&](cuda::GateRule rule, std::span<const float> gates, std::span<float> x, int64_t dim) {
    const int64_t first = rows.begin * dim;
    cuda::Gate({.num_rows = rows.size(),
                .dim = dim,
                .x = x.data() + first,
                .gate = gates.data() + first,
                .x_stride = dim,
                .gate_stride = dim,
                .rule = rule},
               args_.stream);
  };
  if (r.kind == RecurrentKind::kShortConv) return gate(cuda::GateRule::kProduct, a.k, a.v, r.values_dim());
  if (r.kind == RecurrentKind::kLightning) {
    gate(cuda::GateRule::kSigmoid, a.q, a.q, r.keys_dim());
    gate(cuda::GateRule::kSigmoid, a.k, a.k, r.keys_dim());
    gate(cuda::GateRule::kSigmoid, a.v, a.v, r.values_dim());
    return;
  }
  if (has_rank) {
    PrepareInputs(rows, a.gate_a.data() + rows.begin * r.rank, r.rank, r.rank);
    ProjectInputs(rows, {.w = layer.gate_proj, .y = a.gate, .num_cols = r.values_dim(), .inner_dim = r.rank});
    PrepareInputs(rows, a.decay_a.data() + rows.begin * r.rank, r.rank, r.rank);
    ProjectInputs(rows, {.w = layer.decay_proj, .y = a.decay, .num_cols = r.decay_cols(), .inner_dim = r.rank});
  }
  cuda::RecurrentGates(GatesOf(r, a, layer, rows.begin), rows.size(), args_.stream);
}

// Computes keys, queries and steps of kMamba1 from the convolution's output.
void CudaOperations::ProjectValues(RowRange rows, const LayerWeights& layer) {
  const Recurrent& r = args_.config.recurrent;
  RecurrentRows& a = args_.activations.recurrent;
  const auto norm = [&](std::span<float> x, std::span<const float> weight) {
    cuda::NormVectors({.num_vectors = rows.size(),
                       .dim = std::ssize(weight),
                       .x = x.data() + rows.begin * std::ssize(weight),
                       .weight = weight.data(),
                       .eps = args_.config.norm_eps},
                      args_.stream);
  };
  PrepareInputs(rows, a.v.data() + rows.begin * r.values_dim(), r.values_dim(), r.values_dim());
  ProjectInputs(rows, {.w = layer.decay_a_proj, .y = a.decay_a, .num_cols = r.rank, .inner_dim = r.values_dim()});
  ProjectInputs(rows, {.w = layer.k_proj, .y = a.k, .num_cols = r.key_dim, .inner_dim = r.values_dim()});
  ProjectInputs(rows, {.w = layer.q_proj, .y = a.q, .num_cols = r.key_dim, .inner_dim = r.values_dim()});
  norm(a.decay_a, layer.decay_norm);
  norm(a.k, layer.k_norm);
  norm(a.q, layer.q_norm);
  PrepareInputs(rows, a.decay_a.data() + rows.begin * r.rank, r.rank, r.rank);
  ProjectInputs(rows, {.w = layer.decay_proj, .y = a.decay, .num_cols = r.decay_cols(), .inner_dim = r.rank});
  cuda::RecurrentGates(GatesOf(r, a, layer, rows.begin), rows.size(), args_.stream);
}

void CudaOperations::Convolve(const cuda::StateRuns& runs, const LayerWeights& layer) {
  const Recurrent& r = args_.config.recurrent;
  const RecurrentRows& a = args_.activations.recurrent;
  const bool is_alone = r.kind == RecurrentKind::kShortConv;
  cuda::ShortConvLaunch launch{.runs = runs,
                               .num_channels = r.num_channels(),
                               .part_channels = kConvPartChannels,
                               .width = r.conv_width,
                               .bias = DataOrNull(layer.conv_bias),
                               .out = is_alone ? a.out.data() : nullptr,
                               .has_silu = !is_alone};
  const std::vector<ConvInput> inputs = ConvInputs(r, a, layer);
  std::ranges::transform(inputs, launch.inputs, [&](const ConvInput& input) -> cuda::ShortConvLaunch::Input {
    return {.x = input.rows.data(),
            .count = input.count,
            .weight = input.weight.data() + input.first_of_weight,
            .weight_stride = input.WeightStride(r.conv_width)};
  });
  cuda::ShortConv(launch, args_.stream);
}

// Divides q and k by their lengths, and q by sqrt(key_dim), too: norms with factors that make up for the mean.
void CudaOperations::NormaliseKeys(RowRange rows) {
  const Recurrent& r = args_.config.recurrent;
  RecurrentRows& a = args_.activations.recurrent;
  const auto dim = static_cast<float>(r.key_dim);
  for (const auto& [x, factor] : {std::pair(a.q, 1 / dim), std::pair(a.k, 1 / std::sqrt(dim))}) {
    cuda::NormVectors({.num_vectors = rows.size() * r.num_key_heads,
                       .dim = r.key_dim,
                       .x = x.data() + rows.begin * r.keys_dim(),
                       .factor = factor,
                       .eps = kLengthEps / dim},
                      args_.stream);
  }
}

// `decays`: of each head, where the rows have none.
void CudaOperations::AdvanceMatrices(const cuda::StateRuns& runs, const LayerWeights& layer, const float* decays,
                                     int64_t part_cols) {
  const Recurrent& r = args_.config.recurrent;
  const RecurrentRows& a = args_.activations.recurrent;
  if (r.projects_values()) {
    cuda::SelectiveScan({.runs = runs,
                         .key_dim = r.key_dim,
                         .num_cols = r.values_dim(),
                         .part_cols = part_cols,
                         .q = a.q.data(),
                         .k = a.k.data(),
                         .v = a.v.data(),
                         .step = a.decay.data(),
                         .decay_log = layer.decay_log.data(),
                         .skip = layer.skip.data(),
                         .out = a.out.data()},
                        args_.stream);
    return;
  }
  cuda::StateRule({.runs = runs,
                   .num_key_heads = r.num_key_heads,
                   .num_value_heads = r.num_value_heads,
                   .key_dim = r.key_dim,
                   .value_dim = r.value_dim,
                   .part_cols = part_cols,
                   .heads_alternate = r.heads_alternate,
                   .q = a.q.data(),
                   .k = a.k.data(),
                   .v = a.v.data(),
                   .decay = decays != nullptr ? decays : a.decay.data(),
                   .decay_is_constant = decays != nullptr,
                   .beta = decays != nullptr ? nullptr : a.beta.data(),
                   .decays_dims = r.kind == RecurrentKind::kKimiDelta,
                   .has_delta = r.is_delta(),
                   .skip = DataOrNull(layer.skip),
                   .out = a.out.data()},
                  args_.stream);
}

void CudaOperations::AdvanceState(const RowBatch& batch, RowRange rows, int64_t layer_idx,
                                  const RecurrentState& states) {
  using Pages = std::span<std::byte* const>;
  const Recurrent& r = args_.config.recurrent;
  const int64_t layer = args_.config.recurrent_layer_of(layer_idx);
  const LayerWeights& weights = args_.weights.layer(layer_idx);
  const auto conv_part = [&](Pages pages, int64_t idx) { return states.conv_inputs(pages, layer, idx); };
  if (const int64_t num_parts = RecurrentState::NumConvParts(r); num_parts > 0) {
    ForEachStateTable(batch, rows, {.num_parts = num_parts, .part_of = conv_part, .others = {}}, args_.tables,
                      [&](const cuda::StateRuns& runs, const float*) { Convolve(runs, weights); });
  }
  if (!r.has_matrix()) return;
  if (r.is_delta()) NormaliseKeys(rows);
  if (r.projects_values()) ProjectValues(rows, weights);
  const bool is_lightning = r.kind == RecurrentKind::kLightning;
  const std::vector<float> decays = is_lightning ? LightningDecays(args_.config, layer_idx) : std::vector<float>();
  const auto piece = [&](Pages pages, int64_t idx) { return states.piece(pages, layer, idx); };
  ForEachStateTable(batch, rows, {.num_parts = states.num_pieces(), .part_of = piece, .others = decays}, args_.tables,
                    [&](const cuda::StateRuns& runs, const float* on_device) {
                      AdvanceMatrices(runs, weights, is_lightning ? on_device : nullptr, states.piece_columns());
                    });
}

void CudaOperations::FinishState(RowRange rows, int64_t layer_idx) {
  const Recurrent& r = args_.config.recurrent;
  const RecurrentRows& a = args_.activations.recurrent;
  const LayerWeights& layer = args_.weights.layer(layer_idx);
  const int64_t dim = r.values_dim();
  const kernels::RowFormat format = args_.row_formats.attention;
  const int64_t stride = kernels::RowBytes(format, dim);
  cuda::GateRowsLaunch launch{.num_rows = rows.size(),
                              .dim = dim,
                              .x = a.out.data() + rows.begin * dim,
                              .gate = a.gate.data() + rows.begin * dim,
                              .rule = cuda::GateRule::kSilu,
                              .norm_weight = layer.mixer_norm.data(),
                              .norm_weight_is_shared = r.is_delta(),
                              .eps = args_.config.norm_eps,
                              .format = format,
                              .prepared = args_.activations.gemm_input.data() + rows.begin * stride,
                              .prepared_stride_bytes = stride};
  switch (r.kind) {
    case RecurrentKind::kDeltaNet: launch.norm_dim = r.value_dim; break;
    case RecurrentKind::kKimiDelta:
      launch.norm_dim = r.value_dim;
      launch.rule = cuda::GateRule::kSigmoid;
      break;
    case RecurrentKind::kMamba2:
      launch.norm_dim = dim / r.num_key_heads;
      launch.norms_last = true;
      break;
    case RecurrentKind::kMamba1: break;
    case RecurrentKind::kShortConv: launch.rule = cuda::GateRule::kProduct; break;
    case RecurrentKind::kLightning:
      launch.norm_dim = dim;
      launch.rule = cuda::GateRule::kSigmoid;
      launch.eps = kLightningEps;
      break;
  }
  cuda::GateRows(launch, args_.stream);
}

}  // namespace penstock
