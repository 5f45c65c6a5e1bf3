#include "penstock/ops/host_operations.h"

#include <algorithm>

#include "penstock/base/check.h"
#include "penstock/kernels/kernels.h"
#include "penstock/model/relative_bias.h"
#include "penstock/ops/host_rows.h"
#include "penstock/tensor/output_codes.h"

namespace penstock {

using namespace host;  // NOLINT: the helpers of these operations

HostOperations::HostOperations(const OpContext& context) : context_(context) {
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
  const bool is_latent = context_.config.latent_dim > 0;
  NormRows(context_, rows, norm, context_.row_formats.ffn, is_latent ? a.gemm_input : a.ffn_input);
  KeepNormed(rows, context_.config.normed_residual.of_ffn);
  if (context_.config.num_identity_experts > 0) {
    const int64_t dim = context_.config.model_dim;
    std::copy_n(a.normed.begin() + rows.begin * dim, rows.size() * dim, a.deferred.begin() + rows.begin * dim);
  }
  if (!is_latent) return;
  ProjectFfnRows(rows, context_.weights.layer(layer_idx).latent_in_proj, context_.config.model_dim, a.latent,
                 context_.config.latent_dim);
  ForRowRanges(context_, rows, [&](RowRange part) {
    PrepareRows(context_, a.latent, context_.config.latent_dim, part, context_.row_formats.ffn, a.ffn_input);
  });
}

void HostOperations::ProjectFfnRows(RowRange rows, const WeightView& w, int64_t inner_dim, std::span<float> y,
                                    int64_t num_cols) {
  const GemmPart part[] = {
      {{.num_rows = rows.size(),
        .inner_dim = inner_dim,
        .x = ViewOf(context_.activations.gemm_input, context_.row_formats.ffn, inner_dim).From(rows.begin),
        .w = w,
        .y = y.data() + rows.begin * num_cols,
        .y_stride = num_cols},
       num_cols}};
  RunGemms(context_, part);
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
  ReturnInputs({a.group_offsets[context_.config.num_stored_experts()], places.end});
}

// Beside a device that combines, the device does this.
void HostOperations::ReturnInputs(IndexRange places) {
  Activations& a = context_.activations;
  if (a.deferred.empty()) return;
  const int64_t dim = context_.config.model_dim;
  ForRowRanges(context_, places, [&](IndexRange part) {
    for (int64_t place = part.begin; place < part.end; ++place) {
      std::copy_n(a.deferred.begin() + a.assigned_row[place] * dim, dim, a.expert_output.begin() + place * dim);
    }
  });
}

void HostOperations::GroupRanks(const RankAssignments& ranks) {
  Activations& a = context_.activations;
  PENSTOCK_CHECK(ranks.input_rows.size() <= a.assigned_row.size());
  std::copy(ranks.group_offsets.begin(), ranks.group_offsets.end(), a.group_offsets.begin());
  std::copy(ranks.input_rows.begin(), ranks.input_rows.end(), a.assigned_row.begin());
  ReturnInputs({a.group_offsets[context_.config.num_stored_experts()], ranks.group_offsets.back()});
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
  const int64_t dim = context_.config.expert_row_dim(), num_topk = context_.config.num_topk;
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
  const int64_t row_dim = config.expert_row_dim();
  const bool is_latent = config.latent_dim > 0, is_normed = !layer.ffn_output_norm.empty();
  const std::span<float> sums = a.ExpertSums(config, is_normed);
  const bool is_apart = sums.data() != a.residual.data();
  ForRowRanges(context_, rows, [&](RowRange part) {
    const int64_t first = (part.begin - rows.begin) * num_outputs, begin = part.begin * row_dim;
    if (is_apart) std::fill_n(sums.begin() + begin, part.size() * row_dim, 0.0f);
    context_.kernels.combine({.num_rows = part.size(),
                              .dim = row_dim,
                              .num_topk = num_outputs,
                              .residual = sums.data() + begin,
                              .residual_stride = row_dim,
                              .z = a.expert_output.data(),
                              .z_stride = row_dim,
                              .assignments = places + first,
                              .weights = weights + first,
                              .y = sums.data() + begin,
                              .y_stride = row_dim,
                              .scale = is_apart ? 1 : config.residual_scale});
    if (is_latent) PrepareRows(context_, a.latent, row_dim, part, context_.row_formats.ffn, a.gemm_input);
    if (!is_latent) AddSummed(part, layer);
  });
  if (!is_latent) return;
  ProjectFfnRows(rows, layer.latent_out_proj, row_dim, a.normed, config.model_dim);
  ForRowRanges(context_, rows, [&](RowRange part) { AddSummed(part, layer); });
}

void HostOperations::AddSummed(RowRange part, const LayerWeights& layer) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const int64_t begin = part.begin * config.model_dim, count = part.size() * config.model_dim;
  const bool is_normed = !layer.ffn_output_norm.empty();
  if (is_normed) {
    if (!layer.expert_output_norm.empty()) {
      NormOutputs(context_, part, layer.expert_output_norm, a.normed, a.normed);
    }
    if (config.shared_ffn_dim > 0) {
      context_.kernels.add(a.shared_output.data() + begin, config.shared_scale, count, a.normed.data() + begin);
    }
    NormOutputs(context_, part, layer.ffn_output_norm, a.normed, a.normed);
  }
  if (is_normed || config.latent_dim > 0) {
    context_.kernels.add(a.normed.data() + begin, config.residual_scale, count, a.residual.data() + begin);
  }
  if (!config.layer_scales) return;
  for (int64_t i = begin; i < begin + count; ++i) a.residual[i] *= layer.layer_scale[0];
}

std::span<const int32_t> HostOperations::Choices(RowRange rows) {
  const int64_t num_topk = context_.config.num_topk;
  return context_.activations.topk_idx.subspan(rows.begin * num_topk, rows.size() * num_topk);
}

void HostOperations::RoundOutputs(IndexRange places, CommFormat format) {
  const int64_t dim = context_.config.expert_row_dim();
  ForRowRanges(context_, places, [&](IndexRange part) {
    penstock::RoundOutputs(format, context_.activations.expert_output.subspan(part.begin * dim, part.size() * dim),
                           dim);
  });
}

std::vector<int64_t> HostOperations::ClearExpert(int64_t expert_idx) {
  Activations& a = context_.activations;
  const int64_t dim = context_.config.expert_row_dim();
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

}  // namespace penstock
