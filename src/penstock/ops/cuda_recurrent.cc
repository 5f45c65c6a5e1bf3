// CudaOperations: recurrent layers (Recurrent in model/model_config.h).
#include <algorithm>
#include <cmath>

#include "absl/functional/function_ref.h"
#include "penstock/base/check.h"
#include "penstock/kernels/kernels.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/ops/cuda_operations.h"
#include "penstock/ops/cuda_table.h"
#include "penstock/ops/cuda_workspace.h"
#include "penstock/ops/recurrent_layers.h"

namespace penstock {
namespace {

// Rows of one sequence, and the copies of its state that are due after the last of them.
struct StateSegment {
  RowRange rows;
  std::span<const StateCopy> copies;
  bool goes_on = false;  // with the sequence of the segment before
};

std::vector<StateSegment> SegmentsOf(const RowBatch& batch, RowRange rows) {
  std::vector<StateSegment> segments;
  const std::span<const StateCopy> all(batch.state_copies);
  size_t next = 0;
  for (const RowRange& run : SequenceRuns(batch, rows)) {
    for (int64_t begin = run.begin; begin < run.end;) {
      while (next < all.size() && all[next].row < begin) ++next;
      const bool has_copy = next < all.size() && all[next].row < run.end;
      const int64_t end = has_copy ? all[next].row + 1 : run.end;
      size_t end_copy = next;
      while (end_copy < all.size() && all[end_copy].row < end) ++end_copy;
      segments.push_back(
          {.rows = {begin, end}, .copies = all.subspan(next, end_copy - next), .goes_on = begin > run.begin});
      next = end_copy;
      begin = end;
    }
  }
  return segments;
}

// The tables of cuda::StateRuns, as far as they fit into one upload.
class StateTable {
 public:
  StateTable(int64_t num_parts, size_t other_bytes, size_t max_bytes)
      : num_parts_(num_parts), other_bytes_(other_bytes), max_bytes_(max_bytes) {}

  bool is_empty() const { return begins_.empty(); }
  bool HasRoomFor(const StateSegment& segment) const {
    const size_t num_copies = segment.copies.size() + copy_rows_.size();
    const size_t num_runs = begins_.size() + (segment.goes_on ? 0 : 1);
    return StateTableBytes(num_parts_, num_runs, num_copies) + other_bytes_ <= max_bytes_;
  }
  // `part_of` gives a part of the state that lies in pages.
  void Add(const StateSegment& segment, std::span<std::byte* const> pages,
           absl::FunctionRef<float*(std::span<std::byte* const>, int64_t)> part_of) {
    if (is_empty() || !segment.goes_on) {
      begins_.push_back(segment.rows.begin);
      for (int64_t i = 0; i < num_parts_; ++i) parts_.push_back(part_of(pages, i));
    }
    end_ = segment.rows.end;
    for (const StateCopy& copy : segment.copies) {
      copy_rows_.push_back(copy.row);
      for (int64_t i = 0; i < num_parts_; ++i) copy_parts_.push_back(part_of(copy.pages, i));
    }
  }
  // Uploads the tables and `others`, which visit() gets, too, and starts anew.
  void Visit(DeviceTables& tables, std::span<const float> others,
             absl::FunctionRef<void(const cuda::StateRuns&, const float*)> visit) {
    if (is_empty()) return;
    const auto num_runs = std::ssize(begins_);
    begins_.push_back(end_);
    CudaTable table;
    const size_t begins_at = table.Add(std::span<const int64_t>(begins_));
    const size_t parts_at = table.Add(std::span<float* const>(parts_));
    const size_t copy_rows_at = table.Add(std::span<const int64_t>(copy_rows_));
    const size_t copy_parts_at = table.Add(std::span<float* const>(copy_parts_));
    const size_t others_at = table.Add(others);
    const std::byte* const on_device = tables.Upload(table.bytes());
    visit({.num_runs = num_runs,
           .num_parts = num_parts_,
           .begins = reinterpret_cast<const int64_t*>(on_device + begins_at),
           .parts = reinterpret_cast<float* const*>(on_device + parts_at),
           .num_copies = std::ssize(copy_rows_),
           .copy_rows = reinterpret_cast<const int64_t*>(on_device + copy_rows_at),
           .copy_parts = reinterpret_cast<float* const*>(on_device + copy_parts_at)},
          reinterpret_cast<const float*>(on_device + others_at));
    begins_.clear();
    parts_.clear();
    copy_rows_.clear();
    copy_parts_.clear();
  }

