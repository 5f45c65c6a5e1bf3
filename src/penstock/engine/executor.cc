#include "penstock/engine/executor.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/hardware/peaks.h"
#include "penstock/ops/host_operations.h"
#include "penstock/parallel/rank_link.h"
#include "penstock/plan/memory_plan.h"
#include "penstock/runtime/page_toucher.h"

namespace penstock {
namespace {

constexpr double kRateSeconds = 0.3;
constexpr double kDiskSeconds = 1.5;

// GuessRates() assumes these rates of a thread that reads weights, if there are few, and of a disk that was not read
// yet. It measures the others for kGuessSeconds each.
constexpr double kThreadBytesPerSecond = 12e9;
constexpr double kDiskBytesPerSecond = 2e9;
constexpr double kGuessSeconds = 0.01;

LaneRates::Duration Roofline(double ops_per_s, double bytes_per_s) {
  return [=](const TaskCost& cost) {
    return std::max(cost.flops / ops_per_s, static_cast<double>(cost.memory_bytes) / bytes_per_s);
  };
}

}  // namespace

Executor::Executor(Args& args)
    : model_(&args.model),
      pool_(&args.pool),
      recorders_(&args.recorders),
      formats_(args.formats),
      model_formats_(ModelFormatsOf(args.model.weights, args.formats)),
      cost_(args.model.config, model_formats_),
      schedule_options_(args.policy.schedule),
      schedule_(TraitsOf(args.policy.schedule.kind).make(args.policy.schedule, args.model.config)) {
  // The issuer serves its lanes in the order in which they were added. host_finish comes first, because its tasks are
  // short and the link waits for them.
  if (args.policy.device.has_value()) finish_lane_ = runtime_.AddIssuerLane("host_finish");
  host_.lane = runtime_.AddIssuerLane("host_compute");
  disk_ = args.disk.get();
  const MemoryPlan& memory = args.policy.plan;
  const DiskUse use = {.max_reading = MaxReading(memory),
                       .cached_targets = args.disk->is_direct() && CachesHoldSlots(memory)};
  disk_lane_ = runtime_.AddDiskLane("disk_to_dram", std::move(args.disk), use);
  if (args.policy.schedule.max_ahead > 0) predict_lane_ = runtime_.AddThreadLane("predict");
  if (args.communicator != nullptr) {
    ranks_ = {.communicator = args.communicator,
              .to_ranks_lane = runtime_.AddThreadLane("to_ranks"),
              .from_ranks_lane = runtime_.AddThreadLane("from_ranks"),
              .expert_groups = args.policy.schedule.expert_groups};
  }
}

Executor::~Executor() { runtime_.Cancel(); }  // nobody waits for the remaining tasks

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(Args args) {
  const PredictorTraits& predictor = TraitsOf(args.policy.schedule.predictor);
  if (predictor.is_simulated_only) {
    return UsageError("predictor {}: only a simulation knows what will be chosen", predictor.name);
  }
  if (args.recorders.records_scores() && TraitsOf(args.policy.schedule.kind).is_layer_by_layer) {
    return UsageError("--record-scores: schedule {} does not wait for its gates: record with on-demand or hybrid",
                      TraitsOf(args.policy.schedule.kind).name);
  }
  if (args.recorders.records_scores() && args.policy.schedule.replaces_routers) {
    return UsageError("--record-scores: predictor sida with mode=replace leaves the routers out: they rate no experts");
  }
  auto executor = std::unique_ptr<Executor>(new Executor(args));
  if (args.policy.device.has_value()) PENSTOCK_RETURN_IF_ERROR(executor->CreateDevice(args));
  PENSTOCK_RETURN_IF_ERROR(executor->runtime_.lane_status());
  PENSTOCK_RETURN_IF_ERROR(executor->CreateHost(args));
  PENSTOCK_RETURN_IF_ERROR(executor->CreateExperts(args));
  const ModelConfig& config = args.model.config;
  const Activations& a = executor->host_.activations;
  executor->routing_.emplace(GateRouting::Buffers{.choices = a.topk_idx,
                                                  .choices_ahead = {a.topk_ahead(1), a.topk_ahead(2), a.topk_ahead(3)},
                                                  .scores = a.router_logits},
                             config.num_topk, config.num_experts);
  if (TraitsOf(args.policy.schedule.kind).needs_rates) executor->GuessRates();
  if (executor->ranks_.has_value()) PENSTOCK_RETURN_IF_ERROR(executor->AgreeOnRates());
  executor->runtime_.ResetUsage();
  executor->runtime_.SetSink(args.recorders.sink());
  return executor;
}

absl::Status Executor::CreateHost(const Args& args) {
  const LoadedModel& model = args.model;
  const MemoryPlan& plan = args.policy.plan;
  RankSplit split;
  if (args.communicator != nullptr) {
    split = {.rank = args.communicator->rank(),
             .num_ranks = args.communicator->num_ranks(),
             .by_heads = plan.shares_heads,
             .cuts_experts = plan.cuts_experts};
  }
  const HeadRange heads = HeadsOf(model.config, split);
  if (device_ == nullptr) {
    const uint64_t size_bytes = plan.activation_bytes + plan.kv_bytes + plan.expert_bytes;
    PENSTOCK_ASSIGN_OR_RETURN(joined_memory_, JoinedMemory::Create(HostMemory(), size_bytes));
  }
  PENSTOCK_ASSIGN_OR_RETURN(host_.dense,
                            DenseWeights::Load(HostMemory(), model.checkpoint, model.weights, args.formats.dtype,
                                               device_ == nullptr ? DensePart::kAll : DensePart::kEmbedding, heads));
  PENSTOCK_ASSIGN_OR_RETURN(host_.activations, Activations::Create(host_memory(), model.config, args.formats.rows,
                                                                   DimsOf(plan, pool_->num_workers())));
  if (host_.activations.to_rank.size() > kMaxMessageBytes) {
    return UsageError(
        "the rows of a step take {} on their way to another rank, more than a message holds: give a "
        "smaller --prefill-chunk or --batch-size",
        FormatBytes(host_.activations.to_rank.size()));
  }
  OpContext context{model.config, args.kernels, args.pool, args.formats.rows, *host_.dense, host_.activations};
  context.observer = args.observer;
  if (split.cuts_experts) {
    const ColumnRange columns = split.ColumnsOf(model.config.expert_dim, ExpertCutUnit(model.weights));
    context.expert_cols = {columns.first, columns.end};
    ModelConfig part = model.config;
    part.expert_dim = columns.size();
    cut_expert_cost_.emplace(part, model_formats_);
    ranks_->cut_expert_cost = &*cut_expert_cost_;
  }
  host_.operations = std::make_unique<HostOperations>(context);
  if (plan.shares_heads) PENSTOCK_RETURN_IF_ERROR(CreateHeads(args, heads));
  return CreateKvCache(args, split);
}

absl::Status Executor::CreateKvCache(const Args& args, const RankSplit& split) {
  const MemoryPlan& plan = args.policy.plan;
  int64_t num_pages = NumKvPages(plan);
  if (split.by_heads) {  // each rank holds the pages of all
    const int64_t own = -num_pages;
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> fewest, MaxOfRanks(*args.communicator, {&own, 1}));
    num_pages = -fewest[0];
  }
  PENSTOCK_ASSIGN_OR_RETURN(kv_cache_, KvCache::Create(plan.device.holds_kv_cache ? device_->memory() : host_memory(),
                                                       split.by_heads ? heads_->config : args.model.config,
                                                       args.formats.kv, num_pages, split));
  if (split.by_heads) ranks_->heads->kv = KvLayer::Of(heads_->config, args.formats.kv, 0);
  return absl::OkStatus();
}

