#include "penstock/routing/expert_predictor.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "penstock/routing/router_scores.h"
#include "penstock/routing/sida_predictor.h"

namespace penstock {
namespace {

// The common part of all predictors: the layer observed last.
class LayerPredictor : public ExpertPredictor {
 public:
  explicit LayerPredictor(const Args& args) : args_(args), rows_(args_.num_experts) {}

 protected:
  int64_t num_layers() const { return std::ssize(args_.layers); }
  // Returns the index of a model's layer among the layers with experts.
  int64_t PlaceOf(int64_t layer_idx) const {
    return std::lower_bound(args_.layers.begin(), args_.layers.end(), layer_idx) - args_.layers.begin();
  }
  std::span<const float> Counted(std::span<const int32_t> choices) {
    std::fill(rows_.begin(), rows_.end(), 0.0f);
    for (const int32_t expert_idx : choices) rows_[expert_idx] += 1;
    return rows_;
  }

  Args args_;
  std::vector<float> rows_;  // [num_experts]: the result of ExpectedRows()
};

class GatePredictor : public LayerPredictor {
 public:
  using LayerPredictor::LayerPredictor;
  int64_t distance() const override { return kMaxAhead; }
  void Observe(const RoutedLayer& layer) override {
    layer_idx_ = layer.layer_idx;
    num_rows_ = std::ssize(layer.sequence_ids);
    routing_ = layer.routing;
  }
  std::span<const float> ExpectedRows(int64_t ahead) override {
    if (PlaceOf(layer_idx_) + ahead >= num_layers()) return {};
    const std::span<const int32_t> choices = routing_->ChoicesAhead(layer_idx_, ahead, 0, num_rows_);
    return choices.empty() ? std::span<const float>() : Counted(choices);
  }

 private:
  RoutingSource* routing_ = nullptr;
  int64_t layer_idx_ = 0;
  int64_t num_rows_ = 0;
};

class OraclePredictor : public LayerPredictor {
 public:
  using LayerPredictor::LayerPredictor;
  int64_t distance() const override { return kMaxAhead; }
  void Observe(const RoutedLayer& layer) override {
    place_ = PlaceOf(layer.layer_idx);
    num_rows_ = std::ssize(layer.sequence_ids);
    routing_ = layer.routing;
  }
  std::span<const float> ExpectedRows(int64_t ahead) override {
    if (place_ + ahead >= num_layers()) return {};
    return Counted(routing_->Choices(args_.layers[place_ + ahead], 0, num_rows_));
  }

 private:
  RoutingSource* routing_ = nullptr;
  int64_t place_ = 0;
  int64_t num_rows_ = 0;
};

class CorrelationPredictor : public LayerPredictor {
 public:
  explicit CorrelationPredictor(const Args& args)
      : LayerPredictor(args),
        table_({.num_layers = num_layers(),
                .num_experts = args.num_experts,
                .num_topk = args.num_topk,
                .path_length = 1,
                .model = "model"},
               args.max_paths) {}
  int64_t distance() const override { return 1; }
  void Observe(const RoutedLayer& layer) override {
    const int64_t place = PlaceOf(layer.layer_idx), num_rows = std::ssize(layer.sequence_ids);
    if (place != place_ + 1 || num_rows != num_rows_) last_choices_.clear();  // another pass
    place_ = place;
    num_rows_ = num_rows;
    table_.Update(place_, History(), layer.choices);
    last_choices_.assign(layer.choices.begin(), layer.choices.end());
  }
  std::span<const float> ExpectedRows(int64_t ahead) override {
    if (place_ + ahead >= num_layers()) return {};
    const std::vector<double> tendency = table_.Tendency(place_ + ahead, History());
    std::transform(tendency.begin(), tendency.end(), rows_.begin(),
                   [&](double rows) { return static_cast<float>(rows * static_cast<double>(args_.num_topk)); });
    return rows_;
  }

 private:
  RoutingHistory History() const {
    RoutingHistory history{.num_rows = num_rows_, .choices = {}};
    history.choices[0] = last_choices_;
    return history;
  }