 private:
  int64_t num_parts_;
  size_t other_bytes_, max_bytes_;
  int64_t end_ = 0;
  std::vector<int64_t> begins_, copy_rows_;
  std::vector<float*> parts_, copy_parts_;
};

}  // namespace

// Calls visit(cuda::StateRuns, others on the device) for parts of `rows` whose tables fit into one upload.
void CudaOperations::ForEachStatePart(const RowBatch& batch, RowRange rows, const StateParts& parts,
                                      absl::FunctionRef<void(const cuda::StateRuns&, const float*)> visit) {
  StateTable table(parts.num_parts, parts.others.size_bytes(), args_.tables.max_bytes());
  for (const StateSegment& segment : SegmentsOf(batch, rows)) {
    if (!table.is_empty() && !table.HasRoomFor(segment)) table.Visit(args_.tables, parts.others, visit);
    PENSTOCK_CHECK(!table.is_empty() || table.HasRoomFor({.rows = segment.rows, .copies = segment.copies}));
    table.Add(segment, batch.state_pages[segment.rows.begin], parts.part_of);
  }
  table.Visit(args_.tables, parts.others, visit);
}

void CudaOperations::RecurrentGates(RowRange rows, const LayerWeights& layer) {
  const Recurrent& r = args_.config.recurrent;
  RecurrentRows& a = args_.activations.recurrent;
  const bool has_log = !r.projects_values();
  cuda::RecurrentGates({.num_decays = r.decay_cols(),
                        .decays_of_log = has_log ? r.decay_cols() / r.num_value_heads : 1,
                        .decay_bias = layer.decay_bias.data(),
                        .decay_log = has_log ? layer.decay_log.data() : nullptr,
                        .decay_floor = r.decay_floor,
                        .decay = a.decay.data() + rows.begin * r.decay_cols(),
                        .num_betas = r.beta_cols(),
                        .beta_is_step = !r.is_delta() && has_log,
                        .beta = a.beta.data() + rows.begin * r.beta_cols()},
                       rows.size(), args_.stream);
}

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
  RecurrentGates(rows, layer);
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
  RecurrentGates(rows, layer);
}

void CudaOperations::Convolve(const cuda::StateRuns& runs, const LayerWeights& layer) {
  const Recurrent& r = args_.config.recurrent;
  const RecurrentRows& a = args_.activations.recurrent;
  const bool is_alone = r.kind == RecurrentKind::kShortConv;
  cuda::ShortConvLaunch launch{.runs = runs,
                               .num_channels = r.num_channels(),
                               .part_channels = kConvPartChannels,
                               .width = r.conv_width,
                               .bias = layer.conv_bias.empty() ? nullptr : layer.conv_bias.data(),
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
                   .skip = layer.skip.empty() ? nullptr : layer.skip.data(),
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
    ForEachStatePart(batch, rows, {.num_parts = num_parts, .part_of = conv_part, .others = {}},
                     [&](const cuda::StateRuns& runs, const float*) { Convolve(runs, weights); });
  }
  if (!r.has_matrix()) return;
  if (r.is_delta()) NormaliseKeys(rows);
  if (r.projects_values()) ProjectValues(rows, weights);
  const bool is_lightning = r.kind == RecurrentKind::kLightning;
  const std::vector<float> decays = is_lightning ? LightningDecays(args_.config, layer_idx) : std::vector<float>();
  const auto piece = [&](Pages pages, int64_t idx) { return states.piece(pages, layer, idx); };
  ForEachStatePart(batch, rows, {.num_parts = states.num_pieces(), .part_of = piece, .others = decays},
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
