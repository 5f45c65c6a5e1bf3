#include "penstock/routing/sida_predictor.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/check.h"
#include "penstock/kernels/kernels.h"

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
        expected_(args.layers.size() * static_cast<size_t>(args.num_experts)) {
    PENSTOCK_CHECK(network_->shape().num_layers == std::ssize(args.layers));
    PENSTOCK_CHECK(network_->shape().num_experts == args.num_experts);
    const kernels::KernelTable& kernels = kernels::KernelsFor(kernels::BestIsa());
    for (Worker& worker : workers_) worker.scratch = network_->NewScratch(kernels);
  }

  int64_t distance() const override { return std::ssize(args_.layers); }

  Work Prepare(const PassTokens& rows, bool ahead) override {
    const uint32_t sequence_id = rows.sequence_ids.front();
    const auto found = FindPart(sequence_id);
    if (found != parts_.end()) {
      if ((*found)->Holds(rows)) return {};
      // Other rows come than were expected. So the sequence goes back.
      const std::shared_ptr<Part> part = *found;
      parts_.erase(found);
      const bool can_go_back = part->is_ahead && !part->begins_anew;
      part->sequence->next_pos = can_go_back ? part->first_pos : -1;
      if (can_go_back) part->sequence->state = std::move(part->before);
    }
    if (ahead && !MakeRoomAhead()) return {};
    const std::shared_ptr<Part> part = MakePart(rows);
    part->is_ahead = ahead;
    parts_.push_back(part);
    return {.run = [this, part, ahead] { Compute(*part, workers_[ahead ? 1 : 0]); },
            .flops = static_cast<double>(rows.token_ids.size()) * network_->flops_per_token()};
  }

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
        found->second->pass_idx = pass_idx_;
    }
    ForEachSequence(pass, [&](const PassTokens& rows, size_t first_row) {
      if (const Work work = Prepare(rows, /*ahead=*/false); work.run) work.run();
      const auto found = FindPart(rows.sequence_ids.front());
      Add(**found, first_row);
      parts_.erase(found);
    });
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

  std::span<const float> ExpectedAhead(uint32_t sequence_id, int64_t place) override {
    const auto found = FindPart(sequence_id);
    if (found == parts_.end()) return {};
    return std::span<const float>((*found)->expected).subspan(place * args_.num_experts, args_.num_experts);
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
  // Some tokens of a sequence, and what the network says of them. A part that was dropped may still be computed.
  struct Part {
    uint32_t sequence_id = 0;
    int64_t first_pos = 0;
    bool begins_anew = false;
    bool is_ahead = false;
    std::shared_ptr<Sequence> sequence;
    SidaNetwork::State before;  // the sequence's state before these tokens, if they are ahead
    std::vector<TokenId> token_ids;
    std::vector<float> expected;   // [num_layers, num_experts]
    std::vector<int32_t> choices;  // [num_layers, num_tokens, num_topk], like weights; only for tables
    std::vector<float> weights;

    bool Holds(const PassTokens& rows) const {
      return first_pos == rows.positions.front() && std::ranges::equal(token_ids, rows.token_ids);
    }
  };
  // Buffers of a work.
  struct Worker {
    SidaNetwork::Scratch scratch;
    std::vector<int32_t> order;  // [num_experts]
  };

  std::deque<std::shared_ptr<Part>>::iterator FindPart(uint32_t sequence_id) {
    return std::ranges::find_if(parts_, [&](const auto& part) { return part->sequence_id == sequence_id; });
  }
  // Returns whether there is room for one more part ahead. To make room, the oldest prompt is dropped, because it may
  // have been withdrawn. Its sequence begins anew.
  bool MakeRoomAhead() {
    const auto is_ahead = [](const std::shared_ptr<Part>& part) { return part->is_ahead; };
    if (std::ranges::count_if(parts_, is_ahead) < args_.max_ahead) return true;
    const auto oldest =
        std::ranges::find_if(parts_, [&](const auto& part) { return is_ahead(part) && part->begins_anew; });
    if (oldest == parts_.end()) return false;
    Forget((*oldest)->sequence_id);
    return true;
  }
  void Forget(uint32_t sequence_id) {
    sequences_.erase(sequence_id);
    std::erase_if(parts_, [&](const auto& part) { return part->sequence_id == sequence_id; });
  }

  std::shared_ptr<Part> MakePart(const PassTokens& rows) {
    auto part = std::make_shared<Part>();
    part->sequence_id = rows.sequence_ids.front();
    part->first_pos = rows.positions.front();
    part->sequence = SequenceOf(part->sequence_id);
    part->begins_anew = part->sequence->next_pos != part->first_pos;
    part->sequence->next_pos = rows.positions.back() + 1;
    part->token_ids.assign(rows.token_ids.begin(), rows.token_ids.end());
    part->expected.resize(expected_.size());
    if (args_.makes_tables) {
      part->choices.resize(args_.layers.size() * rows.token_ids.size() * static_cast<size_t>(args_.num_topk));
      part->weights.resize(part->choices.size());
    }
    return part;
  }

  std::shared_ptr<Sequence> SequenceOf(uint32_t sequence_id) {
    if (const auto found = sequences_.find(sequence_id); found != sequences_.end()) return found->second;
    auto sequence = std::make_shared<Sequence>();
    sequence->state = network_->NewState();
    sequence->pass_idx = pass_idx_;
    if (sequences_.size() >= max_sequences_) {
      const auto oldest = std::min_element(sequences_.begin(), sequences_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second->pass_idx, a.first) < std::pair(b.second->pass_idx, b.first);
      });
      if (oldest->second->pass_idx == pass_idx_) return sequence;  // there is no room to keep it
      Forget(oldest->first);
    }
    sequences_[sequence_id] = sequence;
    return sequence;
  }

  // Runs the network. It reads nothing of the predictor that changes, and writes only to its arguments.
  void Compute(Part& part, Worker& worker) const {
    SidaNetwork::State& state = part.sequence->state;
    if (part.begins_anew) state = network_->NewState();
    if (part.is_ahead && !part.begins_anew) part.before = state;
    const size_t num_tokens = part.token_ids.size();
    const size_t stride = args_.makes_tables ? 1 : (num_tokens + kMaxAskedRows - 1) / kMaxAskedRows;
    const size_t num_asked = (num_tokens + stride - 1) / stride;
    const float num_rows = static_cast<float>(num_tokens) / static_cast<float>(num_asked);
    network_->Run(part.token_ids, stride, state, worker.scratch, [&](size_t row, std::span<float> logits) {
      Expect(logits, num_rows, *worker.scratch.kernels, part.expected);
      if (args_.makes_tables) Choose(logits, row, part, worker.order);
    });
  }

  // Adds how probably a row chooses each expert: k times its share of the router's probabilities, at most 1. The row
  // stands for `num_rows`. `logits` become probabilities, up to a factor for each layer.
  void Expect(std::span<float> logits, float num_rows, const kernels::KernelTable& kernels,
              std::span<float> expected) const {
    const size_t num_experts = args_.num_experts;
    for (size_t begin = 0; begin < logits.size(); begin += num_experts) {
      const std::span<float> of_layer = logits.subspan(begin, num_experts);
      const float max = *std::max_element(of_layer.begin(), of_layer.end());
      for (float& logit : of_layer) logit -= max;
    }
    kernels.exp(logits.data(), std::ssize(logits), logits.data());
    if (args_.makes_tables) return;  // Choose() knows
    for (size_t begin = 0; begin < logits.size(); begin += num_experts) {
      const std::span<const float> of_layer = logits.subspan(begin, num_experts);
      const float scale = static_cast<float>(args_.num_topk) / std::accumulate(of_layer.begin(), of_layer.end(), 0.0f);
      for (size_t i = 0; i < num_experts; ++i) expected[begin + i] += num_rows * std::min(1.0f, scale * of_layer[i]);
    }
  }

  // Sets the table's experts of a row: those of the largest probabilities.
  void Choose(std::span<const float> probabilities, size_t row, Part& part, std::vector<int32_t>& order) const {
    const int64_t num_experts = args_.num_experts, num_topk = args_.num_topk;
    order.resize(static_cast<size_t>(num_experts));
    for (int64_t place = 0; place < std::ssize(args_.layers); ++place) {
      const std::span<const float> values = probabilities.subspan(place * num_experts, num_experts);
      const int64_t first = (place * std::ssize(part.token_ids) + static_cast<int64_t>(row)) * num_topk;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + num_topk, order.end(),
                        [&](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
      float sum = 0;
      for (int64_t i = 0; i < (args_.renormalises_weights ? num_topk : num_experts); ++i) sum += values[order[i]];
      for (int64_t i = 0; i < num_topk; ++i) {
        part.choices[first + i] = order[i];
        part.weights[first + i] = values[order[i]] / sum;
        part.expected[place * num_experts + order[i]] += 1;
      }
    }
  }

  // Adds a part to the pass's rows from `first_row` on.
  void Add(const Part& part, size_t first_row) {
    for (size_t i = 0; i < expected_.size(); ++i) expected_[i] += part.expected[i];
    const auto num_topk = static_cast<size_t>(args_.num_topk);
    const size_t count = part.token_ids.size() * num_topk;
    for (size_t place = 0; args_.makes_tables && place < args_.layers.size(); ++place) {
      const size_t target = (place * static_cast<size_t>(num_rows_) + first_row) * num_topk;
      std::copy_n(part.choices.begin() + place * count, count, choices_.begin() + target);
      std::copy_n(part.weights.begin() + place * count, count, weights_.begin() + target);
    }
  }

  Args args_;
  std::shared_ptr<const SidaNetwork> network_;
  size_t max_sequences_;
  Worker workers_[2];                        // of works that are needed now, and of those ahead
  std::deque<std::shared_ptr<Part>> parts_;  // whose pass has not begun, at most one of each sequence
  std::vector<float> expected_;              // [num_layers, num_experts]: of all rows of the pass
  std::vector<int32_t> choices_;             // [num_layers, num_rows, num_topk], like weights_: tables of the pass
  std::vector<float> weights_;
  absl::flat_hash_map<uint32_t, std::shared_ptr<Sequence>> sequences_;
  int64_t pass_idx_ = 0;
  int64_t num_rows_ = 0;
  int64_t next_place_ = 0;  // the layer with experts that is 1 ahead
};

}  // namespace

std::unique_ptr<ExpertPredictor> MakeSidaPredictor(const ExpertPredictor::Args& args) {
  return std::make_unique<SidaPredictor>(args);
}

}  // namespace penstock
