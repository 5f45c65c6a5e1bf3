#include "penstock/engine/recorders.h"

#include <algorithm>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<Recorders>> Recorders::Create(const EngineOptions& options, const ModelConfig& config,
                                                             const std::string& model_name) {
  auto recorders = std::unique_ptr<Recorders>(new Recorders());
  std::vector<TaskSink*> sinks;
  if (!options.trace_path.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(recorders->trace_, ChromeTrace::Create(options.trace_path));
    sinks.push_back(recorders->trace_.get());
  }
  if (!options.trace_html_path.empty()) {
    recorders->html_path_ = options.trace_html_path;
    recorders->title_ = model_name;
    recorders->timeline_ = std::make_unique<Timeline>();
    // A path that cannot be written is told of now.
    PENSTOCK_RETURN_IF_ERROR(recorders->timeline_->WriteHtml(options.trace_html_path, model_name));
    sinks.push_back(recorders->timeline_.get());
  }
  if (!sinks.empty()) recorders->sinks_ = std::make_unique<TaskSinks>(std::move(sinks));
  if (options.routing_path.empty()) return recorders;
  if (config.num_moe_layers() == 0) return UsageError("--record-routing: the model has no experts");
  PENSTOCK_ASSIGN_OR_RETURN(recorders->routing_,
                            RoutingTraceWriter::Create(options.routing_path, {.model = model_name,
                                                                              .num_layers = config.num_moe_layers(),
                                                                              .num_experts = config.num_experts,
                                                                              .num_topk = config.num_topk}));
  recorders->num_topk_ = config.num_topk;
  int64_t num_moe_layers = 0;
  for (const bool has_experts : config.layer_has_experts) {
    recorders->moe_layer_of_.push_back(num_moe_layers);
    num_moe_layers += has_experts ? 1 : 0;
  }
  recorders->choices_.resize(static_cast<size_t>(num_moe_layers));
  return recorders;
}

uint64_t Recorders::MemoryBytes(const EngineOptions& options, const ModelConfig& config, int64_t max_rows) {
  uint64_t bytes = 0;
  if (!options.trace_path.empty()) bytes += kMiB;
  // The page is one string when it is written, up to 200 bytes for each task.
  if (!options.trace_html_path.empty()) bytes += kTimelineTasks * 300;
  if (!options.routing_path.empty()) {
    bytes += 2 * RoutingTraceWriter::kBufferBytes +
             static_cast<uint64_t>(max_rows * config.num_topk * config.num_moe_layers()) * sizeof(int32_t);
  }
  return bytes;
}

void Recorders::AddRouting(int64_t layer_idx, RowRange rows, std::span<const int32_t> choices) {
  std::vector<int32_t>& kept = choices_[static_cast<size_t>(moe_layer_of_[static_cast<size_t>(layer_idx)])];
  kept.resize(std::max(kept.size(), static_cast<size_t>(rows.end * num_topk_)));
  std::copy(choices.begin(), choices.end(), kept.begin() + rows.begin * num_topk_);
}

void Recorders::AddPass(const RowBatch& batch, double begin_s, double end_s) {
  if (trace_ != nullptr) trace_->AddSpan("step", begin_s, end_s);
  if (routing_ == nullptr) return;
  std::vector<uint32_t> positions(batch.positions.begin(), batch.positions.end());
  for (size_t layer = 0; layer < choices_.size(); ++layer) {
    if (choices_[layer].size() != positions.size() * static_cast<size_t>(num_topk_)) continue;  // the pass failed
    status_.Update(routing_->Append({.step_idx = num_passes_,
                                     .layer_idx = static_cast<int64_t>(layer),
                                     .sequence_ids = batch.sequence_ids,
                                     .positions = positions,
                                     .topk_idx = choices_[layer]}));
    choices_[layer].clear();
  }
  ++num_passes_;
}

absl::Status Recorders::Close() {
  if (trace_ != nullptr) status_.Update(trace_->Close());
  if (timeline_ != nullptr) status_.Update(timeline_->WriteHtml(html_path_, title_));
  if (routing_ != nullptr) status_.Update(routing_->Close());
  return status_;
}

}  // namespace penstock
