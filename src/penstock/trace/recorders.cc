#include "penstock/trace/recorders.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// Experts of each row whose scores are recorded, if there are so many: SiDA's predictor learns from the best 30.
constexpr int64_t kRankedExperts = 30;

int64_t NumRanked(const ModelConfig& config) {
  return std::min(config.num_experts, std::max(kRankedExperts, 2 * config.num_topk));
}

bool CountsChoices(const EngineOptions& options) { return options.learns_routing || options.live_view; }

}  // namespace

absl::StatusOr<std::unique_ptr<Recorders>> Recorders::Create(const EngineOptions& options, const ModelConfig& config,
                                                             const ModelInfo& model, int rank) {
  auto recorders = std::unique_ptr<Recorders>(new Recorders());
  std::vector<TaskSink*> sinks;
  if (!options.trace_path.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(recorders->trace_, ChromeTrace::Create(options.trace_path, rank));
    sinks.push_back(recorders->trace_.get());
  }
  if (!options.trace_html_path.empty()) {
    recorders->html_path_ = options.trace_html_path;
    recorders->title_ = rank == 0 ? model.name : fmt::format("{}, rank {}", model.name, rank);
    recorders->timeline_ = std::make_unique<Timeline>();
    // Reports now if the path cannot be written.
    PENSTOCK_RETURN_IF_ERROR(recorders->timeline_->WriteHtml(options.trace_html_path, recorders->title_));
    sinks.push_back(recorders->timeline_.get());
  }
  if (options.live_view) {
    recorders->parts_ = std::make_unique<PartTimes>();
    sinks.push_back(recorders->parts_.get());
  }
  if (!sinks.empty()) recorders->sinks_ = std::make_unique<TaskSinks>(std::move(sinks));
  if (options.routing_path.empty() && options.routing_scores) {
    return UsageError("--record-scores: give --record-routing FILE, too");
  }
  const int64_t num_moe_layers = config.num_moe_layers();
  if (!options.routing_path.empty() && num_moe_layers == 0) {
    return UsageError("--record-routing: the model has no experts");
  }
  if (CountsChoices(options) && num_moe_layers > 0) recorders->counts_.emplace(num_moe_layers, config.num_experts);
  if (options.routing_path.empty() && !recorders->counts_.has_value()) return recorders;
  recorders->records_.resize(num_moe_layers);
  int64_t moe_layer = 0;
  for (const bool has_experts : config.layer_has_experts) {
    recorders->moe_layer_of_.push_back(moe_layer);
    moe_layer += has_experts ? 1 : 0;
  }
  RoutingTraceHeader& header = recorders->header_;
  header = {.model = model.name,
            .num_layers = num_moe_layers,
            .num_experts = config.num_experts,
            .num_topk = config.num_topk};
  if (options.routing_path.empty()) return recorders;
  if (options.routing_scores) {
    header.num_ranked = NumRanked(config);
    header.num_ahead = config.encoder.is_on() ? 0 : kMaxAhead;  // gates of the other side say nothing
    header.vocab_size = config.vocab_size;
    header.fingerprint = model.fingerprint;
  }
  PENSTOCK_ASSIGN_OR_RETURN(recorders->routing_, RoutingTraceWriter::Create(options.routing_path, header));
  return recorders;
}

uint64_t Recorders::MemoryBytes(const EngineOptions& options, const ModelConfig& config, int64_t max_rows) {
  uint64_t bytes = 0;
  if (!options.trace_path.empty()) bytes += kMiB;
  // The page is written as one string, with up to 200 bytes for each task.
  if (!options.trace_html_path.empty()) bytes += kTimelineTasks * 300;
  if (CountsChoices(options)) {
    bytes += static_cast<uint64_t>(config.num_moe_layers() * config.num_experts) * sizeof(int64_t);
    if (options.routing_path.empty()) {
      bytes += static_cast<uint64_t>(max_rows * config.num_moe_layers() * config.num_topk) * sizeof(int32_t);
    }
  }
  if (!options.routing_path.empty()) {
    // Choices, ranked experts with their scores, and the choices ahead.
    const int64_t of_row =
        options.routing_scores ? config.num_topk * (1 + kMaxAhead) + 2 * NumRanked(config) : config.num_topk;
    bytes += 2 * RoutingTraceWriter::kBufferBytes +
             static_cast<uint64_t>(max_rows * config.num_moe_layers() * of_row) * sizeof(int32_t);
  }
  return bytes;
}