  CorrelationTable table_;
  int64_t place_ = 0;
  int64_t num_rows_ = 0;
  std::vector<int32_t> last_choices_;
};

// The share of a layer's recent history that is forgotten each time the layer is observed.
constexpr float kForgets = 0.5f;

class HistoryPredictor : public LayerPredictor {
 public:
  explicit HistoryPredictor(const Args& args)
      : LayerPredictor(args),
        mean_(std::ssize(rows_), args.num_topk),
        scores_(args.layers.size(), std::vector<float>(rows_.size())) {}
  int64_t distance() const override { return std::min<int64_t>(kMaxAhead, num_layers()); }
  void Observe(const RoutedLayer& layer) override {
    place_ = PlaceOf(layer.layer_idx);
    num_rows_ = std::ssize(layer.sequence_ids);
    std::vector<float>& scores = scores_[place_];
    const std::span<const float> mean = mean_.Of(layer.scores, layer.choices);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] += kForgets * (mean[i] - scores[i]);
  }
  std::span<const float> ExpectedRows(int64_t ahead) override {
    const std::vector<float>& scores = scores_[(place_ + ahead) % num_layers()];
    const float sum = std::accumulate(scores.begin(), scores.end(), 0.0f);
    if (sum <= 0) return {};
    const auto num_rows = static_cast<float>(num_rows_);
    const float choices = num_rows * static_cast<float>(args_.num_topk) / sum;
    std::transform(scores.begin(), scores.end(), rows_.begin(),
                   [&](float score) { return std::min(num_rows, choices * score); });
    return rows_;
  }

 private:
  MeanTopScores mean_;
  std::vector<std::vector<float>> scores_;  // [num_layers][num_experts]
  int64_t place_ = 0;
  int64_t num_rows_ = 0;
};

// Counts how often a sequence chose each expert of each layer. The library keeps the counts of sequences that have
// ended. MoE-Infinity's public code compares all layers, although a token's later layers are not known yet. This
// predictor compares all choices of the sequence so far, including those of the token's known layers.
class SequencePredictor : public LayerPredictor {
 public:
  explicit SequencePredictor(const Args& args)
      : LayerPredictor(args),
        max_kept_(std::min<size_t>(64, args.max_bytes / 2 / (4 * args.layers.size() * rows_.size() + 128))),
        max_running_(args.max_bytes / 2 / (4 * args.layers.size() * rows_.size() + 128)) {}
  int64_t distance() const override { return kMaxAhead; }

  void Observe(const RoutedLayer& layer) override {
    place_ = PlaceOf(layer.layer_idx);
    if (place_ == 0) EndThoseWhoLeft(layer.sequence_ids);
    sequence_ids_.assign(layer.sequence_ids.begin(), layer.sequence_ids.end());
    const size_t num_topk = args_.num_topk;
    for (size_t row = 0; row < sequence_ids_.size(); ++row) {
      if (running_.size() >= max_running_ && !running_.contains(sequence_ids_[row])) continue;
      Sequence& sequence = running_[sequence_ids_[row]];
      if (sequence.counts.empty()) sequence.counts.resize(args_.layers.size() * rows_.size());
      float* counts = sequence.counts.data() + static_cast<size_t>(place_) * rows_.size();
      for (const int32_t expert_idx : layer.choices.subspan(row * num_topk, num_topk)) counts[expert_idx] += 1;
    }
  }

  std::span<const float> ExpectedRows(int64_t ahead) override {
    if (place_ + ahead >= num_layers() || library_.empty()) return {};
    std::fill(rows_.begin(), rows_.end(), 0.0f);
    for (size_t row = 0; row < sequence_ids_.size();) {
      size_t end = row + 1;
      while (end < sequence_ids_.size() && sequence_ids_[end] == sequence_ids_[row]) ++end;
      if (const auto sequence = running_.find(sequence_ids_[row]); sequence != running_.end()) {
        const float* like = MostLike(sequence->second) + static_cast<size_t>(place_ + ahead) * rows_.size();
        const float sum = std::accumulate(like, like + rows_.size(), 0.0f);
        const auto num_rows = static_cast<float>(end - row);
        for (size_t e = 0; e < rows_.size() && sum > 0; ++e) {
          rows_[e] += std::min(num_rows, num_rows * static_cast<float>(args_.num_topk) * like[e] / sum);
        }
      }
      row = end;
    }
    return rows_;
  }

