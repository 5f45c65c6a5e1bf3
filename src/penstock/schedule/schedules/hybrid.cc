// HybriMoE's schedule. The host computes some of the experts that a layer's rows chose, while others are copied to the
// device. The device computes all the rest. expert_split.h decides which experts these are. Without a device, the host
// computes the experts in DRAM while others are read from disk, the heaviest first.
//
// While the link is idle, experts that a predictor expects are fetched. The first ones are those that would save the
// most time in the next layers, by the same split. Without a device, a predictor that knows the experts of all layers
// when the pass begins names them once, in the order of the layers.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "penstock/base/status.h"
#include "penstock/routing/expert_predictor.h"
#include "penstock/schedule/expert_prefetch.h"
#include "penstock/schedule/expert_split.h"
#include "penstock/schedule/layer_experts.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

// Maximum number of absent experts of each later layer for which a split is made, to see how much time each would save.
constexpr size_t kMaxCandidates = 4;

// Price of a transfer, as a share of its time. Values from 0.1 to 0.8 measured the same. With a price of 0, prompts
// took 10 to 25 % longer: equally good plans then transfer several light experts in place of a heavy one. With 1.6 they
// took 6 % longer.
constexpr double kTransferPrice = 0.2;

// Least number of expected rows for which a predictor that names the experts of all layers names one. Most of those are
// then used. Replayed with the demo model, 0 fetched 10 to 14 % in vain and lost the time that the others saved; with
// 0.7 too few were named (docs/decisions/sida.md).
constexpr float kLeastRows = 0.5f;

class HybridSchedule : public Schedule {
 public:
  HybridSchedule(const ScheduleOptions& options, const ModelConfig& config)
      : options_(options), moe_layers_(config.moe_layers()) {
    // A fixed mapping does not change, so nothing is fetched ahead.
    if (options.hybrid_rule == HybridRule::kFixed) options_.predictor = PredictorKind::kNone;
    predictor_ =
        TraitsOf(options_.predictor)
            .make({.layers = moe_layers_,
                   .num_experts = config.num_experts,
                   .num_topk = config.num_topk,
                   .max_paths = MaxCorrelationPaths(config, 1),
                   .max_bytes = options.network == nullptr ? ScheduleBytes(config, 1) : options.network_state_bytes,
                   .network = options.network,
                   .max_ahead = options.max_ahead,
                   .makes_tables = options.replaces_routers,
                   .renormalises_weights = config.router.renormalises});
  }

  absl::Status Run(Pass& pass) override {
    const RowRange rows = pass.all_rows();
    const std::span<const RowRange> micro_batches = pass.micro_batches();
    PENSTOCK_RETURN_IF_ERROR(Begin(pass));
    for (const RowRange& micro_batch : micro_batches) pass.attention().Embed(micro_batch);
    auto place = static_cast<size_t>(pass.PlaceOf(pass.layers().begin));
    for (int64_t layer_idx = pass.layers().begin; layer_idx < pass.layers().end; ++layer_idx) {
      for (size_t i = 0; i < micro_batches.size(); ++i) pass.attention().Attend(micro_batches, i, layer_idx);
      if (pass.has_experts(layer_idx)) {
        PENSTOCK_RETURN_IF_ERROR(RunExperts(pass, rows, place++));
      } else {
        pass.ffn().Dense(rows, layer_idx);
      }
    }
    return absl::OkStatus();
  }

  void Reset() override { prefetch_.Reset(); }

 private:
  // Experts of a layer and the time that each takes.
  struct Layer {
    std::vector<int32_t> experts;
    std::vector<ExpertWork> works;
  };

