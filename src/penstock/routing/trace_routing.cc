#include "penstock/routing/trace_routing.h"

#include <algorithm>
#include <utility>

#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {

TraceRouting::TraceRouting(std::unique_ptr<RoutingTraceReader> reader, const ModelConfig& config)
    : reader_(std::move(reader)), num_topk_(config.num_topk), moe_layer_of_(config.num_layers) {
  for (int64_t layer_idx = 0, moe_layer = 0; layer_idx < config.num_layers; ++layer_idx) {
    moe_layer_of_[layer_idx] = moe_layer;
    moe_layer += config.layer_has_experts[layer_idx] ? 1 : 0;
  }
  records_.resize(config.num_moe_layers());
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

absl::StatusOr<std::vector<std::vector<int64_t>>> TraceRouting::CountChoices(const std::string& path,
                                                                             const ModelConfig& config) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<TraceRouting> trace, Open(path, config));
  std::vector<std::vector<int64_t>> counts(config.num_moe_layers(), std::vector<int64_t>(config.num_experts));
  RoutingTraceRecord record;
  for (bool is_empty = true;; is_empty = false) {
    PENSTOCK_ASSIGN_OR_RETURN(const RoutingTraceEvent event, trace->reader_->Next(record));
    if (event == RoutingTraceEvent::kCut) LogWarning("{}", trace->reader_->cut());
    if (event != RoutingTraceEvent::kRecord) {
      if (is_empty) return InputError("{}: the trace has no records", Printable(path));
      return counts;
    }
    for (const int32_t expert_idx : record.topk_idx) ++counts[record.layer_idx][expert_idx];
  }
}

absl::StatusOr<bool> TraceRouting::NextStep() {
  for (size_t layer = 0; layer < records_.size();) {
    PENSTOCK_ASSIGN_OR_RETURN(const RoutingTraceEvent event, reader_->Next(records_[layer]));
    if (event == RoutingTraceEvent::kCut) LogWarning("{}", reader_->cut());
    if (event != RoutingTraceEvent::kRecord) return false;
    const RoutingTraceRecord& record = records_[layer];
    const bool begins = record.layer_idx == 0;
    const bool goes_on = layer > 0 && record.layer_idx == static_cast<int64_t>(layer) &&
                         record.step_idx == records_[0].step_idx && record.sequence_ids == records_[0].sequence_ids &&
                         record.positions == records_[0].positions;
    if (begins && layer > 0) std::swap(records_[0], records_[layer]);  // the step before it was incomplete
    layer = begins ? 1 : goes_on ? layer + 1 : 0;
  }
  return !records_.empty();
}

void TraceRouting::Reorder(std::span<const size_t> order) {
  for (RoutingTraceRecord& record : records_) {
    const size_t num_rows = record.num_rows();
    // Sorts lists of `width` numbers per row; `values` may hold several such lists.
    const auto sort = [&](auto& values, size_t width) {
      auto sorted = values;
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t list = i / (num_rows * width), row = i / width % num_rows;
        sorted[i] = values[(list * num_rows + order[row]) * width + i % width];
      }
      values = std::move(sorted);
    };
    sort(record.sequence_ids, 1);
    sort(record.positions, 1);
    sort(record.token_ids, 1);
    sort(record.topk_idx, static_cast<size_t>(num_topk_));
    sort(record.ranked_idx, static_cast<size_t>(num_ranked()));
    sort(record.ranked_scores, static_cast<size_t>(num_ranked()));
    sort(record.ahead_idx, static_cast<size_t>(num_topk_));
  }
}

const RoutingTraceRecord& TraceRouting::RecordOf(int64_t layer_idx) const { return records_[moe_layer_of_[layer_idx]]; }

std::span<const int32_t> TraceRouting::Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) {
  return std::span<const int32_t>(RecordOf(layer_idx).topk_idx).subspan(first_row * num_topk_, num_rows * num_topk_);
}

std::span<const float> TraceRouting::Scores(int64_t layer_idx, int64_t first_row, int64_t num_rows) {
  if (num_ranked() == 0) return {};
  const RoutingTraceRecord& record = RecordOf(layer_idx);
  const size_t num_experts = reader_->header().num_experts;
  const size_t width = num_ranked();
  scores_.assign(static_cast<size_t>(num_rows) * num_experts, 0);
  for (size_t i = 0; i < static_cast<size_t>(num_rows) * width; ++i) {
    const size_t from = static_cast<size_t>(first_row) * width + i;
    scores_[i / width * num_experts + static_cast<size_t>(record.ranked_idx[from])] = record.ranked_scores[from];
  }
  return scores_;
}

std::span<const int32_t> TraceRouting::ChoicesAhead(int64_t layer_idx, int64_t ahead, int64_t first_row,
                                                    int64_t num_rows) {
  const RoutingTraceRecord& record = RecordOf(layer_idx);
  if (ahead > reader_->header().AheadOf(record.layer_idx)) return {};
  return std::span<const int32_t>(record.ahead_idx)
      .subspan(((ahead - 1) * record.num_rows() + first_row) * num_topk_, static_cast<size_t>(num_rows * num_topk_));
}

}  // namespace penstock
