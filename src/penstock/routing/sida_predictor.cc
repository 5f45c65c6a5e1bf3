#include "penstock/routing/sida_predictor.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/check.h"

namespace penstock {
namespace {

// Maximum number of a sequence's rows in a pass that get logits; they stand for all. A prompt wants nearly all experts
// anyway, and for a model with many experts the logits are most of a step's time.
constexpr size_t kMaxAskedRows = 32;

// Keeps the state of each sequence from pass to pass. If memory is full, the sequence that was absent longest is
// forgotten. A sequence for which there is no room begins anew in each pass, like one whose last row is not followed by
// the next position (it was skipped, because another sequence has computed it, or comes again).
class SidaPredictor : public ExpertPredictor {
 public:
  explicit SidaPredictor(const Args& args)
      : args_(args),
        network_(args.network),
        max_sequences_(std::max<uint64_t>(1, args.max_bytes / network_->shape().state_bytes())),
        scratch_(network_->NewScratch()),
        logits_(args.layers.size() * static_cast<size_t>(args.num_experts)),
        expected_(logits_.size()) {
    PENSTOCK_CHECK(network_->shape().num_layers == std::ssize(args.layers));
    PENSTOCK_CHECK(network_->shape().num_experts == args.num_experts);
  }

  int64_t distance() const override { return std::ssize(args_.layers); }

  void BeginPass(const PassTokens& pass) override {
    next_place_ = 0;
    ++pass_idx_;
    num_rows_ = std::ssize(pass.token_ids);
    std::fill(expected_.begin(), expected_.end(), 0.0f);
    if (args_.makes_tables) {
      const size_t num_choices = args_.layers.size() * pass.token_ids.size() * static_cast<size_t>(args_.num_topk);
      choices_.resize(num_choices);
      weights_.resize(num_choices);
    }
    // Sequences of this pass are not forgotten for the sake of others.
    for (const uint32_t sequence_id : pass.sequence_ids) {
      if (const auto found = sequences_.find(sequence_id); found != sequences_.end())
        found->second.pass_idx = pass_idx_;
    }
    const size_t num_rows = pass.token_ids.size();
    for (size_t row = 0; row < num_rows;) {
      Sequence& sequence = SequenceOf(pass.sequence_ids[row]);
      if (sequence.next_pos != pass.positions[row]) sequence.state = network_->NewState();
      const size_t begin = row;
      size_t end = begin + 1;
      while (end < num_rows && pass.sequence_ids[end] == pass.sequence_ids[begin]) ++end;
      const size_t stride = args_.makes_tables ? 1 : (end - begin + kMaxAskedRows - 1) / kMaxAskedRows;
      const size_t num_asked = (end - begin + stride - 1) / stride;
      for (; row < end; ++row) {
        const bool is_asked = (row - begin) % stride == 0;
        network_->Step(pass.token_ids[row], sequence.state, scratch_, is_asked ? logits_ : std::span<float>());
        if (is_asked) Expect(static_cast<float>(end - begin) / static_cast<float>(num_asked));
        if (args_.makes_tables) Choose(static_cast<int64_t>(row));
      }
      sequence.next_pos = pass.positions[end - 1] + 1;
    }
  }

  void Observe(const RoutedLayer& layer) override {
    const std::vector<int64_t>& layers = args_.layers;
    next_place_ = std::lower_bound(layers.begin(), layers.end(), layer.layer_idx) - layers.begin() + 1;
  }

  std::span<const float> ExpectedRows(int64_t ahead) override {
    const int64_t place = next_place_ + ahead - 1;
    if (num_rows_ == 0 || place >= std::ssize(args_.layers)) return {};
    return std::span<const float>(expected_).subspan(place * args_.num_experts, args_.num_experts);
  }

  ExpertTable TableOf(int64_t place) const override {
    if (!args_.makes_tables) return {};
    const auto count = static_cast<size_t>(num_rows_ * args_.num_topk);
    const size_t first = static_cast<size_t>(place) * count;
    return {std::span(choices_).subspan(first, count), std::span(weights_).subspan(first, count)};
  }

 private:
  struct Sequence {
    SidaNetwork::State state;
    int64_t next_pos = -1;
    int64_t pass_idx = 0;  // the last pass with the sequence
  };

  Sequence& SequenceOf(uint32_t sequence_id) {
    if (const auto found = sequences_.find(sequence_id); found != sequences_.end()) return found->second;
    if (sequences_.size() >= max_sequences_) {
      const auto oldest = std::min_element(sequences_.begin(), sequences_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.pass_idx, a.first) < std::pair(b.second.pass_idx, b.first);
      });
      if (oldest->second.pass_idx == pass_idx_) {
        without_room_.next_pos = -1;
        return without_room_;
      }
      sequences_.erase(oldest);
    }
    Sequence& sequence = sequences_[sequence_id];
    sequence.pass_idx = pass_idx_;
    return sequence;
  }

  // Sets the table's experts of a row: those of the largest probabilities, which Expect() has left in logits_.
  void Choose(int64_t row) {
    const int64_t num_experts = args_.num_experts, num_topk = args_.num_topk;
    for (int64_t place = 0; place < std::ssize(args_.layers); ++place) {
      const float* values = logits_.data() + place * num_experts;
      const int64_t first = (place * num_rows_ + row) * num_topk;
      order_.resize(static_cast<size_t>(num_experts));
      std::iota(order_.begin(), order_.end(), 0);
      std::partial_sort(order_.begin(), order_.begin() + num_topk, order_.end(),
                        [&](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
      float sum = 0;
      for (int64_t i = 0; i < (args_.renormalises_weights ? num_topk : num_experts); ++i) sum += values[order_[i]];
      for (int64_t i = 0; i < num_topk; ++i) {
        choices_[first + i] = order_[i];
        weights_[first + i] = values[order_[i]] / sum;
        expected_[place * num_experts + order_[i]] += 1;
      }
    }
  }

  // Adds how probably the last row chooses each expert: k times its share of the router's probabilities, at most 1. The
  // row stands for `num_rows`.
  void Expect(float num_rows) {
    const size_t num_experts = args_.num_experts;
    for (size_t begin = 0; begin < logits_.size(); begin += num_experts) {
      const std::span<float> logits = std::span(logits_).subspan(begin, num_experts);
      const float max = *std::max_element(logits.begin(), logits.end());
      float sum = 0;
      for (float& logit : logits) sum += logit = std::exp(logit - max);
      if (args_.makes_tables) continue;  // Choose() knows
      const float scale = static_cast<float>(args_.num_topk) / sum;
      for (size_t i = 0; i < num_experts; ++i) expected_[begin + i] += num_rows * std::min(1.0f, scale * logits[i]);
    }
  }

  Args args_;
  std::shared_ptr<const SidaNetwork> network_;
  size_t max_sequences_;
  SidaNetwork::Scratch scratch_;
  std::vector<float> logits_, expected_;  // [num_layers, num_experts]: of a row, of all rows of the pass
  std::vector<int32_t> choices_;          // [num_layers, num_rows, num_topk], like weights_: tables of the pass
  std::vector<float> weights_;
  std::vector<int32_t> order_;  // [num_experts]
  absl::flat_hash_map<uint32_t, Sequence> sequences_;
  Sequence without_room_;
  int64_t pass_idx_ = 0;
  int64_t num_rows_ = 0;
  int64_t next_place_ = 0;  // the layer with experts that is 1 ahead
};

}  // namespace

std::unique_ptr<ExpertPredictor> MakeSidaPredictor(const ExpertPredictor::Args& args) {
  return std::make_unique<SidaPredictor>(args);
}

}  // namespace penstock