  absl::Status RunExperts(Pass& pass, RowRange rows, size_t place) {
    const int64_t layer_idx = moe_layers_[place];
    PENSTOCK_RETURN_IF_ERROR(WaitForRoute(pass, rows, place));
    Weigh<int64_t>(pass, layer_idx, pass.ffn().RowsOfExperts(rows, layer_idx), layer_);
    const ExpertSplit split = SplitExperts(options_.hybrid_rule, layer_.works, times_);
    const bool has_device = pass.host_experts() != nullptr;
    if (has_device && !split.host.empty()) pass.ffn().HostGroup(rows, layer_idx);
    pass.ffn().Group(rows, layer_idx);

    LayerExperts device(pass, layer_idx);
    LayerExperts host(pass, layer_idx, has_device ? *pass.host_experts() : pass.experts());
    // Experts are fetched ahead for the processor that computes the layers.
    (has_device ? device : host)
        .Adopt(prefetch_.Settle(pass, layer_idx, IndexesOf(has_device ? split.device : split.host), layer_.experts));
    // Present experts are requested first, so that no other expert takes their slots.
    const auto is_read = [&](int i) {
      return std::find(split.reads.begin(), split.reads.end(), i) != split.reads.end();
    };
    const auto want_present = [&](LayerExperts& experts, const std::vector<int>& places) {
      for (const int i : places) {
        if (!is_read(i)) experts.Want(layer_.experts[i]);
      }
    };
    for (const int i : split.device) {
      if (layer_.works[i].on_device) device.Want(layer_.experts[i]);
    }
    want_present(host, split.host);
    want_present(device, split.transfers);
    for (const int i : split.reads) {
      const bool by_host = std::find(split.host.begin(), split.host.end(), i) != split.host.end();
      (by_host ? host : device).Want(layer_.experts[i]);
    }
    const double device_s = split.device.empty() ? 0 : SumOf(split.device, &ExpertWork::device_s) + device_call_s_;
    Predict(pass, rows, place);
    const double begin_s = pass.runtime().now_s();
    LayerExperts* const both[] = {&device, &host};
    PENSTOCK_RETURN_IF_ERROR(LayerExperts::ComputeAll(
        both, LayerExperts::Order::kArrival, [] {}, [&](std::vector<Event>& events) { FetchAhead(pass, events); }));
    if (has_device) {
      LearnHost(split.host, host);
      device_pace_.Learn(device_s, device.busy_s());
      const double busy_s = std::max(device.busy_s(), host.busy_s());
      if (split.transfers.empty() && split.reads.empty()) {
        (split.host.empty() ? alone_ : handed_over_).Learn(pass.runtime().now_s() - begin_s - busy_s, busy_s);
      }
      times_.host_first_s = cold_.seconds + Handover();
    }
    pass.ffn().Combine(rows, layer_idx);
    return absl::OkStatus();
  }

  // Waits for the router's choices. Attention takes a while, so the link goes on fetching ahead meanwhile.
  absl::Status WaitForRoute(Pass& pass, RowRange rows, size_t place) {
    const Event routed =
        pass.ffn().Route(rows, moe_layers_[place], /*brings_input=*/pass.host_experts() != nullptr,
                         options_.replaces_routers ? predictor_->TableOf(static_cast<int64_t>(place)) : ExpertTable());
    while (!pass.runtime().Done(routed)) {
      std::vector<Event> events = {routed};
      FetchAhead(pass, events);
      (void)pass.runtime().WaitAny(events);
    }
    return pass.runtime().Wait(routed);
  }