 private:
  struct Sequence {
    std::vector<float> counts;  // [num_layers, num_experts]
    int64_t num_uses = 0;
  };

  void EndThoseWhoLeft(std::span<const uint32_t> present) {
    std::vector<uint32_t> left;
    for (const auto& [sequence_id, sequence] : running_) {
      if (std::find(present.begin(), present.end(), sequence_id) == present.end()) left.push_back(sequence_id);
    }
    std::sort(left.begin(), left.end());  // the order of a hash map differs in every run
    for (const uint32_t sequence_id : left) Keep(std::move(running_.extract(sequence_id).mapped()));
  }
  void Keep(Sequence sequence) {
    if (max_kept_ == 0) return;
    if (library_.size() < max_kept_) {
      library_.push_back(std::move(sequence));
      return;
    }
    *std::min_element(library_.begin(), library_.end(), [](const Sequence& a, const Sequence& b) {
      return a.num_uses < b.num_uses;
    }) = std::move(sequence);
  }
  // Returns the counts of the kept sequence with the largest sum of per-layer cosines.
  const float* MostLike(const Sequence& sequence) {
    Sequence* best = nullptr;
    float best_similarity = -1;
    for (Sequence& kept : library_) {
      float similarity = 0;
      for (size_t layer = 0; layer < args_.layers.size(); ++layer) {
        const float* a = sequence.counts.data() + layer * rows_.size();
        const float* b = kept.counts.data() + layer * rows_.size();
        const float norms =
            std::inner_product(a, a + rows_.size(), a, 0.0f) * std::inner_product(b, b + rows_.size(), b, 0.0f);
        if (norms > 0) similarity += std::inner_product(a, a + rows_.size(), b, 0.0f) / std::sqrt(norms);
      }
      if (similarity > best_similarity) {
        best = &kept;
        best_similarity = similarity;
      }
    }
    ++best->num_uses;
    return best->counts.data();
  }

  size_t max_kept_;
  size_t max_running_;  // maximum number of sequences to follow
  absl::flat_hash_map<uint32_t, Sequence> running_;
  std::vector<Sequence> library_;
  std::vector<uint32_t> sequence_ids_;
  int64_t place_ = 0;
};

template <class Predictor>
std::unique_ptr<ExpertPredictor> Make(const ExpertPredictor::Args& args) {
  return std::make_unique<Predictor>(args);
}
constexpr auto MakeGatePredictor = Make<GatePredictor>;
constexpr auto MakeCorrelationPredictor = Make<CorrelationPredictor>;
constexpr auto MakeHistoryPredictor = Make<HistoryPredictor>;
constexpr auto MakeSequencePredictor = Make<SequencePredictor>;
constexpr auto MakeOraclePredictor = Make<OraclePredictor>;
std::unique_ptr<ExpertPredictor> MakeNoPredictor(const ExpertPredictor::Args&) { return nullptr; }

constexpr PredictorTraits kPredictors[] = {
#define PENSTOCK_PREDICTOR(kind, called, maker, line, ...) \
  {.value = PredictorKind::kind, .name = called, .summary = line, .make = maker, __VA_ARGS__},
#include "penstock/predictors.def"
};

}  // namespace

std::span<const PredictorTraits> Predictors() { return kPredictors; }
const PredictorTraits& TraitsOf(PredictorKind kind) { return kPredictors[static_cast<size_t>(kind)]; }

void ForEachSequence(const PassTokens& pass, absl::FunctionRef<void(const PassTokens& rows, size_t first_row)> visit) {
  const size_t num_rows = pass.sequence_ids.size();
  for (size_t begin = 0, end = 0; begin < num_rows; begin = end) {
    while (end < num_rows && pass.sequence_ids[end] == pass.sequence_ids[begin]) ++end;
    visit({.sequence_ids = pass.sequence_ids.subspan(begin, end - begin),
           .positions = pass.positions.subspan(begin, end - begin),
           .token_ids = pass.token_ids.subspan(begin, end - begin)},
          begin);
  }
}

}  // namespace penstock