void Executor::TouchKvCache() {
  if (!kv_cache_->memory().is_host()) return;
  const std::span<std::byte> bytes = kv_cache_->bytes();
  PageToucher toucher(bytes, pool_->num_workers(), /*ahead_bytes=*/bytes.size());
  toucher.OnWanted(0);
  toucher.Wait();
}

absl::Status Executor::CreateHeads(const Args& args, const HeadRange& heads) {
  const ModelConfig config = ConfigOfHeads(args.model.config, heads);
  heads_ = std::make_unique<HeadsSide>(
      HeadsSide{.config = config, .cost = ModelCost(config, model_formats_), .activations = {}, .operations = nullptr});
  PENSTOCK_ASSIGN_OR_RETURN(heads_->activations,
                            Activations::Create(host_memory(), config, args.formats.rows,
                                                HeadDimsOf(args.policy.plan, pool_->num_workers())));
  if (host_.activations.dims.max_rows * 4 * config.attended_dim() > static_cast<int64_t>(kMaxMessageBytes)) {
    return UsageError(
        "--parallel attention=tp: what the heads attend to in a step is more than a message holds: give a "
        "smaller --prefill-chunk or --batch-size");
  }
  heads_->operations = std::make_unique<HostOperations>(
      OpContext{heads_->config, args.kernels, args.pool, args.formats.rows, *host_.dense, heads_->activations});
  ranks_->heads = {.cost = &heads_->cost,
                   .row_bytes = kernels::RowBytes(args.formats.rows.attention, config.model_dim),
                   .operations = heads_->operations.get(),
                   .kv = {}};
  return absl::OkStatus();
}