  // Sets `layer` to the experts that rows choose, with the time that each takes for its `num_rows`. Also sets the times
  // of reads and transfers in times_.
  template <typename Number>
  void Weigh(Pass& pass, int64_t layer_idx, std::span<const Number> num_rows, Layer& layer) {
    const LaneRates& rates = pass.rates();
    const ExpertStore* const host_store = pass.host_experts();
    const ExpertLayouts& layouts = pass.experts().layouts();
    times_.has_device = host_store != nullptr;
    const double call_s = times_.has_device ? rates.device_compute({}) : 0;
    layer.experts.clear();
    layer.works.clear();
    for (int32_t expert_idx = 0; expert_idx < std::ssize(num_rows); ++expert_idx) {
      const auto rows = static_cast<int64_t>(std::ceil(num_rows[expert_idx]));
      if (rows == 0 || !layouts.is_here(layer_idx, expert_idx)) continue;
      const OperationCost cost = pass.cost().Expert(rows);
      const TaskCost task = {.flops = cost.flops, .memory_bytes = cost.bytes};
      const ExpertKey key = layouts.KeyOf(layer_idx, expert_idx);
      const bool is_present = pass.experts().IsPresent(key) && !prefetch_.IsComing(key);
      layer.experts.push_back(expert_idx);
      ExpertWork& work = layer.works.emplace_back();
      work.host_s = host_pace_.factor * rates.host_compute(task);
      work.in_dram = host_store == nullptr ? is_present : host_store->IsPresent(key);
      if (host_store == nullptr) continue;
      work.on_device = is_present;
      work.device_s = device_pace_.factor * (rates.device_compute(task) - (is_present ? call_s : 0));
    }
    const auto seconds = [](const LaneRates::Duration& link, uint64_t bytes) { return link({.link_bytes = bytes}); };
    const ExpertKey key = layouts.FirstKeyOf(layer_idx);
    times_.read_s = seconds(rates.disk_to_dram, layouts.read_bytes(key));
    if (host_store == nullptr) return;
    // The copy into page-locked memory overlaps with the copy to the device.
    const uint64_t bytes = layouts.finished_extent(key).size_bytes;
    times_.transfer_s = std::max(seconds(rates.dram_to_device, bytes), seconds(rates.dram_to_pinned, bytes));
    times_.transfer_price_s = kTransferPrice * times_.transfer_s;
    // Each processor first groups the rows by experts, and the device computes those that it has in one task. The
    // host's outputs are copied to the device.
    device_call_s_ = device_pace_.factor * call_s;
    times_.device_free_s = 2 * device_call_s_;
    expected_handover_s_ = rates.host_compute({}) +
                           seconds(rates.dram_to_device, static_cast<uint64_t>(4 * pass.config().expert_row_dim()));
    times_.host_first_s = cold_.seconds + Handover();
  }

  std::vector<int32_t> IndexesOf(const std::vector<int>& places) const {
    std::vector<int32_t> indexes;
    for (const int i : places) indexes.push_back(layer_.experts[i]);
    return indexes;
  }

  double SumOf(const std::vector<int>& places, double ExpertWork::*seconds) const {
    double sum_s = 0;
    for (const int i : places) sum_s += layer_.works[i].*seconds;
    return sum_s;
  }

  // Learns how fast the host is and what cold caches cost. The host computes one expert at a time. If the first of
  // several took longer than its share of the others' time, the difference is the cost of cold caches.
  void LearnHost(const std::vector<int>& places, const LayerExperts& host) {
    if (places.empty()) {
      host_pace_.Forget();
      cold_.Forget();
      handed_over_.Forget();
      return;
    }
    const double expected_s = SumOf(places, &ExpertWork::host_s);
    if (places.size() > 1) {
      const double first_s = layer_.works[places[0]].host_s;
      const double pace = (host.busy_s() - host.first_s()) / (expected_s - first_s);
      cold_.Learn(std::max(0.0, host.first_s() - pace * first_s), pace * first_s);
    }
    host_pace_.Learn(expected_s, host.busy_s() - cold_.seconds);
  }

  // Returns how much longer a layer takes because the host takes part, apart from the time to compute. Learnt from
  // layers without transfers and reads.
  double Handover() const {
    return alone_.is_known && handed_over_.is_known ? std::max(0.0, handed_over_.seconds - alone_.seconds)
                                                    : expected_handover_s_;
  }

  // Tells the predictor the rows of the pass, before its first layer, and fetches what it names.
  absl::Status Begin(Pass& pass) {
    if (predictor_ == nullptr) return absl::OkStatus();
    const RowBatch& batch = pass.batch();
    const PassTokens tokens = {
        .sequence_ids = batch.sequence_ids, .positions = batch.positions, .token_ids = batch.token_ids};
    PENSTOCK_RETURN_IF_ERROR(Prepare(pass, tokens));
    predictor_->BeginPass(tokens);
    if (pass.predicts_ahead()) PrepareAhead(pass);
    if (!TraitsOf(options_.predictor).needs_network) return absl::OkStatus();
    if (NamesInOrder(pass)) NameInOrder(pass);
    Name(pass, static_cast<size_t>(pass.PlaceOf(pass.layers().begin)));
    std::vector<Event> events;
    FetchAhead(pass, events);
    return absl::OkStatus();
  }

