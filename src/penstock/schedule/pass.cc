#include "penstock/schedule/pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// `dim` elements of each row.
template <typename Copies, typename T>
void AddRows(Copies& copies, std::span<T> from, std::span<T> to, RowRange rows, int64_t dim) {
  copies.push_back({reinterpret_cast<std::byte*>(to.data() + rows.begin * dim),
                    reinterpret_cast<const std::byte*>(from.data() + rows.begin * dim),
                    static_cast<size_t>(rows.size() * dim) * sizeof(T)});
}

}  // namespace

LaneRates::Duration TransferTime(double bytes_per_s) {
  return [=](const TaskCost& cost) { return static_cast<double>(cost.link_bytes) / bytes_per_s; };
}

Pass::Pass(Args args)
    : args_(std::move(args)),
      embedded_(static_cast<size_t>(args_.batch.num_rows())),
      offloaded_(embedded_.size()),
      stored_(embedded_.size()),
      group_rows_(static_cast<size_t>(args_.config.num_experts)),
      group_offsets_(group_rows_.size()),
      mean_scores_(args_.config.num_experts, args_.config.num_topk) {
  args_.row_status.assign(embedded_.size(), absl::OkStatus());
}

Pass::~Pass() {
  for (const auto& [lane, event] : last_) (void)args_.runtime.Wait(event);
}

TaskLabel Pass::LabelOf(std::string_view name, RowRange rows, int64_t layer_idx) const {
  TaskLabel label{.name = name, .layer_idx = layer_idx};
  const std::vector<RowRange>& all = args_.micro_batches;
  const auto found = std::find(all.begin(), all.end(), rows);
  if (all.size() > 1 && found != all.end()) label.micro_batch_idx = found - all.begin();
  return label;
}

// What fails ends the pass: what is issued after it on its lane, and what waits for it elsewhere.
Event Pass::IssueInOrder(Task task) {
  Event& last = last_[task.lane];
  task.after.push_back(last);
  last = args_.runtime.Issue(std::move(task));
  return last;
}

Event Pass::Issue(const PassProcessor& processor, TaskLabel label, const OperationCost& cost, Events after, Body body) {
  Task task{
      .lane = processor.lane,
      .label = label,
      .cost = {.flops = cost.flops, .memory_bytes = cost.bytes, .kv_bytes = cost.kv_bytes, .kv_flops = cost.kv_flops},
      .after = std::move(after)};
  if (processor.operations != nullptr) {
    task.body = [operations = processor.operations, run = std::move(body)] {
      run(*operations);
      return absl::OkStatus();
    };
  }
  return IssueInOrder(std::move(task));
}

Event Pass::Copy(Direction direction, TaskLabel label, uint64_t link_bytes, Events after, CopyLister list) {
  const PassDevice& device = *args_.device;
  const bool to_device = direction == Direction::kToDevice;
  Task task{.lane = to_device ? device.dram_to_device_lane : device.device_to_dram_lane,
            .label = label,
            .cost = {.link_bytes = link_bytes},
            .after = std::move(after)};
  if (args_.host.operations != nullptr) {
    Copies copies;
    list(args_.host.operations->activations(), device.processor.operations->activations(), copies);
    task.body = [copies = std::move(copies), copier = to_device ? device.to_device : device.to_host] {
      return copier->Copy(copies);
    };
  }
  return IssueInOrder(std::move(task));
}

ModelCost::Context Pass::ContextOf(RowRange rows, int64_t layer_idx) const {
  const int64_t window = args_.config.window_of(layer_idx);
  ModelCost::Context context;
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    int64_t seen = args_.batch.kv_positions[row_idx] + 1;
    if (window > 0) seen = std::min(seen, window);
    context.seen_tokens += seen;
    const bool is_last =
        row_idx + 1 == rows.end || args_.batch.sequence_ids[row_idx + 1] != args_.batch.sequence_ids[row_idx];
    if (is_last) context.read_tokens += seen;
  }
  return context;
}