absl::Status Executor::CreateDevice(const Args& args) {
  const LoadedModel& model = args.model;
  const DeviceSpec& spec = *args.policy.device;
  const DevicePlan& plan = args.policy.plan.device;
  device_holds_kv_ = plan.holds_kv_cache;
  if (spec.kind == DeviceKind::kCuda) {
    const CudaWorkspace workspace = CudaWorkspaceOf(model.config, args.policy.plan.context_length, plan.budget_bytes);
    PENSTOCK_ASSIGN_OR_RETURN(device_, MakeCudaDevice(spec, workspace, plan.budget_bytes));
  } else {
    device_ = MakeEmulatedDevice(spec, plan.budget_bytes);
  }
  PENSTOCK_ASSIGN_OR_RETURN(device_lanes_, device_->AddLanes(runtime_));
  device_side_.lane = device_lanes_.compute;
  Memory& memory = device_->memory();
  PENSTOCK_ASSIGN_OR_RETURN(device_side_.dense, DenseWeights::Load(memory, model.checkpoint, model.weights,
                                                                   args.formats.dtype, DensePart::kLayers));
  PENSTOCK_ASSIGN_OR_RETURN(device_side_.activations,
                            Activations::Create(memory, model.config, args.formats.rows,
                                                DeviceDimsOf(args.policy.plan, device_->num_workers())));
  PENSTOCK_ASSIGN_OR_RETURN(device_side_.operations,
                            device_->MakeOperations({.config = model.config,
                                                     .host_kernels = args.kernels,
                                                     .row_formats = args.formats.rows,
                                                     .ffn_format = model_formats_.ffn,
                                                     .weights = *device_side_.dense,
                                                     .activations = device_side_.activations}));
  if (!plan.holds_kv_cache && plan.kv_bytes > 0) {
    PENSTOCK_ASSIGN_OR_RETURN(kv_staging_,
                              KvStaging::Create(memory, model.config, args.formats.kv,
                                                NumStagedPages(args.policy.plan, model.config, args.formats.kv)));
  }
  return absl::OkStatus();
}

absl::Status Executor::CreateExperts(const Args& args) {
  const MemoryPlan& plan = args.policy.plan;
  ExpertTiers::Args tiers = {.layouts = args.layouts,
                             .runtime = runtime_,
                             .disk_lane = disk_lane_,
                             .dram = {.num_slots = plan.num_expert_slots, .num_pinned = plan.num_pinned_experts},
                             .eviction = args.policy.eviction,
                             .pinned = args.policy.pinned,
                             .popularity = args.popularity,
                             .memory = &host_memory(),
                             .pool = &args.pool};
  if (device_ != nullptr) {
    tiers.device = {.room = {.num_slots = plan.device.num_expert_slots, .num_pinned = plan.device.num_pinned_experts},
                    .finish_lane = finish_lane_,
                    .dram_to_pinned_lane = device_lanes_.dram_to_pinned,
                    .dram_to_device_lane = device_lanes_.dram_to_device,
                    .memory = &device_->memory(),
                    .pinned_memory = &device_->host_memory(),
                    .copier = &device_->to_device(),
                    .preload = PreloadOf(args.policy.schedule)};
  }
  PENSTOCK_ASSIGN_OR_RETURN(experts_, ExpertTiers::Create(tiers));
  return absl::OkStatus();
}

