#include "penstock/ops/activations.h"

#include <algorithm>

#include "penstock/base/checked.h"
#include "penstock/base/status.h"
#include "penstock/kernels/kernels.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {
namespace {

// Finds the format of rows that all matrices of a kind can take.
class CommonRowFormat {
 public:
  CommonRowFormat(ComputeDtype dtype, ActivationFormat activations) : dtype_(dtype), activations_(activations) {}

  void Add(const TensorInfo* tensor) {
    if (tensor == nullptr) return;
    const WeightFormat format = ResidentFormat(*tensor, dtype_);
    takes_codes_ = takes_codes_ && activations_ == ActivationFormat::kInt8 && MultipliesInt8Rows(format);
  }
  kernels::RowFormat format() const {
    if (takes_codes_) return kernels::RowFormat::kInt8;
    return dtype_ == ComputeDtype::kBF16 ? kernels::RowFormat::kBF16 : kernels::RowFormat::kF32;
  }

 private:
  ComputeDtype dtype_;
  ActivationFormat activations_;
  bool takes_codes_ = true;
};

// Returns the maximum bytes of prepared inputs that MLA's projections of a row take at once.
int64_t MlaInputBytes(const ModelConfig& config, kernels::RowFormat format) {
  const Mla& mla = config.mla;
  if (!mla.is_on()) return 0;
  const auto of_heads = [&](int64_t dim) { return config.num_heads * kernels::RowBytes(format, dim); };
  return std::max({kernels::RowBytes(format, std::max<int64_t>(1, mla.q_lora_rank)), of_heads(mla.nope_dim),
                   of_heads(mla.kv_lora_rank), kernels::RowBytes(format, config.num_heads * mla.value_dim)});
}

// Returns the maximum bytes of prepared inputs of a row, except those of FFNs between their projections.
int64_t GemmInputBytes(const ModelConfig& config, const RowFormats& formats) {
  const Recurrent& recurrent = config.recurrent;
  return std::max(
      {kernels::RowBytes(formats.attention, config.model_dim),
       kernels::RowBytes(formats.ffn, std::max(config.model_dim, config.latent_dim)),
       kernels::RowBytes(formats.attention, std::max({config.attended_dim(), recurrent.values_dim(), recurrent.rank})),
       MlaInputBytes(config, formats.attention), kernels::RowBytes(formats.lm_head, config.model_dim)});
}

// Does for recurrent layers what VisitBuffers() does for others.
template <typename Visitor>
void VisitRecurrent(RecurrentRows& a, const Recurrent& recurrent, int64_t num_rows, Visitor&& visit) {
  visit(a.q, num_rows * recurrent.keys_dim());
  visit(a.k, num_rows * recurrent.k_cols());
  visit(a.v, num_rows * recurrent.values_dim());
  visit(a.beta, num_rows * recurrent.beta_cols());
  visit(a.decay, num_rows * recurrent.decay_cols());
  visit(a.out, num_rows * recurrent.values_dim());
  visit(a.gate, num_rows * recurrent.values_dim());
  visit(a.decay_a, num_rows * recurrent.rank);
  visit(a.gate_a, recurrent.kind == RecurrentKind::kKimiDelta ? num_rows * recurrent.rank : 0);
}

// Does so for layers with an indexer.
template <typename Visitor>
void VisitIndexer(IndexerRows& a, const ModelConfig& config, const ActivationDims& dims, Visitor&& visit) {
  const Indexer& indexer = config.indexer;
  if (!indexer.is_on()) return;
  const int64_t rows = dims.max_rows, positions = dims.context_length + kKvPageTokens;
  const int64_t selected = MaxSelected(config, dims.context_length);
  const int64_t num_pages = (selected + kKvPageTokens - 1) / kKvPageTokens;
  visit(a.q, rows * indexer.q_dim());
  visit(a.k, rows * indexer.head_dim);
  visit(a.weights, rows * indexer.num_heads);
  visit(a.selected, rows * selected);
  visit(a.scores, dims.num_workers * positions);
  visit(a.scratch, dims.num_workers * kernels::IndexScratchFloats(indexer.num_heads, indexer.head_dim));
  visit(a.gathered,
        dims.num_workers * num_pages * KvBlock{KvFormat::kF32, config.head_dim, config.values_in_key()}.bytes());
}

// Does so for MLA.
template <typename Visitor>
void VisitMla(Activations& a, const ModelConfig& config, int64_t num_rows, Visitor&& visit) {
  const Mla& mla = config.mla;
  if (!mla.is_on()) return;
  visit(a.q_compressed, num_rows * mla.q_lora_rank);
  visit(a.q_heads, num_rows * config.num_heads * (mla.nope_dim + mla.rope_dim));
  visit(a.value_heads, num_rows * config.num_heads * mla.value_dim);
}

// Says whether the output of the shared FFN is kept to be normed, alone or with those of experts.
bool HoldsSharedOutput(const ModelConfig& config) {
  return config.output_norms != OutputNorms::kNone && config.shared_ffn_dim > 0;
}

// Calls visit(span, count) for each buffer: one list serves both to count and to allocate.
template <typename Visitor>
void VisitBuffers(Activations& a, const ModelConfig& config, const RowFormats& formats, const ActivationDims& dims,
                  Visitor&& visit) {
  const int64_t rows = dims.max_rows;
  const int64_t num_assignments = rows * config.num_topk;
  const bool has_ranks = dims.num_ranks > 1;
  // Assignments that this rank's experts compute: any rank's row may choose any of them.
  const int64_t num_computed =
      has_ranks ? dims.max_expert_rows() * std::min(config.num_topk, dims.experts_of_layer) : num_assignments;
  const int64_t gemm_input_bytes = GemmInputBytes(config, formats);
  // A layer without experts computes like one expert to which every row is assigned.
  const int64_t hidden_bytes =
      std::max(num_computed * kernels::RowBytes(formats.ffn, config.expert_dim),
               rows * kernels::RowBytes(formats.ffn, std::max(config.dense_ffn_dim, config.shared_ffn_dim)));
  const bool is_heads = dims.part == ActivationDims::Part::kHeads;
  const int64_t attended_rows = is_heads ? dims.max_expert_rows() : rows;
  visit(a.q, attended_rows * config.q_dim());
  visit(a.k, attended_rows * config.kv_dim());
  visit(a.v, attended_rows * config.v_dim());
  visit(a.attended, attended_rows * config.attended_dim());
  VisitIndexer(a.indexer, config, dims, visit);
  VisitRecurrent(a.recurrent, config.recurrent, rows, visit);  // ranks do not share such heads
  visit(a.cos, attended_rows * config.num_angles());
  visit(a.sin, attended_rows * config.num_angles());
  visit(a.query_scales, config.query_scale.is_on() ? attended_rows : 0);
  visit(a.attention_scratch, dims.num_workers * AttentionScratchFloats(config, dims.context_length));
  if (is_heads) {
    visit(a.gemm_input, attended_rows * kernels::RowBytes(formats.attention, config.model_dim));
    return;
  }
  visit(a.residual, rows * config.model_dim);
  visit(a.topk_idx, num_assignments);
  visit(a.topk_ahead_, kMaxAhead * num_assignments);
  visit(a.router_logits, rows * config.num_experts);
  visit(a.logits, dims.max_logit_rows * config.vocab_size);
  visit(a.best, dims.max_logit_rows);
  // Beside a device, the host may project the keys of a convolution's output.
  if (dims.part == ActivationDims::Part::kAll || config.recurrent.projects_values()) {
    visit(a.gemm_input, rows * gemm_input_bytes);
  }
  if (dims.part == ActivationDims::Part::kAll) {
    visit(a.normed, rows * config.model_dim);
    VisitMla(a, config, rows, visit);
    visit(a.attention_gate, rows * config.gate_dim());
    visit(a.layer_input, config.parallel_experts || config.parallel_ffn ? rows * config.model_dim : 0);
    visit(a.shared_gate, config.shared_gate ? rows : 0);
    visit(a.shared_output, HoldsSharedOutput(config) ? rows * config.model_dim : 0);
    visit(a.topk_weights, num_assignments);
    visit(a.latent, rows * config.latent_dim);
    visit(a.deferred, config.num_identity_experts > 0 || config.defers_experts ? rows * config.model_dim : 0);
    visit(a.ahead_scores, rows * config.num_experts);
    visit(a.ahead_weights, num_assignments);
  }
  if (dims.part == ActivationDims::Part::kHost) return;
  const int64_t row_dim = config.expert_row_dim(), input_bytes = kernels::RowBytes(formats.ffn, row_dim);
  visit(a.ffn_input, dims.max_expert_rows() * input_bytes);
  visit(a.assignments, num_assignments);
  visit(a.assigned_row, num_computed);
  visit(a.group_offsets, config.num_experts + 1);
  visit(a.expert_input, num_computed * input_bytes);
  visit(a.ffn_scratch, dims.num_workers * FfnScratchFloats(dims.max_expert_rows()));
  visit(a.hidden, hidden_bytes);
  // A message ends with a trailer, which lies behind its outputs until it has been read.
  const int64_t trailer_bytes = has_ranks ? RankTrailerBytes(config) : 0;
  const int64_t num_more = dims.cuts_experts ? 2 * dims.max_expert_rows() : num_assignments;
  visit(a.expert_output, (num_computed + (has_ranks ? num_more : 0)) * row_dim + trailer_bytes / 4);
  const int64_t output_bytes =
      4 * std::min(config.num_topk, dims.experts_of_layer) * row_dim;  // of a row of another rank
  visit(a.to_rank, has_ranks ? rows * std::max(input_bytes, output_bytes) + trailer_bytes : 0);
}

}  // namespace