KvView Pass::CacheView(RowRange rows, int64_t layer_idx) const {
  KvView view{
      .layer = args_.kv,
      .pages =
          std::span(args_.batch.kv_pages).subspan(static_cast<size_t>(rows.begin), static_cast<size_t>(rows.size()))};
  view.layer.first_block_bytes = layer_idx * args_.kv.bytes();
  return view;
}

Event Pass::Embed(RowRange rows) {
  const Event embedded = Issue(args_.host, LabelOf("embed", rows), {}, {},
                               [this, rows](Operations& operations) { operations.Embed(args_.batch, rows); });
  if (!args_.device.has_value()) return embedded;
  const int64_t angles = args_.config.num_angles(), dim = args_.config.model_dim;
  const Event loaded = Copy(Direction::kToDevice, LabelOf("load hidden", rows),
                            static_cast<uint64_t>(4 * rows.size() * (dim + 2 * angles)), {embedded},
                            [=](Activations& host, Activations& device, Copies& copies) {
                              AddRows(copies, host.residual, device.residual, rows, dim);
                              AddRows(copies, host.cos, device.cos, rows, angles);
                              AddRows(copies, host.sin, device.sin, rows, angles);
                            });
  embedded_[static_cast<size_t>(rows.begin)] = loaded;
  return loaded;
}

Events Pass::BeforeLayer(RowRange rows) const {
  Events after;
  if (!args_.device.has_value()) return after;
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    const Event& embedded = embedded_[static_cast<size_t>(row_idx)];
    if (!args_.runtime.Done(embedded)) after.push_back(embedded);
  }
  after.push_back(offloaded_[static_cast<size_t>(rows.begin)]);  // q, k and v are written again
  return after;
}

Event Pass::Attention(std::span<const RowRange> micro_batches, size_t i, int64_t layer_idx) {
  const RowRange rows = micro_batches[i];
  if (stages_kv()) {
    FetchKv(rows, layer_idx);
    if (i + 1 < micro_batches.size()) {
      FetchKv(micro_batches[i + 1], layer_idx);
    } else if (layer_idx + 1 < args_.config.num_layers) {
      FetchKv(micro_batches[0], layer_idx + 1);
    }
    return StagedAttention(rows, layer_idx);
  }
  return Issue(compute(), LabelOf("attention", rows, layer_idx),
               args_.cost.Attention(rows.size(), ContextOf(rows, layer_idx)), BeforeLayer(rows),
               [=, this](Operations& operations) {
                 const KvView kv = CacheView(rows, layer_idx);
                 operations.PreAttention(rows, layer_idx);
                 operations.StoreKv(args_.batch, rows, kv);
                 operations.Attend(args_.batch, rows, layer_idx, kv);
                 operations.PostAttention(rows, layer_idx);
               });
}

void Pass::FetchKv(RowRange rows, int64_t layer_idx) {
  if (stages_kv() && FindStaged(rows, layer_idx) == nullptr) staged_.push_back(Stage(rows, layer_idx));
}

std::shared_ptr<Pass::StagedKv> Pass::FindStaged(RowRange rows, int64_t layer_idx) const {
  for (const auto& staged : staged_) {
    if (staged->layer_idx == layer_idx && staged->rows == rows) return staged;
  }
  return nullptr;
}

