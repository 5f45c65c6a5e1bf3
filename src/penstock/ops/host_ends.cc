// The beginning and the end of a pass on the host: embeddings, and logits.
#include <cmath>

#include "penstock/base/check.h"
#include "penstock/kernels/kernels.h"
#include "penstock/ops/host_operations.h"
#include "penstock/ops/host_rows.h"

namespace penstock {

using namespace host;  // NOLINT: the helpers of these operations

void HostOperations::Embed(const RowBatch& batch, RowRange rows) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  PENSTOCK_CHECK(batch.num_rows() <= a.dims.max_rows && rows.end <= batch.num_rows());
  const EmbeddingView& embedding = context_.weights.outer().embedding;
  ForRowRanges(context_, rows, [&](RowRange part) {
    for (int64_t row_idx = part.begin; row_idx < part.end; ++row_idx) {
      const int64_t token = batch.token_ids[row_idx];
      float* residual = a.residual.data() + row_idx * config.model_dim;
      if (embedding.packed.has_value()) {
        UnpackColumn(*embedding.packed, embedding.data, token, config.model_dim, residual);
      } else {
        const std::byte* source =
            embedding.data + static_cast<uint64_t>(token * config.model_dim) * SizeOf(embedding.dtype);
        context_.kernels.to_f32(embedding.dtype, source, config.model_dim, residual);
      }
      if (config.embedding_scale != 1) {
        for (int64_t d = 0; d < config.model_dim; ++d) residual[d] *= config.embedding_scale;
      }
    }
  });
  SetAngles(batch, rows);
}

void HostOperations::SetAngles(const RowBatch& batch, RowRange rows) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  ForRowRanges(context_, rows, [&](RowRange part) {
    for (int64_t row_idx = part.begin; row_idx < part.end; ++row_idx) {
      // Angles are in f32, as in the reference implementation.
      const int64_t pos = batch.positions[row_idx];
      if (config.query_scale.is_on()) a.query_scales[row_idx] = config.query_scale.At(pos);
      float* cos = a.cos.data() + row_idx * config.num_angles();
      float* sin = a.sin.data() + row_idx * config.num_angles();
      const auto fill = [&](const Rope& kind) {
        const RopeFrequencies& rope = kind.Of(batch.sequence_lengths[row_idx]);
        for (int64_t i = 0; i < kind.rotary_dim / 2; ++i) {
          const float angle = static_cast<float>(pos) * rope.frequencies[i];
          *cos++ = std::cos(angle) * rope.scale;
          *sin++ = std::sin(angle) * rope.scale;
        }
      };
      fill(config.rope);
      for (const Rope& rope : config.other_ropes) fill(rope);
    }
  });
}

void HostOperations::Logits(std::span<const int64_t> rows) {
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const OuterWeights& outer = context_.weights.outer();
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  PENSTOCK_CHECK(num_rows <= a.dims.max_logit_rows && num_rows <= a.dims.max_rows);
  const int64_t dim = config.model_dim;
  for (int64_t i = 0; i < num_rows; ++i) {
    context_.kernels.norm({.num_rows = 1,
                           .dim = dim,
                           .x = a.residual.data() + rows[i] * dim,
                           .x_stride = dim,
                           .weight = outer.final_norm.data(),
                           .eps = config.norm_eps,
                           .out = a.normed.data() + i * dim,
                           .out_stride = dim,
                           .norm = config.norm,
                           .bias = DataOrNull(outer.final_norm_bias)});
  }
  const kernels::RowFormat format = context_.row_formats.lm_head;
  PrepareRows(context_, a.normed, dim, {0, num_rows}, format, a.gemm_input);
  const GemmPart head[] = {{{.num_rows = num_rows,
                             .inner_dim = dim,
                             .x = ViewOf(a.gemm_input, format, dim),
                             .w = outer.lm_head,
                             .bias = DataOrNull(outer.lm_head_bias),
                             .y = a.logits.data(),
                             .y_stride = config.vocab_size},
                            config.vocab_size}};
  RunGemms(context_, head);
  if (config.logit_scale != 1) {
    for (int64_t i = 0; i < num_rows * config.vocab_size; ++i) a.logits[i] *= config.logit_scale;
  }
  if (config.logit_cap == 0) return;
  ForRowRanges(context_, {0, num_rows * config.vocab_size}, [&](IndexRange part) {
    context_.kernels.soft_cap(config.logit_cap, part.size(), a.logits.data() + part.begin);
  });
}

}  // namespace penstock