  // Does the predictor's work for the rows of the pass, as far as it was not done ahead.
  absl::Status Prepare(Pass& pass, const PassTokens& tokens) {
    Event last;
    absl::Status status;
    ForEachSequence(tokens, [&](const PassTokens& rows, size_t) {
      status.Update(EndWorkAhead(pass, rows.sequence_ids.front()));
      ExpertPredictor::Work work = predictor_->Prepare(rows, /*ahead=*/false);
      if (work.run) last = pass.IssueWork(std::move(work));
    });
    status.Update(pass.runtime().Wait(last));
    return status;
  }

  absl::Status EndWorkAhead(Pass& pass, uint32_t sequence_id) {
    const auto work = std::ranges::find(works_ahead_, sequence_id, &WorkAhead::sequence_id);
    if (work == works_ahead_.end()) return absl::OkStatus();
    const Event done = work->done;
    works_ahead_.erase(work);
    return pass.runtime().Wait(done);
  }

  // Issues the predictor's work for the rows that come in later passes.
  void PrepareAhead(Pass& pass) {
    std::vector<WorkAhead> works;
    std::vector<uint32_t> ids;
    std::vector<int64_t> positions;
    for (const NextRows& rows : pass.batch().next_rows) {
      const auto known = std::ranges::find(works_ahead_, rows.sequence_id, &WorkAhead::sequence_id);
      if (known != works_ahead_.end()) {
        works.push_back(*known);
        works.back().is_soon = rows.is_soon;
        continue;
      }
      ids.assign(rows.token_ids.size(), rows.sequence_id);
      positions.resize(rows.token_ids.size());
      std::iota(positions.begin(), positions.end(), rows.first_pos);
      ExpertPredictor::Work work = predictor_->Prepare(
          {.sequence_ids = ids, .positions = positions, .token_ids = rows.token_ids}, /*ahead=*/true);
      if (!work.run) continue;
      works.push_back({.sequence_id = rows.sequence_id,
                       .layers = LayersOf(pass.config(), rows.encodes),
                       .done = pass.IssueAhead(std::move(work)),
                       .is_soon = rows.is_soon});
    }
    // Works for rows that will not come after all: they must have ended before their sequence's next work begins.
    for (WorkAhead& work : works_ahead_) {
      const bool is_kept = std::ranges::find(works, work.sequence_id, &WorkAhead::sequence_id) != works.end();
      if (is_kept || pass.runtime().Done(work.done)) continue;
      work.is_soon = false;
      works.push_back(std::move(work));
    }
    works_ahead_ = std::move(works);
  }

  // Whether experts are named in the order of the layers.
  bool NamesInOrder(const Pass& pass) const {
    return TraitsOf(options_.predictor).needs_network && pass.host_experts() == nullptr;
  }

  // Sets in_order_ to the experts of all layers that rows will probably choose.
  void NameInOrder(Pass& pass) {
    in_order_.clear();
    in_order_from_.assign(1, 0);
    for (WorkAhead& work : works_ahead_) work.is_named = false;
    for (size_t place = 0; place < moe_layers_.size(); ++place) {
      // Not those of the other side of an encoder-decoder model.
      if (pass.layers().Contains(moe_layers_[place])) {
        AddInOrder(pass, moe_layers_[place], predictor_->ExpectedRows(static_cast<int64_t>(place) + 1));
      }
      in_order_from_.push_back(in_order_.size());
    }
  }