std::shared_ptr<Pass::StagedKv> Pass::Stage(RowRange rows, int64_t layer_idx) {
  KvStaging& staging = *args_.device->kv_staging;
  PENSTOCK_CHECK(staged_.size() < KvStaging::kNumBuffers);
  auto staged = std::make_shared<StagedKv>();
  staged->layer_idx = layer_idx;
  staged->rows = rows;
  staged->buffer_idx = staging.Take();
  Copies copies;
  const RowBatch& batch = args_.batch;
  const int64_t layer_bytes = args_.kv.bytes();
  uint64_t link_bytes = 0;
  int64_t page_idx = 0;
  absl::flat_hash_map<const std::byte*, std::byte*> copy_of;  // rows of a window share pages
  for (int64_t first = rows.begin; first < rows.end;) {
    int64_t end = first + 1;
    while (end < rows.end && batch.sequence_ids[end] == batch.sequence_ids[first] &&
           batch.kv_pages[end].data() == batch.kv_pages[first].data()) {
      ++end;
    }
    // Entries of earlier passes come; those of the rows themselves are written here.
    const int64_t num_stored = batch.kv_positions[first];
    const int64_t num_pages = KvCache::PagesFor(batch.kv_positions[end - 1] + 1);
    std::vector<std::byte*>& pages = staged->lists.emplace_back();
    for (int64_t i = 0; i < num_pages; ++i) {
      const bool comes = i * KvCache::kPageTokens < num_stored;
      if (args_.host.operations == nullptr) {
        link_bytes += comes ? static_cast<uint64_t>(layer_bytes) : 0;
        ++page_idx;
        continue;
      }
      const std::byte* page = batch.kv_pages[first][static_cast<size_t>(i)];
      const auto [copy, is_new] = copy_of.try_emplace(page, nullptr);
      if (is_new) {
        copy->second = staging.page(staged->buffer_idx, page_idx++);
        if (comes) copies.push_back({copy->second, page + layer_idx * layer_bytes, static_cast<size_t>(layer_bytes)});
      }
      pages.push_back(copy->second);
    }
    for (; first < end; ++first) staged->row_pages.emplace_back(pages);
  }
  if (args_.host.operations != nullptr) link_bytes = copies.size() * static_cast<uint64_t>(layer_bytes);
  PENSTOCK_CHECK(page_idx <= staging.num_pages());
  staged->arrived = Copy(Direction::kToDevice, LabelOf("load kv", rows, layer_idx), link_bytes,
                         {staging.last_use(staged->buffer_idx)},
                         [&](Activations&, Activations&, Copies& all) { all = std::move(copies); });
  return staged;
}

Event Pass::StagedAttention(RowRange rows, int64_t layer_idx) {
  const std::shared_ptr<StagedKv> staged = FindStaged(rows, layer_idx);
  std::erase(staged_, staged);
  const auto slot = static_cast<size_t>(rows.begin);
  Events after = BeforeLayer(rows);
  after.push_back(staged->arrived);
  KvStaging& staging = *args_.device->kv_staging;
  const Event done = Issue(compute(), LabelOf("attention", rows, layer_idx),
                           args_.cost.Attention(rows.size(), ContextOf(rows, layer_idx)), std::move(after),
                           [=, this, layer = staging.layer()](Operations& operations) {
                             const KvView kv{.layer = layer, .pages = staged->row_pages};
                             operations.PreAttention(rows, layer_idx);
                             operations.StoreKv(args_.batch, rows, kv);
                             operations.Attend(args_.batch, rows, layer_idx, kv);
                             operations.PostAttention(rows, layer_idx);
                           });
  staging.last_use(staged->buffer_idx) = done;
  const int64_t k_dim = args_.config.kv_dim(), v_dim = args_.config.v_dim();
  offloaded_[slot] = Copy(Direction::kToHost, LabelOf("store kv", rows, layer_idx),
                          static_cast<uint64_t>(4 * rows.size() * (k_dim + v_dim)), {done, stored_[slot]},
                          [=](Activations& host, Activations& device, Copies& copies) {
                            AddRows(copies, device.k, host.k, rows, k_dim);
                            AddRows(copies, device.v, host.v, rows, v_dim);
                          });
  stored_[slot] =
      Issue(args_.host, LabelOf("store kv", rows, layer_idx), {}, {offloaded_[slot]},
            [=, this](Operations& operations) { operations.StoreKv(args_.batch, rows, CacheView(rows, layer_idx)); });
  return done;
}

Event Pass::PreAttention(RowRange rows, int64_t layer_idx) {
  return Issue(compute(), LabelOf("pre-attention", rows, layer_idx), args_.cost.PreAttention(rows.size()),
               BeforeLayer(rows), [=](Operations& operations) { operations.PreAttention(rows, layer_idx); });
}