ProcessorRates Executor::MeasureHost(double seconds) const {
  ProcessorRates rates;
  rates.ops_per_s = OpsPerSecond(RowArithmetic(formats_.rows.ffn), *pool_, seconds).value_or(0);
  if (experts_.dram != nullptr && experts_.dram->bytes().size() >= 4 * kMiB) {
    rates.memory_bytes_per_s = ReadBytesPerSecond(experts_.dram->bytes(), *pool_, seconds);
  }
  return rates;
}

absl::Status Executor::AgreeOnRates() {
  Communicator& communicator = *ranks_->communicator;
  PENSTOCK_RETURN_IF_ERROR(WaitForRanks(communicator));
  runtime_.RestartClock();  // traces of all ranks then have one clock, but for the time of a message
  PENSTOCK_ASSIGN_OR_RETURN(ranks_->link, MeasureRankLink(communicator));
  const double ops_per_s = OpsPerSecond(RowArithmetic(formats_.rows.ffn), *pool_, kGuessSeconds).value_or(1e9);
  const std::array<int64_t, 2> own = {-static_cast<int64_t>(ops_per_s), -pool_->num_workers()};
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> slowest, MaxOfRanks(communicator, own));
  ranks_->compute_time = [this, expected = Roofline(-static_cast<double>(slowest[0]),
                                                    -kThreadBytesPerSecond * static_cast<double>(slowest[1]))](
                             const TaskCost& cost) { return agreed_slowdown_ * expected(cost); };
  LogDebug("ranks: {:.2f} GB/s and {:.0f} us between two, {:.0f} Gop/s on the slowest", ranks_->link.bytes_per_s * 1e-9,
           ranks_->link.latency_s * 1e6, -static_cast<double>(slowest[0]) * 1e-9);
  return absl::OkStatus();
}

void Executor::GuessRates() {
  const Arithmetic arithmetic = RowArithmetic(formats_.rows.ffn);
  // Fewer weights may lie in a processor's caches.
  constexpr uint64_t kBeyondCaches = 256 * kMiB;
  const std::span<const std::byte> weights = host_.dense->bytes();
  const double bytes_per_s = weights.size() >= kBeyondCaches ? ReadBytesPerSecond(weights, *pool_, kGuessSeconds)
                                                             : kThreadBytesPerSecond * pool_->num_workers();
  rates_.host_compute = Roofline(OpsPerSecond(arithmetic, *pool_, kGuessSeconds).value_or(1e9), bytes_per_s);
  const auto learned = [this](LaneIdx lane, double guess_bytes_per_s) -> TaskDuration {
    const LearnedLink& link = links_.emplace_back(LearnedLink{lane, LearnedBandwidth(guess_bytes_per_s)});
    return
        [&link](const TaskCost& cost) { return static_cast<double>(cost.link_bytes) / link.bandwidth.bytes_per_s(); };
  };
  rates_.disk_to_dram = learned(disk_lane_, kDiskBytesPerSecond);
  if (device_ == nullptr) return;
  const bool has_bytes = experts_.device != nullptr && device_->num_workers() == 0;  // only a GPU's memory is measured
  const ProcessorRates of_device =
      device_->Measure(arithmetic, has_bytes ? experts_.device->bytes() : std::span<const std::byte>(), kGuessSeconds);
  rates_.device_compute = Roofline(
      std::max(1e9, of_device.ops_per_s),
      of_device.memory_bytes_per_s > 0 ? of_device.memory_bytes_per_s : kThreadBytesPerSecond * device_->num_workers());
  const double link_bytes_per_s = device_->MeasureLink(kGuessSeconds);
  rates_.dram_to_pinned = learned(device_lanes_.dram_to_pinned, link_bytes_per_s);
  rates_.dram_to_device = learned(device_lanes_.dram_to_device, link_bytes_per_s);
  rates_.device_to_dram = TransferTime(link_bytes_per_s);
}