void Recorders::AddRouting(int64_t layer_idx, RowRange rows, std::span<const int32_t> choices, RoutingSource& routing) {
  const int64_t moe_layer = moe_layer_of_[layer_idx];
  RoutingTraceRecord& record = records_[moe_layer];
  const auto keep = [&](std::span<const int32_t> values, std::vector<int32_t>& kept) {
    kept.resize(std::max(kept.size(), static_cast<size_t>(rows.end * header_.num_topk)));
    std::copy(values.begin(), values.end(), kept.begin() + rows.begin * header_.num_topk);
  };
  keep(choices, record.topk_idx);
  if (!records_scores()) return;
  const std::span<const float> scores = routing.Scores(layer_idx, rows.begin, rows.size());
  record.ranked_idx.resize(std::max(record.ranked_idx.size(), static_cast<size_t>(rows.end * header_.num_ranked)));
  record.ranked_scores.resize(record.ranked_idx.size());
  for (int64_t row = 0; row < rows.size(); ++row) Rank(scores, row, rows.begin + row, record);
  for (int64_t ahead = 1; ahead <= header_.AheadOf(moe_layer); ++ahead) {
    keep(routing.ChoicesAhead(layer_idx, ahead, rows.begin, rows.size()), ahead_[{moe_layer, ahead}]);
  }
}

// Stores the best experts of a row and their scores.
void Recorders::Rank(std::span<const float> scores, int64_t row, int64_t row_idx, RoutingTraceRecord& record) {
  const std::span<const float> of_row = scores.subspan(row * header_.num_experts, header_.num_experts);
  order_.resize(of_row.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::partial_sort(order_.begin(), order_.begin() + header_.num_ranked, order_.end(),
                    [&](int32_t a, int32_t b) { return of_row[a] != of_row[b] ? of_row[a] > of_row[b] : a < b; });
  for (int64_t rank = 0; rank < header_.num_ranked; ++rank) {
    const size_t place = row_idx * header_.num_ranked + rank;
    record.ranked_idx[place] = order_[rank];
    // A sum of probabilities may round to more than 1.
    record.ranked_scores[place] = std::clamp(of_row[record.ranked_idx[place]], 0.0f, 1.0f);
  }
}

void Recorders::AddPass(const RowBatch& batch, double begin_s, double end_s) {
  if (trace_ != nullptr) trace_->AddSpan("step", begin_s, end_s);
  if (!records_routing()) return;
  const size_t num_rows = batch.positions.size();
  bool is_first = true;
  for (size_t layer = 0; layer < records_.size(); ++layer) {
    RoutingTraceRecord record = std::exchange(records_[layer], {});
    if (record.topk_idx.size() != num_rows * static_cast<size_t>(header_.num_topk)) continue;  // the pass failed
    if (counts_.has_value()) counts_->Add(static_cast<int64_t>(layer), record.topk_idx, batch.sequence_ids);
    if (routing_ == nullptr) continue;
    record.step_idx = num_passes_;
    record.layer_idx = static_cast<int64_t>(layer);
    record.sequence_ids = batch.sequence_ids;
    record.positions.assign(batch.positions.begin(), batch.positions.end());
    if (header_.has_tokens() && is_first) record.token_ids = batch.token_ids;
    is_first = false;
    for (int64_t ahead = 1; ahead <= header_.AheadOf(record.layer_idx); ++ahead) {
      const std::vector<int32_t> kept = std::exchange(ahead_[{record.layer_idx, ahead}], {});
      record.ahead_idx.insert(record.ahead_idx.end(), kept.begin(), kept.end());
    }
    status_.Update(routing_->Append(record.View()));
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