Event Pass::OffloadQkv(RowRange rows, const Event& pre_attention) {
  const int64_t q_dim = args_.config.q_dim(), k_dim = args_.config.kv_dim(), v_dim = args_.config.v_dim();
  Event& offloaded = offloaded_[static_cast<size_t>(rows.begin)];
  offloaded = Copy(Direction::kToHost, LabelOf("offload qkv", rows),
                   static_cast<uint64_t>(4 * rows.size() * (q_dim + k_dim + v_dim)), {pre_attention},
                   [=](Activations& host, Activations& device, Copies& copies) {
                     AddRows(copies, device.q, host.q, rows, q_dim);
                     AddRows(copies, device.k, host.k, rows, k_dim);
                     AddRows(copies, device.v, host.v, rows, v_dim);
                   });
  return offloaded;
}

Event Pass::HostAttention(RowRange rows, int64_t layer_idx, const Event& offloaded) {
  return Issue(args_.host, LabelOf("attention", rows, layer_idx), args_.cost.AttentionCore(ContextOf(rows, layer_idx)),
               {offloaded}, [=, this](Operations& operations) {
                 const KvView kv = CacheView(rows, layer_idx);
                 operations.StoreKv(args_.batch, rows, kv);
                 operations.Attend(args_.batch, rows, layer_idx, kv);
               });
}

Event Pass::LoadAttended(RowRange rows, const Event& attended) {
  const int64_t dim = args_.config.attended_dim();
  return Copy(Direction::kToDevice, LabelOf("load hidden", rows), static_cast<uint64_t>(4 * rows.size() * dim),
              {attended}, [=](Activations& host, Activations& device, Copies& copies) {
                AddRows(copies, host.attended, device.attended, rows, dim);
              });
}

Event Pass::PostAttention(RowRange rows, int64_t layer_idx, const Event& loaded) {
  return Issue(compute(), LabelOf("post-attention", rows, layer_idx), args_.cost.PostAttention(rows.size()), {loaded},
               [=](Operations& operations) { operations.PostAttention(rows, layer_idx); });
}

void Pass::FetchWindow(int64_t layer_idx, int64_t expert_idx) {
  if (!args_.device.has_value()) return;
  ExpertStore& store = *args_.experts;
  const int64_t first = store.layouts().KeyOf(layer_idx, expert_idx), most = store.most_ahead();
  std::vector<int64_t> keys;
  // Around the model once.
  for (const auto& [begin, end] : {std::pair(first, store.layouts().num_experts()), std::pair(int64_t{0}, first)}) {
    for (int64_t key = store.NextStreamingBelow(begin); key < end && std::ssize(keys) < most;) {
      if (!store.IsPresent(key)) keys.push_back(key);
      key = store.NextStreamingBelow(key + 1);
    }
  }
  store.Announce(std::move(keys));
}

absl::InlinedVector<int64_t, kMaxAhead> Pass::LayersAhead(int64_t layer_idx) const {
  absl::InlinedVector<int64_t, kMaxAhead> layers;
  for (int64_t next = layer_idx + 1; next < args_.config.num_layers && std::ssize(layers) < kMaxAhead; ++next) {
    if (has_experts(next)) layers.push_back(next);
  }
  return layers;
}