  // Fetches named experts while the link is idle. Adds the events after which there may be more to fetch.
  void FetchAhead(Pass& pass, std::vector<Event>& events) {
    if (NamesInOrder(pass)) {
      const size_t num_named = in_order_.size();
      NameAhead(pass, events);
      prefetch_.AddAhead(std::span(in_order_).subspan(num_named));
    }
    prefetch_.Issue(pass, events);
  }

  // Adds the experts of the next passes whose work has been done. The disk then reads them while this pass is computed.
  void NameAhead(Pass& pass, std::vector<Event>& events) {
    for (WorkAhead& work : works_ahead_) {
      if (work.is_named || !work.is_soon) continue;
      if (!pass.runtime().Done(work.done)) return events.push_back(work.done);
      work.is_named = true;
      for (size_t place = 0; place < moe_layers_.size(); ++place) {
        if (!work.layers.Contains(moe_layers_[place])) continue;
        AddInOrder(pass, moe_layers_[place], predictor_->ExpectedAhead(work.sequence_id, static_cast<int64_t>(place)));
      }
    }
  }

  void AddInOrder(Pass& pass, int64_t layer_idx, std::span<const float> expected) {
    if (expected.empty()) return;
    KeepLikely(expected);
    const ExpertLayouts& layouts = pass.experts().layouts();
    for (size_t i = 0; i < expected.size() && likely_[order_[i]] >= kLeastRows; ++i) {
      if (layouts.is_here(layer_idx, order_[i])) in_order_.push_back(layouts.KeyOf(layer_idx, order_[i]));
    }
  }

  // Names the experts to fetch while the link is idle.
  void Predict(Pass& pass, RowRange rows, size_t place) {
    if (predictor_ == nullptr) return;
    const int64_t layer_idx = moe_layers_[place];
    predictor_->Observe({.layer_idx = layer_idx,
                         .sequence_ids = pass.sequence_ids(rows),
                         .choices = pass.routing().Choices(layer_idx, rows.begin, rows.size()),
                         .scores = pass.routing().Scores(layer_idx, rows.begin, rows.size()),
                         .routing = &pass.routing()});
    Name(pass, place + 1);
  }