void Executor::LearnLinks() {
  // Small transfers, like those of rows, mostly wait.
  constexpr uint64_t kLarge = 512 * kKiB;
  if (links_.empty()) return;
  const std::vector<LaneUsage> lanes = runtime_.Usage();
  for (LearnedLink& link : links_) {
    const LaneUsage& now = lanes[link.lane];
    const uint64_t bytes = now.cost.link_bytes - link.before.cost.link_bytes;
    const int64_t num_tasks = now.num_tasks - link.before.num_tasks;
    if (num_tasks > 0 && bytes / static_cast<uint64_t>(num_tasks) >= kLarge) {
      link.bandwidth.Learn(bytes, now.busy_s - link.before.busy_s);
    }
    link.before = now;
  }
}

absl::Status Executor::Run(const RowBatch& batch, std::vector<RowRange> micro_batches, LogitsSink sink,
                           std::vector<absl::Status>& row_statuses) {
  std::function<void(int64_t, RowRange, std::span<const int32_t>)> on_routing;
  if (recorders_->records_routing()) {
    on_routing = [this](int64_t layer_idx, RowRange rows, std::span<const int32_t> choices) {
      recorders_->AddRouting(layer_idx, rows, choices, *routing_);
    };
  }
  std::optional<PassDevice> device;
  if (device_ != nullptr) {
    device = {.processor = {device_side_.lane, device_side_.operations.get()},
              .dram_to_device_lane = device_lanes_.dram_to_device,
              .device_to_dram_lane = device_lanes_.device_to_dram,
              .to_device = &device_->to_device(),
              .to_host = &device_->to_host(),
              .kv_staging = kv_staging_.has_value() ? &*kv_staging_ : nullptr,
              .holds_kv_cache = device_holds_kv_};
  }
  std::optional<RankRows> rank_rows;
  if (heads_ != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(rank_rows, GatherRankRows(*ranks_->communicator, batch, micro_batches, &*kv_cache_));
  }
  const double begin_s = runtime_.now_s();
  Pass pass({.config = model_->config,
             .cost = cost_,
             .runtime = runtime_,
             .host = {host_.lane, host_.operations.get()},
             .host_pool = pool_,
             .device = device,
             .ranks = ranks_,
             .rank_rows = rank_rows.has_value() ? &*rank_rows : nullptr,
             .comm = formats_.comm,
             .kv_format = kv_cache_->format(),
             .states = &kv_cache_->states(),
             .experts = experts_.compute(),
             .host_experts = experts_.beside_device(),
             .rates = &rates_,
             .routing = *routing_,
             .batch = batch,
             .micro_batches = std::move(micro_batches),
             .row_status = row_statuses,
             .rows_at_once = host_.activations.dims.max_logit_rows,
             .ffn_row_bytes = kernels::RowBytes(formats_.rows.ffn, model_->config.expert_row_dim()),
             .predict_lane = predict_lane_,
             .looks_ahead = NeedsGates(schedule_options_) || recorders_->records_scores(),
             .wants_scores = NeedsScores(schedule_options_) || recorders_->records_scores(),
             .on_routing = on_routing});
  absl::Status status = schedule_->Run(pass);
  if (status.ok()) status = pass.Finish(sink);
  if (!status.ok() && ranks_.has_value()) {
    // The pass's destructor waits for its transfers, and the other ranks wait for this one.
    ranks_->communicator->Abort(status);
  }
  PENSTOCK_RETURN_IF_ERROR(status);
  expert_slowdown_ = pass.ffn().ExpertSlowdown() * agreed_slowdown_;
  LearnLinks();
  recorders_->AddPass(batch, begin_s, runtime_.now_s());
  return absl::OkStatus();
}

MachineRates Executor::MeasureRates() {
  MachineRates rates;
  if (device_ == nullptr) {
    rates.compute = MeasureHost(kRateSeconds);
  } else {
    rates.compute = device_->Measure(
        RowArithmetic(formats_.rows.ffn),
        experts_.device == nullptr ? std::span<const std::byte>() : experts_.device->bytes(), kRateSeconds);
    rates.host = MeasureHost(kRateSeconds);
    rates.link_bytes_per_s = device_->MeasureLink(kRateSeconds);
  }
  if (experts_.dram == nullptr) return rates;
  experts_.compute()->Announce({});
  schedule_->Reset();
  rates.disk_bytes_per_s = experts_.dram->MeasureDisk(kDiskSeconds);
  return rates;
}