Event Pass::Route(RowRange rows, int64_t layer_idx, bool brings_input) {
  absl::InlinedVector<int64_t, kMaxAhead> layers_ahead;
  if (args_.looks_ahead) layers_ahead = LayersAhead(layer_idx);
  OperationCost cost;
  for (size_t i = 0; i <= layers_ahead.size(); ++i) cost += args_.cost.Route(rows.size());
  const Event routed = Issue(compute(), LabelOf("route", rows, layer_idx), cost, {},
                             [rows, layer_idx, layers_ahead](Operations& operations) {
                               operations.Route(rows, layer_idx);
                               for (size_t i = 0; i < layers_ahead.size(); ++i) {
                                 operations.RouteAhead(rows, layers_ahead[i], static_cast<int64_t>(i) + 1);
                               }
                             });
  if (!args_.device.has_value()) {
    SharedFfn(rows, layer_idx);
    return routed;
  }
  const auto num_ahead = static_cast<int64_t>(layers_ahead.size());
  const int64_t num_topk = args_.config.num_topk;
  const int64_t num_scores = args_.wants_scores || args_.experts->wants_scores() ? args_.config.num_experts : 0;
  const int64_t input_bytes = brings_input ? args_.ffn_row_bytes : 0;
  const Event offloaded =
      Copy(Direction::kToHost, LabelOf("offload choices", rows, layer_idx),
           static_cast<uint64_t>(rows.size() * (4 * (num_topk * (1 + num_ahead) + num_scores) + input_bytes)), {routed},
           [=](Activations& host, Activations& device, Copies& copies) {
             AddRows(copies, device.topk_idx, host.topk_idx, rows, num_topk);
             for (int64_t ahead = 1; ahead <= num_ahead; ++ahead) {
               AddRows(copies, device.topk_ahead(ahead), host.topk_ahead(ahead), rows, num_topk);
             }
             if (num_scores > 0) AddRows(copies, device.router_logits, host.router_logits, rows, num_scores);
             if (input_bytes > 0) AddRows(copies, device.ffn_input, host.ffn_input, rows, input_bytes);
           });
  if (brings_input) input_offloaded_ = offloaded;
  SharedFfn(rows, layer_idx);
  return offloaded;
}

// While the host looks at what was chosen, and experts come.
void Pass::SharedFfn(RowRange rows, int64_t layer_idx) {
  if (args_.config.shared_ffn_dim == 0) return;
  Issue(compute(), LabelOf("shared ffn", rows, layer_idx), args_.cost.SharedFfn(rows.size()), {},
        [=](Operations& operations) { operations.SharedFfn(rows, layer_idx); });
}

std::vector<int32_t> Pass::Chosen(RowRange rows, int64_t layer_idx) {
  std::vector<bool> seen(static_cast<size_t>(args_.config.num_experts));
  for (const int32_t expert_idx : args_.routing.Choices(layer_idx, rows.begin, rows.size())) seen[expert_idx] = true;
  std::vector<int32_t> chosen;
  for (size_t expert_idx = 0; expert_idx < seen.size(); ++expert_idx) {
    if (seen[expert_idx]) chosen.push_back(static_cast<int32_t>(expert_idx));
  }
  return chosen;
}

Event Pass::Group(RowRange rows, int64_t layer_idx) {
  std::fill(group_rows_.begin(), group_rows_.end(), 0);
  const std::span<const int32_t> choices = args_.routing.Choices(layer_idx, rows.begin, rows.size());
  for (const int32_t expert_idx : choices) ++group_rows_[expert_idx];
  std::exclusive_scan(group_rows_.begin(), group_rows_.end(), group_offsets_.begin(),
                      rows.begin * args_.config.num_topk);
  if (args_.experts->wants_scores()) {
    const std::span<const float> scores = args_.routing.Scores(layer_idx, rows.begin, rows.size());
    args_.experts->OnScores(layer_idx, mean_scores_.Of(scores, choices));
  }
  if (args_.on_routing) args_.on_routing(layer_idx, rows, choices);
  return Issue(compute(), LabelOf("group", rows, layer_idx), {}, {},
               [rows](Operations& operations) { operations.Group(rows); });
}

std::shared_ptr<Pass::TakenExperts> Pass::Take(int64_t layer_idx, ExpertStore& store,
                                               std::span<const ExpertLease> leases,
                                               absl::FunctionRef<bool(const ExpertPlace&)> is_wanted) {
  auto taken = std::make_shared<TakenExperts>();
  taken->store = &store;
  int64_t num_unchecked = 0;
  for (const ExpertLease& lease : leases) {
    if (!is_wanted(lease.place())) continue;
    const absl::Status status = args_.runtime.Wait(lease.known());
    if (!status.ok()) {
      taken->lost.push_back({lease.place(), status});
      continue;
    }
    taken->places.push_back(lease.place());
    if (!args_.runtime.Done(lease.arrived())) taken->arrived.push_back(lease.arrived());
    num_unchecked += store.TakeUnfinished(lease.place()) ? 1 : 0;
  }
  if (num_unchecked == 0) return taken;
  OperationCost cost;
  cost.bytes = static_cast<uint64_t>(num_unchecked) * args_.cost.expert_bytes();
  Issue(ProcessorOf(store), {.name = "check", .layer_idx = layer_idx}, cost, taken->arrived,
        [taken, pool = args_.host_pool](Operations&) { taken->checked = taken->store->Finish(taken->places, *pool); });
  return taken;
}