  // Names experts of the layers from this place on.
  void Name(Pass& pass, size_t next_place) {
    if (NamesInOrder(pass)) {
      const std::span<const ExpertKey> keys(in_order_);
      const size_t end = in_order_from_.back();
      return prefetch_.SetNextInOrder(keys.first(end).subspan(in_order_from_[next_place]), keys.subspan(end),
                                      /*is_certain=*/options_.replaces_routers);
    }
    candidates_.clear();
    const auto num_layers = std::ssize(moe_layers_);
    for (int64_t ahead = 1; ahead <= std::min({predictor_->distance(), num_layers, kMaxAhead}); ++ahead) {
      const std::span<const float> expected = predictor_->ExpectedRows(ahead);
      const int64_t target = (static_cast<int64_t>(next_place) + ahead - 1) % num_layers;
      // The rows of an encoder do not go through the decoder.
      if (pass.config().encoder.is_on() && !pass.layers().Contains(moe_layers_[target])) break;
      if (!expected.empty()) Rank(pass, moe_layers_[target], expected);
    }
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.saved_s > b.saved_s; });
    std::vector<ExpertKey> keys;
    for (const Candidate& candidate : candidates_) keys.push_back(candidate.key);
    prefetch_.SetNext(std::move(keys));
  }

  // Sets order_, and likely_ to as many of the likeliest experts as will probably be chosen.
  void KeepLikely(std::span<const float> expected) {
    order_.resize(expected.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return expected[a] > expected[b]; });
    double num_distinct = 0;
    for (const float rows : expected) num_distinct += std::min(rows, 1.0f);
    likely_.assign(expected.size(), 0.0f);
    for (size_t i = 0; i < order_.size() && static_cast<double>(i) < num_distinct; ++i) {
      likely_[order_[i]] = expected[order_[i]];
    }
  }

  // Adds the likeliest absent experts of a layer to candidates_. Each saves the difference between the times of the
  // layer's split without it and with it.
  void Rank(Pass& pass, int64_t layer_idx, std::span<const float> expected) {
    KeepLikely(expected);
    Weigh<float>(pass, layer_idx, likely_, ahead_);
    const double seconds = SplitExperts(options_.hybrid_rule, ahead_.works, times_).seconds;
    size_t num_planned = 0;
    for (const int32_t expert_idx : order_) {
      if (num_planned == kMaxCandidates || likely_[expert_idx] == 0) break;
      if (!pass.experts().layouts().is_here(layer_idx, expert_idx)) continue;
      const ExpertKey key = pass.experts().layouts().KeyOf(layer_idx, expert_idx);
      if (pass.experts().IsPresent(key)) continue;
      const size_t i =
          std::lower_bound(ahead_.experts.begin(), ahead_.experts.end(), expert_idx) - ahead_.experts.begin();
      const ExpertWork work = ahead_.works[i];
      (times_.has_device ? ahead_.works[i].on_device : ahead_.works[i].in_dram) = true;
      const double saved_s = seconds - SplitExperts(options_.hybrid_rule, ahead_.works, times_).seconds;
      ahead_.works[i] = work;
      ++num_planned;
      const double probability = std::min(expected[expert_idx], 1.0f);
      if (saved_s > 0) candidates_.push_back({key, probability * saved_s});
    }
  }

  // Recent pace of a processor: seconds that it takes for each second that the rates predict.
  struct Pace {
    double factor = 1;
    void Learn(double expected_s, double seconds) {
      constexpr double kShare = 0.1;  // weight of the last layer
      if (expected_s > 0 && seconds > 0) factor *= 1 + kShare * (std::clamp(seconds / expected_s, 0.1, 10.0) - 1);
    }
    void Forget() { factor += kForgets * (1 - factor); }
  };
  // Recent mean of an additional time. A sample is capped at a multiple of the time that it adds to, because a longer
  // one was an accident.
  struct Mean {
    double seconds = 0;
    bool is_known = false;
    void Learn(double sample_s, double beside_s) {
      constexpr double kShare = 0.1, kMax = 10;
      sample_s = std::min(sample_s, kMax * beside_s);
      seconds += (is_known ? kShare : 1) * (sample_s - seconds);
      is_known = true;
    }
    void Forget() { seconds -= kForgets * seconds; }
  };
  // Share of the learnt value that is forgotten in each layer without a sample, because the cause of a bad value may
  // have passed.
  static constexpr double kForgets = 0.01;
  // Work for rows of a later pass.
  struct WorkAhead {
    uint32_t sequence_id = 0;
    IndexRange layers;
    Event done;
    bool is_soon = false;
    bool is_named = false;  // its experts are in in_order_
  };
  struct Candidate {
    ExpertKey key = kNoExpert;
    double saved_s = 0;
  };

  ScheduleOptions options_;
  std::vector<int64_t> moe_layers_;
  Pace host_pace_, device_pace_;
  Mean cold_;                       // extra time of the host's first expert
  Mean alone_, handed_over_;        // layers' time besides computing: without the host, with it
  double device_call_s_ = 0;        // a task of the device besides its work
  double expected_handover_s_ = 0;  // Handover() before it has been learnt
  LaneTimes times_;
  Layer layer_;  // the present layer
  std::unique_ptr<ExpertPredictor> predictor_;
  std::vector<WorkAhead> works_ahead_;
  ExpertPrefetch prefetch_;
  Layer ahead_;                 // a predicted layer
  std::vector<int32_t> order_;  // [num_experts]: the likeliest first
  std::vector<float> likely_;   // [num_experts]: expected rows; 0 for experts that are probably not chosen
  std::vector<Candidate> candidates_;
  std::vector<ExpertKey> in_order_;    // named experts of all layers of the pass, then of later passes
  std::vector<size_t> in_order_from_;  // [num_layers + 1]: where those of each layer begin
};

}  // namespace

std::unique_ptr<Schedule> MakeHybrid(const ScheduleOptions& options, const ModelConfig& config) {
  return std::make_unique<HybridSchedule>(options, config);
}

}  // namespace penstock
