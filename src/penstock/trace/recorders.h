// The recordings that --trace, --trace-html and --record-routing ask for, and counts of choices.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/model/model_config.h"
#include "penstock/ops/operations.h"
#include "penstock/routing/routing_counts.h"
#include "penstock/routing/routing_trace.h"
#include "penstock/trace/chrome_trace.h"
#include "penstock/trace/part_times.h"
#include "penstock/trace/task_sinks.h"
#include "penstock/trace/timeline.h"

namespace penstock {

class Recorders {
 public:
  // kIo when a file cannot be created.
  static absl::StatusOr<std::unique_ptr<Recorders>> Create(const EngineOptions& options, const ModelConfig& config,
                                                           const ModelInfo& model, int rank = 0);
  // Returns the memory that the recorders take for passes of at most `max_rows`.
  static uint64_t MemoryBytes(const EngineOptions& options, const ModelConfig& config, int64_t max_rows);

  // Returns nullptr when no tasks are recorded.
  TaskSink* sink() { return sinks_.get(); }
  // Adds a pass from `begin_s` to `end_s`.
  void AddPass(const RowBatch& batch, double begin_s, double end_s);
  // Adds the choices of some rows of the present pass; `routing` gives their scores.
  void AddRouting(int64_t layer_idx, RowRange rows, std::span<const int32_t> choices, RoutingSource& routing);
  bool records_routing() const { return routing_ != nullptr || counts_.has_value(); }
  // Returns whether scores are recorded, and the choices that the gates of the next layers would have made.
  bool records_scores() const { return header_.num_ranked > 0; }

  // Returns the choices so far; nothing unless EngineOptions::learns_routing or live_view asks for them.
  const std::optional<RoutingCounts>& counts() const { return counts_; }

  // Returns the times of tasks so far; none unless EngineOptions::live_view asks for them.
  std::vector<PartSeconds> parts() const { return parts_ == nullptr ? std::vector<PartSeconds>() : parts_->Totals(); }

  // Ends the files; kIo when one could not be written. REQUIRES: called once.
  absl::Status Close();

 private:
  Recorders() = default;
  void Rank(std::span<const float> scores, int64_t row, int64_t row_idx, RoutingTraceRecord& record);

  std::string html_path_;
  std::string title_;
  std::unique_ptr<ChromeTrace> trace_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<PartTimes> parts_;
  std::unique_ptr<TaskSinks> sinks_;
  std::unique_ptr<RoutingTraceWriter> routing_;
  std::optional<RoutingCounts> counts_;
  RoutingTraceHeader header_;
  std::vector<int64_t> moe_layer_of_;        // [num_layers]: index among the layers with experts
  std::vector<RoutingTraceRecord> records_;  // the present pass, by MoE layer
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> ahead_;  // by MoE layer and distance
  std::vector<int32_t> order_;  // [num_experts]: experts of a row, the best first
  int64_t num_passes_ = 0;
  absl::Status status_;
};

}  // namespace penstock