int64_t RankTrailerBytes(const ModelConfig& config) { return 8 * config.num_experts + kMaxReasonBytes + 20; }

int64_t AttentionHeads(const ModelConfig& config, int64_t layer_idx) {
  constexpr int64_t kMaxHeadsAtOnce = 32;
  return std::min(config.num_heads_of(layer_idx) / config.heads_of(layer_idx).num_kv_heads, kMaxHeadsAtOnce);
}

int64_t PartsOfKvHead(const ModelConfig& config, int64_t layer_idx) {
  const int64_t group = config.num_heads_of(layer_idx) / config.heads_of(layer_idx).num_kv_heads;
  const int64_t max_heads = AttentionHeads(config, layer_idx);
  return (group + max_heads - 1) / max_heads;
}

int64_t AttentionRows(const ModelConfig& config, int64_t layer_idx) {
  return std::max<int64_t>(1, kernels::kAttentionHeads / AttentionHeads(config, layer_idx));
}

int64_t AttentionScratchFloats(const ModelConfig& config, int64_t context_length) {
  int64_t max = 0;
  for (size_t layer_idx = 0; layer_idx < std::max<size_t>(1, config.layer_heads.size()); ++layer_idx) {
    const auto layer = static_cast<int64_t>(layer_idx);
    max = std::max(
        max, kernels::AttentionScratchFloats(AttentionRows(config, layer) * AttentionHeads(config, layer),
                                             config.heads_of(layer).head_dim, MaxSelected(config, context_length)));
  }
  return max;
}

