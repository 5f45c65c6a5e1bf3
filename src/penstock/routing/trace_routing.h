// The choices of a recorded run, step by step, for simulations of that run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/model/model_config.h"
#include "penstock/routing/routing_source.h"
#include "penstock/routing/routing_trace.h"

namespace penstock {

class TraceRouting : public RoutingSource {
 public:
  // kIo when the file cannot be read, kInput when it is not a trace or belongs to another model.
  static absl::StatusOr<std::unique_ptr<TraceRouting>> Open(const std::string& path, const ModelConfig& config);

  // Returns how often each expert was chosen: [num_moe_layers][num_experts]. kInput also when the trace is damaged or
  // has no records.
  static absl::StatusOr<std::vector<std::vector<int64_t>>> CountChoices(const std::string& path,
                                                                        const ModelConfig& config);

  // Moves to the next step with records of all layers; returns false when there is none. kInput when the file is
  // damaged.
  absl::StatusOr<bool> NextStep();

  // The trace's header: whether it has tokens, and of which model.
  const RoutingTraceHeader& header() const { return reader_->header(); }

  // The rows of this step, in the order in which they were computed.
  int64_t step_idx() const { return records_[0].step_idx; }
  std::span<const uint32_t> sequence_ids() const { return records_[0].sequence_ids; }
  std::span<const uint32_t> positions() const { return records_[0].positions; }
  std::span<const TokenId> token_ids() const { return records_[0].token_ids; }  // empty if they were not recorded
  // Maps row i of the next pass to row `order[i]` of the recorded step.
  void Reorder(std::span<const size_t> order);

  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override;
  // Returns zeros for experts that were not ranked.
  std::span<const float> Scores(int64_t layer_idx, int64_t first_row, int64_t num_rows) override;
  std::span<const int32_t> ChoicesAhead(int64_t layer_idx, int64_t ahead, int64_t first_row, int64_t num_rows) override;

 private:
  int64_t num_ranked() const { return reader_->header().num_ranked; }
  const RoutingTraceRecord& RecordOf(int64_t layer_idx) const;
  TraceRouting(std::unique_ptr<RoutingTraceReader> reader, const ModelConfig& config);

  std::unique_ptr<RoutingTraceReader> reader_;
  int64_t num_topk_;
  std::vector<int64_t> moe_layer_of_;        // [num_layers]
  std::vector<RoutingTraceRecord> records_;  // [num_moe_layers] of this step
  std::vector<float> scores_;                // the last result of Scores()
};

}  // namespace penstock