Event Pass::HostGroup(RowRange rows, int64_t layer_idx) {
  return Issue(args_.host, LabelOf("group", rows, layer_idx), {}, {input_offloaded_},
               [rows](Operations& operations) { operations.Group(rows); });
}

void Pass::LoadExpertOutput(int64_t layer_idx, const TakenExperts& taken, const Event& computed) {
  const int64_t dim = args_.config.model_dim;
  std::vector<RowRange> places;  // assignments of each expert
  int64_t num_places = 0;
  const auto add = [&](const ExpertPlace& place) {
    const auto expert_idx = static_cast<size_t>(taken.store->layouts().expert_idx_of(place.key));
    const int64_t begin = group_offsets_[expert_idx];
    places.push_back({begin, begin + group_rows_[expert_idx]});
    num_places += places.back().size();
  };
  for (const ExpertPlace& place : taken.places) add(place);
  for (const LostExpert& expert : taken.lost) add(expert.place);
  expert_outputs_.push_back(Copy(Direction::kToDevice, {.name = "load expert output", .layer_idx = layer_idx},
                                 static_cast<uint64_t>(4 * num_places * dim), {computed},
                                 [&](Activations& host, Activations& device, Copies& copies) {
                                   for (const RowRange& range : places) {
                                     AddRows(copies, host.expert_output, device.expert_output, range, dim);
                                   }
                                 }));
}

Event Pass::Experts(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases) {
  const auto num_rows_of = [&](const ExpertPlace& place) {
    return group_rows_[static_cast<size_t>(store.layouts().expert_idx_of(place.key))];
  };
  const std::shared_ptr<TakenExperts> taken =
      Take(layer_idx, store, leases, [&](const ExpertPlace& place) { return num_rows_of(place) > 0; });
  OperationCost cost;
  for (const ExpertPlace& place : taken->places) cost += args_.cost.Expert(num_rows_of(place));
  TaskLabel label{.name = "experts", .layer_idx = layer_idx};
  if (taken->places.size() == 1) label.expert_idx = store.layouts().expert_idx_of(taken->places[0].key);
  const Event computed =
      Issue(ProcessorOf(store), label, cost, taken->arrived,
            [taken, layer_idx, this](Operations& operations) { RunExperts(operations, layer_idx, *taken); });
  if (&store == args_.host_experts) LoadExpertOutput(layer_idx, *taken, computed);
  return computed;
}

Event Pass::RouteAndCompute(RowRange rows, int64_t layer_idx, std::span<const ExpertLease> leases) {
  const std::shared_ptr<TakenExperts> taken =
      Take(layer_idx, *args_.experts, leases, [](const ExpertPlace&) { return true; });
  OperationCost cost = args_.cost.Route(rows.size());
  cost += args_.cost.ExpertsOfUniformRouting(rows.size());
  cost += args_.cost.Combine(rows.size());
  if (args_.config.shared_ffn_dim > 0) cost += args_.cost.SharedFfn(rows.size());
  return Issue(compute(), LabelOf("experts", rows, layer_idx), cost, taken->arrived, [=, this](Operations& operations) {
    operations.Route(rows, layer_idx);
    if (args_.config.shared_ffn_dim > 0) operations.SharedFfn(rows, layer_idx);
    operations.Group(rows);
    if (args_.on_routing) args_.on_routing(layer_idx, rows, operations.Choices(rows));
    RunExperts(operations, layer_idx, *taken);
    operations.Combine(rows);
  });
}

