// HostOperations: layers with gated DeltaNet in place of attention (DeltaNet in model/model_config.h).
#include <algorithm>
#include <cmath>

#include "penstock/kernels/kernels.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/ops/host_operations.h"
#include "penstock/ops/host_rows.h"

namespace penstock {

using namespace host;  // NOLINT: the helpers of these operations

namespace {

constexpr float kLengthEps = 1e-6f;

// The weights with which a norm divides q and k by their lengths, and q by sqrt(key_dim), too: [key_dim].
struct LengthWeights {
  std::vector<float> q, k;

  explicit LengthWeights(int64_t key_dim)
      : q(static_cast<size_t>(key_dim), 1 / static_cast<float>(key_dim)),
        k(q.size(), 1 / std::sqrt(static_cast<float>(key_dim))) {}
};

void Normalise(const OpContext& context, const LengthWeights& weights, RowRange rows, int64_t key_head) {
  const DeltaNet& d = context.config.delta_net;
  const auto dim = static_cast<float>(d.key_dim);
  for (const auto& [buffer, weight] : {std::pair(&context.activations.delta_net.q, &weights.q),
                                       std::pair(&context.activations.delta_net.k, &weights.k)}) {
    float* const x = buffer->data() + rows.begin * d.keys_dim() + key_head * d.key_dim;
    context.kernels.norm({.num_rows = rows.size(),
                          .dim = d.key_dim,
                          .x = x,
                          .x_stride = d.keys_dim(),
                          .weight = weight->data(),
                          .eps = kLengthEps / dim,
                          .out = x,
                          .out_stride = d.keys_dim()});
  }
}

// Applies the short convolutions of a key head's q and k and of its values. `kept`: the inputs of the positions before.
void Convolve(const OpContext& context, const LayerWeights& layer, RowRange rows, int64_t key_head, float* kept) {
  const DeltaNet& d = context.config.delta_net;
  DeltaNetRows& a = context.activations.delta_net;
  const int64_t num_channels = 2 * d.key_dim + d.values_of_key() * d.value_dim;
  struct Part {
    float* x;
    int64_t stride;         // of x
    int64_t first_channel;  // x's, among all channels
    int64_t first;          // the part's, in x
    int64_t count;
  };
  int64_t first_kept = 0;
  const auto convolve = [&](const Part& part) {
    context.kernels.short_conv({.num_rows = rows.size(),
                                .num_channels = part.count,
                                .width = d.conv_width,
                                .x = part.x + rows.begin * part.stride + part.first,
                                .x_stride = part.stride,
                                .weight = layer.conv_weight.data() + part.first_channel + part.first,
                                .weight_stride = d.num_channels(),
                                .state = kept + first_kept,
                                .state_stride = num_channels});
    first_kept += part.count;
  };
  convolve({a.q.data(), d.keys_dim(), 0, key_head * d.key_dim, d.key_dim});
  convolve({a.k.data(), d.keys_dim(), d.keys_dim(), key_head * d.key_dim, d.key_dim});
  for (int64_t i = 0; i < d.values_of_key(); ++i) {
    convolve({a.v.data(), d.values_dim(), 2 * d.keys_dim(), d.value_head(key_head, i) * d.value_dim, d.value_dim});
  }
}

// Rows of one sequence, and a key head of a recurrent layer.
struct KeyHeadRows {
  RowRange rows;
  int64_t layer;
  int64_t key_head;
  std::span<std::byte* const> pages;  // of the sequence's state
};

// Takes rows through the convolutions and the delta rule of a key head and its value heads.
void AdvanceKeyHead(const OpContext& context, const LayerWeights& weights, const LengthWeights& lengths,
                    const RecurrentState& states, const KeyHeadRows& of) {
  const DeltaNet& d = context.config.delta_net;
  DeltaNetRows& a = context.activations.delta_net;
  Convolve(context, weights, of.rows, of.key_head, states.conv_inputs(of.pages, of.layer, of.key_head));
  Normalise(context, lengths, of.rows, of.key_head);
  for (int64_t i = 0; i < d.values_of_key(); ++i) {
    const int64_t head = d.value_head(of.key_head, i);
    const int64_t keys = of.rows.begin * d.keys_dim() + of.key_head * d.key_dim;
    const int64_t values = of.rows.begin * d.values_dim() + head * d.value_dim;
    const int64_t gates = of.rows.begin * d.num_value_heads + head;
    context.kernels.delta_rule({.num_rows = of.rows.size(),
                                .key_dim = d.key_dim,
                                .value_dim = d.value_dim,
                                .q = a.q.data() + keys,
                                .k = a.k.data() + keys,
                                .k_stride = d.keys_dim(),
                                .v = a.v.data() + values,
                                .v_stride = d.values_dim(),
                                .decay = a.decay.data() + gates,
                                .beta = a.beta.data() + gates,
                                .gate_stride = d.num_value_heads,
                                .state = states.matrix(of.pages, of.layer, head),
                                .out = a.out.data() + values,
                                .out_stride = d.values_dim()});
  }
}

// Returns runs of neighbouring rows of one sequence.
std::vector<RowRange> SequenceRuns(const RowBatch& batch, RowRange rows) {
  std::vector<RowRange> runs;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if (runs.empty() || batch.sequence_ids[row] != batch.sequence_ids[runs.back().begin]) runs.push_back({row, row});
    ++runs.back().end;
  }
  return runs;
}

}  // namespace

