// Klotski's expert-aware pipeline over a group of micro-batches. Hot experts are fetched during attention, the others
// when a gate chooses them. Each expert is computed for all micro-batches at once, in order of arrival.
//
// Beyond the paper:
// - Experts that are already in slots (the pinned share) are not prefetched. So the K prefetched experts are the
//   hottest of those that must come from the disk.
// - An expert that is probably not needed (few rows) is not prefetched, because its read would delay those that are.
// - If all are probably needed, K is the number of experts that find a slot. On a device one slot stays free for the
//   present layer's experts.
// - Hot experts travel to a device in pages: while the link is idle, and between the KV entries of micro-batches. No
//   micro-batch waits for whole experts then.
// - Below a device, the disk goes on with the layers after the next one as far as DRAM has room (the paper's window).
// - The first layer of the next pass is prefetched while this pass ends.
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "penstock/model/family.h"
#include "penstock/routing/correlation_table.h"
#include "penstock/schedule/layer_experts.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

// An expert is fetched ahead if it can expect at least this many of the group's assignments. It is then chosen with a
// probability of at least 1 - exp(-1.6) = 0.8.
constexpr double kMinExpected = 1.6;

// Maximum bytes of the correlation table. A path takes 4 bytes for each expert and about 150 more.
constexpr uint64_t kMaxTableBytes = 8 * kMiB;

uint64_t PathBytes(const ModelConfig& config) { return 4 * static_cast<uint64_t>(config.num_experts) + 150; }

class KlotskiSchedule : public Schedule {
 public:
  KlotskiSchedule(const ScheduleOptions& options, const ModelConfig& config)
      : options_(options),
        hot_experts_(options.hot_experts > 0 ? options.hot_experts : config.num_experts),
        table_(CorrelationShapeOf(config, options.path_length), MaxCorrelationPaths(config, options.path_length)),
        moe_layers_(config.moe_layers()) {}

  absl::Status Run(Pass& pass) override {
    const std::span<const RowRange> all = pass.micro_batches();
    if (options_.multi_batch) return RunGroup(pass, all, /*is_last=*/true);
    for (size_t i = 0; i < all.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(RunGroup(pass, all.subspan(i, 1), i + 1 == all.size()));
    }
    return absl::OkStatus();
  }

  void Reset() override { hot_.clear(); }
  CorrelationTable* correlation() override { return &table_; }

 private:
  absl::Status RunGroup(Pass& pass, std::span<const RowRange> micro_batches, bool is_last) {
    const RowRange group = {micro_batches.front().begin, micro_batches.back().end};
    for (const RowRange& rows : micro_batches) pass.attention().Embed(rows);
    ForgetHistory();
    first_after_ = static_cast<size_t>(pass.PlaceOf((is_last ? pass.next_layers() : pass.layers()).begin));
    auto moe_layer = static_cast<size_t>(pass.PlaceOf(pass.layers().begin));
    if (moe_layer != hot_layer_) hot_.clear();
    for (int64_t layer_idx = pass.layers().begin; layer_idx < pass.layers().end; ++layer_idx) {
      if (!pass.has_experts(layer_idx)) {
        for (size_t i = 0; i < micro_batches.size(); ++i) pass.attention().Attend(micro_batches, i, layer_idx);
        pass.ffn().Dense(group, layer_idx);
        continue;
      }
      std::vector<Event> gates;
      const int64_t num_pages = pass.experts().num_waiting_pages();
      const auto num_micro_batches = std::ssize(micro_batches);
      for (int64_t i = 0; i < num_micro_batches; ++i) {
        pass.attention().Attend(micro_batches, i, layer_idx);
        IssuePages(pass, num_pages - num_pages * (i + 1) / num_micro_batches);
        gates.push_back(pass.ffn().Route(micro_batches[i], layer_idx));
      }
      LayerExperts experts(pass, layer_idx);
      experts.Adopt(std::exchange(hot_, {}));
      // When a gate has chosen, transfers are issued at once, while the next micro-batch's attention is computed.
      for (size_t i = 0; i < gates.size(); ++i) {
        PENSTOCK_RETURN_IF_ERROR(pass.runtime().Wait(gates[i]));
        for (const int32_t expert_idx : pass.ffn().Chosen(micro_batches[i], layer_idx)) experts.Want(expert_idx);
      }
      Observe(pass, group, layer_idx, moe_layer);
      // Each expert is computed once for the rows of the whole group, not for each micro-batch.
      pass.ffn().Group(group, layer_idx);
      const auto order = options_.reorder ? LayerExperts::Order::kArrival : LayerExperts::Order::kIndex;
      hot_layer_ = moe_layer = NextPlace(pass, moe_layer);
      Predict(pass, group, moe_layer);
      PENSTOCK_RETURN_IF_ERROR(experts.Compute(
          order, [&] { Prefetch(pass, moe_layer); },
          [&](std::vector<Event>& events) { IssuePageIfIdle(pass, events); }));
      pass.ffn().Combine(group, layer_idx);
    }
    return absl::OkStatus();
  }