void Pass::RunExperts(Operations& operations, int64_t layer_idx, const TakenExperts& taken) {
  for (const LostExpert& expert : taken.lost) FailExpert(operations, expert.place, expert.why);
  // Without a task of its own there is nothing to do, but for those that were found broken before.
  const std::vector<absl::Status> checked =
      taken.checked.has_value() ? *taken.checked : taken.store->Finish(taken.places, *args_.host_pool);
  std::vector<ExpertToRun> experts;
  experts.reserve(taken.places.size());
  for (size_t i = 0; i < taken.places.size(); ++i) {
    const ExpertPlace& place = taken.places[i];
    if (checked[i].ok()) {
      experts.push_back({taken.store->layouts().expert_idx_of(place.key), taken.store->Weights(place)});
    } else {
      FailExpert(operations, place, checked[i]);
    }
  }
  operations.Experts(layer_idx, experts);
}

void Pass::FailExpert(Operations& operations, const ExpertPlace& place, const absl::Status& status) {
  const std::vector<int64_t> rows = operations.ClearExpert(args_.experts->layouts().expert_idx_of(place.key));
  const std::lock_guard<std::mutex> lock(status_mutex_);
  for (const int64_t row_idx : rows) args_.row_status[static_cast<size_t>(row_idx)].Update(status);
}

Event Pass::Combine(RowRange rows, int64_t layer_idx) {
  return Issue(compute(), LabelOf("combine", rows, layer_idx), args_.cost.Combine(rows.size()),
               std::exchange(expert_outputs_, {}), [rows](Operations& operations) { operations.Combine(rows); });
}

Event Pass::DenseFfn(RowRange rows, int64_t layer_idx) {
  return Issue(compute(), LabelOf("dense ffn", rows, layer_idx), args_.cost.DenseFfn(rows.size()), {},
               [=](Operations& operations) { operations.DenseFfn(rows, layer_idx); });
}

absl::Status Pass::Finish(LogitsSink sink) {
  const std::span<const int64_t> wanted = args_.batch.logit_rows;
  const auto rows_at_once = static_cast<size_t>(args_.rows_at_once);
  const auto vocab_size = static_cast<size_t>(args_.config.vocab_size);
  const bool picks_best = args_.batch.wants_best_only && args_.device.has_value() && compute().operations != nullptr &&
                          compute().operations->picks_best();
  for (size_t begin = 0; begin < wanted.size(); begin += rows_at_once) {
    const auto rows = wanted.subspan(begin, std::min(rows_at_once, wanted.size() - begin));
    const size_t num_logits = picks_best ? 0 : rows.size() * vocab_size, num_best = picks_best ? rows.size() : 0;
    Event done = Issue(compute(), {.name = "logits"}, args_.cost.Logits(static_cast<int64_t>(rows.size())), {},
                       [rows, num_best](Operations& operations) {
                         operations.Logits(rows);
                         if (num_best > 0) operations.PickBest(static_cast<int64_t>(num_best));
                       });
    if (args_.device.has_value()) {
      done = Copy(Direction::kToHost, {.name = "offload logits"}, 4 * (num_logits + num_best), {done},
                  [=](Activations& host, Activations& device, Copies& copies) {
                    AddRows(copies, device.logits, host.logits, {0, static_cast<int64_t>(num_logits)}, 1);
                    AddRows(copies, device.best, host.best, {0, static_cast<int64_t>(num_best)}, 1);
                  });
    }
    Task sample{.lane = args_.host.lane, .label = {.name = "sample"}, .after = {done}};
    if (args_.host.operations != nullptr) {
      sample.body = [this, rows, sink, num_logits, num_best] {
        const Activations& a = args_.host.operations->activations();
        sink({.rows = rows, .logits = a.logits.first(num_logits), .best = a.best.first(num_best)});
        return absl::OkStatus();
      };
    }
    PENSTOCK_RETURN_IF_ERROR(args_.runtime.Wait(IssueInOrder(std::move(sample))));
  }
  absl::Status status;
  for (const auto& [lane, event] : last_) status.Update(args_.runtime.Wait(event));
  return status;
}

}  // namespace penstock