void HostOperations::ProjectDeltaNet(RowRange rows, int64_t layer_idx) {
  const DeltaNet& d = context_.config.delta_net;
  DeltaNetRows& a = context_.activations.delta_net;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  Project(rows, {{layer.q_proj, {}, a.q, d.keys_dim()},
                 {layer.k_proj, {}, a.k, d.keys_dim()},
                 {layer.v_proj, {}, a.v, d.values_dim()},
                 {layer.gate_proj, {}, a.gate, d.values_dim()},
                 {layer.beta_proj, {}, a.beta, d.num_value_heads},
                 {layer.decay_proj, {}, a.decay, d.num_value_heads}});
  ForRowRanges(context_, rows, [&](RowRange part) {
    for (int64_t row = part.begin; row < part.end; ++row) {
      context_.kernels.delta_gates({.num_heads = d.num_value_heads,
                                    .decay_bias = layer.decay_bias.data(),
                                    .decay_log = layer.decay_log.data(),
                                    .beta = a.beta.data() + row * d.num_value_heads,
                                    .decay = a.decay.data() + row * d.num_value_heads});
    }
  });
}

void HostOperations::AdvanceState(const RowBatch& batch, RowRange rows, int64_t layer_idx,
                                  const RecurrentState& states) {
  const DeltaNet& d = context_.config.delta_net;
  const int64_t layer = context_.config.recurrent_layer_of(layer_idx);
  const std::vector<RowRange> runs = SequenceRuns(batch, rows);
  const LengthWeights lengths(d.key_dim);
  context_.pool.ParallelFor(std::ssize(runs) * d.num_key_heads, [&](int64_t task_idx, int) {
    RowRange part = runs[task_idx / d.num_key_heads];
    const int64_t key_head = task_idx % d.num_key_heads, end = part.end;
    const auto pages = batch.state_pages[part.begin];
    const LayerWeights& weights = context_.weights.layer(layer_idx);
    for (const StateCopy& copy : batch.state_copies) {
      if (copy.row < part.begin || copy.row >= end) continue;
      part.end = copy.row + 1;
      AdvanceKeyHead(context_, weights, lengths, states, {part, layer, key_head, pages});
      states.CopyKeyHead(pages, copy.pages, layer, key_head);
      part = {part.end, end};
    }
    if (part.size() > 0) AdvanceKeyHead(context_, weights, lengths, states, {part, layer, key_head, pages});
  });
}

void HostOperations::GateDeltaNet(RowRange rows, int64_t layer_idx) {
  const DeltaNet& d = context_.config.delta_net;
  DeltaNetRows& a = context_.activations.delta_net;
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  context_.pool.ParallelFor(rows.size(), [&](int64_t i, int) {
    const int64_t first = (rows.begin + i) * d.values_dim();
    float* const x = a.out.data() + first;
    context_.kernels.norm({.num_rows = d.num_value_heads,
                           .dim = d.value_dim,
                           .x = x,
                           .x_stride = d.value_dim,
                           .weight = layer.delta_norm.data(),
                           .eps = context_.config.norm_eps,
                           .out = x,
                           .out_stride = d.value_dim});
    context_.kernels.swiglu({.num_rows = 1,
                             .dim = d.values_dim(),
                             .gate = a.gate.data() + first,
                             .gate_stride = d.values_dim(),
                             .up = x,
                             .up_stride = d.values_dim(),
                             .out = x,
                             .out_stride = d.values_dim()});
  });
}

}  // namespace penstock