LiveView Executor::View() const {
  LiveView view{.num_moe_layers = model_->config.num_moe_layers(), .num_experts = model_->config.num_experts};
  view.locations.assign(static_cast<size_t>(view.num_moe_layers * view.num_experts), ExpertLocation::kDisk);
  view.parts = recorders_->parts();
  if (const std::optional<RoutingCounts>& counts = recorders_->counts(); counts.has_value()) {
    for (const std::vector<int64_t>& layer : counts->chosen) {
      view.chosen.insert(view.chosen.end(), layer.begin(), layer.end());
    }
  }
  if (experts_.dram == nullptr) return view;
  const auto location_of = [&](ExpertKey key) {
    if (experts_.device != nullptr && experts_.device->HasArrived(key)) return ExpertLocation::kDevice;
    if (experts_.dram->HasArrived(key)) {
      return experts_.dram->is_pinned(key) ? ExpertLocation::kDramPinned : ExpertLocation::kDram;
    }
    const bool arrives =
        experts_.dram->IsPresent(key) || (experts_.device != nullptr && experts_.device->IsPresent(key));
    return arrives ? ExpertLocation::kArriving : ExpertLocation::kDisk;
  };
  const ExpertLayouts& layouts = experts_.dram->layouts();
  int64_t first = 0;
  for (int64_t layer_idx = 0; layer_idx < std::ssize(model_->config.layer_has_experts); ++layer_idx) {
    if (!model_->config.layer_has_experts[layer_idx]) continue;
    for (int64_t expert_idx = 0; expert_idx < view.num_experts; ++expert_idx) {
      const ExpertKey key = layouts.KeyOf(layer_idx, expert_idx);
      if (key != kNoExpert) view.locations[first + expert_idx] = location_of(key);
    }
    first += view.num_experts;
  }
  return view;
}

void Executor::UpdateStats(EngineStats& stats) const {
  stats.lanes.clear();
  const std::vector<LaneUsage> lanes = runtime_.Usage();
  const auto cost_of = [&](LaneIdx lane) { return lanes[lane].cost; };
  for (const LaneUsage& usage : lanes) stats.lanes.push_back({usage.name, usage.busy_s});
  const auto work_of = [&](LaneIdx lane) -> ProcessorWork {
    return {.memory_bytes = cost_of(lane).memory_bytes, .flops = cost_of(lane).flops};
  };
  stats.work = work_of(compute_lane());
  if (device_ != nullptr) {
    stats.host_work = work_of(host_.lane);
    stats.host_work.memory_bytes += cost_of(finish_lane_).memory_bytes;
    stats.dram_to_device_bytes = cost_of(device_lanes_.dram_to_device).link_bytes;
    stats.device_to_dram_bytes = cost_of(device_lanes_.device_to_dram).link_bytes;
  }
  const PrefixCache& pages = kv_cache_->prefixes();
  const auto num_held = static_cast<double>(pages.num_pages() - pages.num_available() + pages.num_reserved());
  stats.kv_usage = num_held / static_cast<double>(pages.num_pages());
  stats.directories.clear();
  for (DirectoryReads& reads : disk_->ReadsByDirectory()) {
    stats.directories.push_back({std::move(reads.path), reads.bytes, reads.bytes_per_s, reads.is_left_out});
  }
  if (experts_.dram == nullptr) return;
  stats.disk_bytes = experts_.dram->counters().bytes_read;
  // Hits, misses and prefetches are those of the tier that computes the layers.
  const ExpertCounters& counters = experts_.compute()->counters();
  stats.expert_hits = counters.hits;
  stats.expert_misses = counters.misses;
  stats.prefetch_issued = counters.prefetched;
  stats.prefetch_used = counters.prefetch_used;
  stats.experts_named_hot = counters.named_hot;
  stats.experts_named_right = counters.named_right;
  const int64_t num_read = counters.misses + counters.prefetched;
  if (num_read > 0 && device_ == nullptr) {
    stats.unused_disk_bytes = counters.bytes_read / static_cast<uint64_t>(num_read) *
                              static_cast<uint64_t>(std::max<int64_t>(0, counters.prefetched - counters.prefetch_used));
  }
}

}  // namespace penstock
