#include "penstock/routing/trace_routing.h"

#include <algorithm>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {

TraceRouting::TraceRouting(std::unique_ptr<RoutingTraceReader> reader, const ModelConfig& config)
    : reader_(std::move(reader)), num_topk_(config.num_topk), moe_layer_of_(static_cast<size_t>(config.num_layers)) {
  for (int64_t layer_idx = 0, moe_layer = 0; layer_idx < config.num_layers; ++layer_idx) {
    moe_layer_of_[static_cast<size_t>(layer_idx)] = moe_layer;
    moe_layer += config.layer_has_experts[layer_idx] ? 1 : 0;
  }
  records_.resize(static_cast<size_t>(config.num_moe_layers()));
}

absl::StatusOr<std::unique_ptr<TraceRouting>> TraceRouting::Open(const std::string& path, const ModelConfig& config) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<RoutingTraceReader> reader, RoutingTraceReader::Open(path));
  const RoutingTraceHeader& header = reader->header();
  if (header.num_layers != config.num_moe_layers() || header.num_experts != config.num_experts ||
      header.num_topk != config.num_topk) {
    return InputError(
        "{}: the trace is of a model with {} MoE layers, {} experts and top-{}, expected {}, {} and top-{}",
        Printable(path), header.num_layers, header.num_experts, header.num_topk, config.num_moe_layers(),
        config.num_experts, config.num_topk);
  }
  return std::unique_ptr<TraceRouting>(new TraceRouting(std::move(reader), config));
}

absl::StatusOr<bool> TraceRouting::NextStep() {
  for (size_t layer = 0; layer < records_.size();) {
    PENSTOCK_ASSIGN_OR_RETURN(const RoutingTraceEvent event, reader_->Next(records_[layer]));
    if (event != RoutingTraceEvent::kRecord) return false;
    const RoutingTraceRecord& record = records_[layer];
    const bool begins = record.layer_idx == 0;
    const bool goes_on = layer > 0 && record.layer_idx == static_cast<int64_t>(layer) &&
                         record.step_idx == records_[0].step_idx && record.sequence_ids == records_[0].sequence_ids &&
                         record.positions == records_[0].positions;
    if (begins && layer > 0) std::swap(records_[0], records_[layer]);  // the step before it was not whole
    layer = begins ? 1 : goes_on ? layer + 1 : 0;
  }
  return !records_.empty();
}

void TraceRouting::Reorder(std::span<const size_t> order) {
  for (RoutingTraceRecord& record : records_) {
    RoutingTraceRecord sorted;
    sorted.step_idx = record.step_idx;
    sorted.layer_idx = record.layer_idx;
    for (const size_t row : order) {
      sorted.sequence_ids.push_back(record.sequence_ids[row]);
      sorted.positions.push_back(record.positions[row]);
      const auto first = record.topk_idx.begin() + static_cast<int64_t>(row) * num_topk_;
      sorted.topk_idx.insert(sorted.topk_idx.end(), first, first + num_topk_);
    }
    record = std::move(sorted);
  }
}

std::span<const int32_t> TraceRouting::Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) {
  const RoutingTraceRecord& record = records_[static_cast<size_t>(moe_layer_of_[static_cast<size_t>(layer_idx)])];
  return std::span<const int32_t>(record.topk_idx)
      .subspan(static_cast<size_t>(first_row * num_topk_), static_cast<size_t>(num_rows * num_topk_));
}

}  // namespace penstock