  // Returns the place of the next layer with experts, for these rows or those that come after them.
  size_t NextPlace(const Pass& pass, size_t place) const {
    const size_t next = place + 1;
    if (next < moe_layers_.size() && moe_layers_[next] < pass.layers().end) return next;
    return first_after_ % moe_layers_.size();
  }

  // Counts what the gates chose, and keeps it as a part of the paths to the next layers.
  void Observe(Pass& pass, RowRange group, int64_t layer_idx, size_t moe_layer) {
    const std::span<const int32_t> choices = pass.routing().Choices(layer_idx, group.begin, group.size());
    table_.Update(static_cast<int64_t>(moe_layer), History(group), choices);
    CountNamed(pass, moe_layer, choices);
    std::rotate(previous_choices_.begin(), previous_choices_.end() - 1, previous_choices_.end());
    previous_choices_[0].assign(choices.begin(), choices.end());
  }
  // Counts how many of the experts that were named for this layer are among its most wanted ones.
  void CountNamed(Pass& pass, size_t moe_layer, std::span<const int32_t> choices) {
    if (named_.empty() || named_place_ != moe_layer) return;
    std::vector<double> num_rows(pass.config().num_experts);
    for (const int32_t expert_idx : choices) ++num_rows[expert_idx];
    const std::vector<int32_t> wanted = Highest(num_rows, std::ssize(named_));
    // Experts that are wanted as often as the last of these are as right.
    const double least = std::max(1.0, num_rows[wanted.back()]);
    pass.experts().CountNamed(std::ssize(named_), std::ranges::count_if(named_, [&](int32_t expert_idx) {
                                return num_rows[expert_idx] >= least;
                              }));
    named_.clear();
  }
  // Returns the places of the `count` highest values, the highest first.
  static std::vector<int32_t> Highest(std::span<const double> values, int64_t count) {
    std::vector<int32_t> places(values.size());
    std::iota(places.begin(), places.end(), 0);
    count = std::min(count, std::ssize(places));
    std::partial_sort(places.begin(), places.begin() + count, places.end(),
                      [&](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
    places.resize(count);
    return places;
  }

  void ForgetHistory() {
    for (std::vector<int32_t>& choices : previous_choices_) choices.clear();
  }

  RoutingHistory History(RowRange group) const {
    RoutingHistory history{.num_rows = group.size(), .choices = {}};
    std::copy(previous_choices_.begin(), previous_choices_.end(), history.choices.begin());
    return history;
  }

  // Fetches the hot experts of the next layer during that layer's attention, and no others. With a device, the others
  // that are probably needed are fetched from the disk into DRAM, and then those of later layers.
  void Prefetch(Pass& pass, size_t moe_layer) {
    ExpertStore& store = pass.experts();
    const int64_t max = pass.has_device() ? std::min(hot_experts_, store.num_streaming_slots() - 1) : hot_experts_;
    for (; !likely_.empty() && std::ssize(hot_) < max; likely_.pop_back()) {
      if (pass.IsPresent(moe_layers_[moe_layer], likely_.back())) continue;
      auto lease =
          store.AcquireByPages(store.layouts().KeyOf(moe_layers_[moe_layer], likely_.back()), FetchReason::kPredicted);
      if (!lease.has_value()) break;
      hot_.push_back(std::move(*lease));
    }
    std::vector<ExpertKey> keys;
    for (auto expert = likely_.rbegin(); expert != likely_.rend(); ++expert) {
      keys.push_back(store.layouts().KeyOf(moe_layers_[moe_layer], *expert));
    }
    if (needs_all_) AddWindow(pass, moe_layer, keys);
    store.Announce(std::move(keys));
    if (!pass.attention().stages_kv()) IssuePages(pass, 0);
  }

  // Issues pages of hot experts until `num_left` are left. IssuePage() always succeeds: the tier below holds one expert
  // at a time for them, and drops others that it fetched ahead.
  void IssuePages(Pass& pass, int64_t num_left) {
    while (pass.experts().num_waiting_pages() > num_left) {
      const std::optional<Event> page = pass.experts().IssuePage();
      PENSTOCK_CHECK(page.has_value());
      last_pages_ = {last_pages_[1], *page};
    }
  }

  // Issues the next page of a hot expert if at most one is under way: one in each hop keeps the link busy, and KV
  // entries wait for two pages at most. Adds the event after which there may be another page to issue.
  void IssuePageIfIdle(Pass& pass, std::vector<Event>& events) {
    const int64_t num_pages = pass.experts().num_waiting_pages();
    if (num_pages == 0) return;
    if (pass.runtime().Done(last_pages_[0])) IssuePages(pass, num_pages - 1);
    events.push_back(last_pages_[0]);
  }

  // With a device: adds the experts of the layers after `moe_layer` that stream from the disk, as many as there is room
  // for in DRAM. The disk then reads on while the device is the limit.
  void AddWindow(Pass& pass, size_t moe_layer, std::vector<ExpertKey>& keys) const {
    ExpertStore& store = pass.experts();
    const ExpertLayouts& layouts = store.layouts();
    int64_t room = store.max_ahead();
    size_t place = moe_layer;
    for (size_t ahead = 1; ahead < moe_layers_.size() && room > 0; ++ahead) {
      place = NextPlace(pass, place);
      const ExpertKey begin = layouts.FirstKeyOf(moe_layers_[place]);
      const ExpertKey end = begin + layouts.num_experts_of(moe_layers_[place]);
      for (ExpertKey key = store.NextStreamingBelow(begin); key < end && room > 0;
           key = store.NextStreamingBelow(key + 1)) {
        if (store.IsPresent(key)) continue;
        keys.push_back(key);
        --room;
      }
    }
  }

  // Sets likely_ to the experts of a layer on this rank that are probably needed, the likeliest last; and needs_all_.
  void Predict(const Pass& pass, RowRange group, size_t moe_layer) {
    const ModelConfig& config = pass.config();
    likely_.clear();
    needs_all_ = options_.hot_prefetch && static_cast<double>(group.size() * config.num_topk) >=
                                              kMinExpected * static_cast<double>(config.num_experts);
    if (!options_.hot_prefetch) return;
    if (moe_layer == first_after_ % moe_layers_.size()) ForgetHistory();  // nothing is known about the next rows
    std::vector<double> tendency = table_.Tendency(static_cast<int64_t>(moe_layer), History(group));
    // Rows without a known path are equally likely to choose any expert.
    const double known = std::accumulate(tendency.begin(), tendency.end(), 0.0);
    const double unknown = (static_cast<double>(group.size()) - known) / static_cast<double>(config.num_experts);
    for (double& rows : tendency) rows += std::max(unknown, 0.0);
    if (std::ranges::max(tendency) > std::ranges::min(tendency))
      named_ = Highest(tendency, options_.hot_experts > 0 ? options_.hot_experts : config.num_topk);
    named_place_ = moe_layer;
    for (int32_t expert_idx = 0; expert_idx < static_cast<int32_t>(tendency.size()); ++expert_idx) {
      if (!pass.experts().layouts().is_here(moe_layers_[moe_layer], expert_idx)) continue;
      if (tendency[expert_idx] * static_cast<double>(config.num_topk) >= kMinExpected) likely_.push_back(expert_idx);
    }
    std::stable_sort(likely_.rbegin(), likely_.rend(), [&](int32_t a, int32_t b) { return tendency[a] > tendency[b]; });
  }

  ScheduleOptions options_;
  int64_t hot_experts_;
  CorrelationTable table_;
  std::vector<int64_t> moe_layers_;
  // Choices of the group's rows in the previous layers, the nearest layer first: [num_rows, num_topk].
  std::array<std::vector<int32_t>, kMaxPathLength> previous_choices_;
  std::vector<int32_t> likely_;      // experts of the next layer that were not requested yet, likeliest last
  bool needs_all_ = false;           // the group probably needs nearly all experts of later layers, too
  std::vector<int32_t> named_;       // the K experts of a layer that are probably wanted most
  size_t named_place_ = 0;           // the layer's place among the layers with experts
  std::vector<ExpertLease> hot_;     // leases on experts of the next layer
  std::array<Event, 2> last_pages_;  // of the hot experts
  size_t hot_layer_ = 0;             // its place among the layers with experts
  size_t first_after_ = 0;           // the place of the first layer with experts for the rows that come next
};

}  // namespace

int64_t MaxCorrelationPaths(const ModelConfig& config, int64_t path_length) {
  const auto max = static_cast<int64_t>(kMaxTableBytes / PathBytes(config));
  // There is one path of length 1 for each expert of each layer. Longer paths are limited only by the table's bytes.
  return path_length > 1 ? max : std::min(config.num_moe_layers() * config.num_experts, max);
}

CorrelationShape CorrelationShapeOf(const ModelConfig& config, int64_t path_length) {
  return {.num_layers = config.num_moe_layers(),
          .num_experts = config.num_experts,
          .num_topk = config.num_topk,
          .path_length = path_length,
          .model = config.family == nullptr ? "model" : std::string(config.family->name)};
}

uint64_t ScheduleBytes(const ModelConfig& config, int64_t path_length) {
  // Paths of length 0 are always kept: one for each layer.
  return static_cast<uint64_t>(MaxCorrelationPaths(config, path_length) + config.num_moe_layers()) * PathBytes(config);
}

std::unique_ptr<Schedule> MakeKlotski(const ScheduleOptions& options, const ModelConfig& config) {
  return std::make_unique<KlotskiSchedule>(options, config);
}

}  // namespace penstock