int64_t MaxSelected(const ModelConfig& config, int64_t context_length) {
  return config.indexer.is_on() ? std::min(config.indexer.num_topk, context_length) : context_length;
}

int64_t FfnScratchFloats(int64_t max_rows) {
  // A pass with few rows takes more columns at a time, so that reading weights seldom pauses. This leaves room for
  // them.
  constexpr int64_t kMinRows = 16;
  return 2 * (kFfnScratchCols + kFfnScratchPadding) * std::max(max_rows, kMinRows);
}

RowFormats RowFormatsOf(const WeightMap& map, ComputeDtype dtype, ActivationFormat activations) {
  // Attention in bf16 would lead to other experts (docs/decisions/dtype.md), so its rows stay f32.
  CommonRowFormat attention(ComputeDtype::kF32, activations), ffn(dtype, activations), lm_head(dtype, activations);
  lm_head.Add(map.lm_head);
  for (const LayerTensors& layer : map.layers) {
    layer.ForEachDense([](const TensorInfo&) {},
                       [&](const TensorInfo& tensor, MatrixKind kind) {
                         if (kind == MatrixKind::kAttention) attention.Add(&tensor);
                         if (kind == MatrixKind::kFfn) ffn.Add(&tensor);
                       });
    for (const FfnTensors& expert : layer.experts) {
      expert.ForEach([&](const TensorInfo& tensor) { ffn.Add(&tensor); });
    }
  }
  return {.attention = attention.format(), .ffn = ffn.format(), .lm_head = lm_head.format()};
}

uint64_t Activations::Bytes(const ModelConfig& config, const RowFormats& formats, const ActivationDims& dims) {
  Activations a;
  uint64_t bytes = 0;
  VisitBuffers(a, config, formats, dims, [&](const auto& span, int64_t count) {
    bytes += RoundUp(static_cast<uint64_t>(count) * sizeof(span[0]), kCacheLineBytes);
  });
  return RoundUp(bytes, kPageBytes);
}

absl::StatusOr<Activations> Activations::Create(Memory& memory, const ModelConfig& config, const RowFormats& formats,
                                                const ActivationDims& dims) {
  Activations a;
  a.dims = dims;
  PENSTOCK_ASSIGN_OR_RETURN(a.arena, memory.Map(Bytes(config, formats, dims)));
  ArenaAllocator allocator(a.arena);
  VisitBuffers(a, config, formats, dims, [&](auto& span, int64_t count) {
    span = allocator.Take<std::remove_reference_t<decltype(span[0])>>(count);
  });
  return a;
}

}  // namespace penstock
