#include "penstock/ops/recurrent_layers.h"

#include <cmath>

namespace penstock {

std::vector<ConvInput> ConvInputs(const Recurrent& r, const RecurrentRows& a, const LayerWeights& layer) {
  const int64_t keys = r.keys_dim(), values = r.values_dim();
  switch (r.kind) {
    case RecurrentKind::kDeltaNet:
      return {{a.q, keys, layer.conv_weight, 0},
              {a.k, keys, layer.conv_weight, keys},
              {a.v, values, layer.conv_weight, 2 * keys}};
    case RecurrentKind::kKimiDelta:
      return {{a.q, keys, layer.conv_weight, 0},
              {a.k, keys, layer.conv_k_weight, 0},
              {a.v, values, layer.conv_v_weight, 0}};
    case RecurrentKind::kMamba2:
      return {{a.v, values, layer.conv_weight, 0},
              {a.k, keys, layer.conv_weight, values},
              {a.q, keys, layer.conv_weight, values + keys}};
    case RecurrentKind::kMamba1:
    case RecurrentKind::kShortConv:
    case RecurrentKind::kLightning: break;
  }
  return {{a.v, values, layer.conv_weight, 0}};
}

kernels::RecurrentGatesArgs GatesOf(const Recurrent& r, const RecurrentRows& a, const LayerWeights& layer,
                                    int64_t row) {
  const bool has_log = !r.projects_values();
  return {.num_decays = r.decay_cols(),
          .decays_of_log = has_log ? r.decay_cols() / r.num_value_heads : 1,
          .decay_bias = layer.decay_bias.data(),
          .decay_log = has_log ? layer.decay_log.data() : nullptr,
          .decay_floor = r.decay_floor,
          .decay = a.decay.data() + row * r.decay_cols(),
          .num_betas = r.beta_cols(),
          .beta_is_step = !r.is_delta() && has_log,
          .beta = a.beta.data() + row * r.beta_cols()};
}

std::vector<float> LightningDecays(const ModelConfig& config, int64_t layer_idx) {
  const auto num_heads = static_cast<double>(config.recurrent.num_value_heads);
  const double of_layer =
      1 - static_cast<double>(layer_idx) / (static_cast<double>(config.num_layers - 1) + 1e-5) + 1e-5;
  std::vector<float> decays;
  for (int64_t head = 0; head < config.recurrent.num_value_heads; ++head) {
    const double slope = std::exp2(-8 / num_heads * static_cast<double>(head + 1)) * of_layer;
    decays.push_back(static_cast<float>(std::exp(-slope)));
  }
  return decays;
}

std::vector<RowRange> SequenceRuns(const RowBatch& batch, RowRange rows) {
  std::vector<RowRange> runs;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if (runs.empty() || batch.sequence_ids[row] != batch.sequence_ids[runs.back().begin]) runs.push_back({row, row});
    ++runs.back().end;
  }
  return runs;
}

}  // namespace penstock
