// The buffers of one pass over the model, sized once for the largest pass.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/expert_cache.h"
#include "penstock/model/model_config.h"
#include "penstock/tensor/dtype.h"

namespace penstock {

struct ActivationDims {
  int64_t max_rows = 0;        // rows of one pass
  int64_t max_logit_rows = 0;  // rows whose logits are wanted at once
  int64_t context_length = 0;
  int num_workers = 1;
};

// Spans have room for max_rows (or max_rows * num_topk assignments). The bf16 copies exist in bf16 computing only: they
// are what the GEMMs of FFNs and lm_head read, rounded from the f32 buffer beside them.
struct Activations {
  static uint64_t Bytes(const ModelConfig& config, ComputeDtype dtype, const ActivationDims& dims);
  static absl::StatusOr<Activations> Create(const ModelConfig& config, ComputeDtype dtype, const ActivationDims& dims);

  Arena arena;
  ActivationDims dims;

  std::span<float> residual;          // [num_rows, model_dim]
  std::span<float> normed;            // [num_rows, model_dim]
  std::span<BF16> gemm_input;         // [num_rows, model_dim] (bf16 computing)
  std::span<float> q;                 // [num_rows, num_heads * head_dim]
  std::span<float> k;                 // [num_rows, num_kv_heads * head_dim]
  std::span<float> v;                 // [num_rows, num_kv_heads * head_dim]
  std::span<float> attended;          // [num_rows, num_heads * head_dim]
  std::span<float> cos;               // [num_rows, head_dim / 2]
  std::span<float> sin;               // [num_rows, head_dim / 2]
  std::span<float> scores;            // [num_workers, num_heads / num_kv_heads, context_length]
  std::span<float> router_logits;     // [num_rows, num_experts]
  std::span<int32_t> topk_idx;        // [num_rows, num_topk]
  std::span<float> topk_weights;      // [num_rows, num_topk]
  std::span<int64_t> assignments;     // [num_rows, num_topk]: place among the assignments sorted by expert
  std::span<int64_t> assigned_row;    // [num_assignments]: the row of each place
  std::span<int64_t> group_offsets;   // [num_experts + 1]
  std::span<float> expert_input;      // [num_assignments, model_dim] (f32 computing)
  std::span<BF16> expert_input_bf16;  // [num_assignments, model_dim] (bf16 computing)
  std::span<float> gate;              // [num_assignments, expert_dim], becomes silu(gate) * up
  std::span<float> up;                // [num_assignments, expert_dim]
  std::span<BF16> hidden_bf16;        // [num_assignments, expert_dim] (bf16 computing)
  std::span<float> expert_output;     // [num_assignments, model_dim]
  std::span<float> logits;            // [max_logit_rows, vocab_size]
};

}  // namespace penstock
