#include "penstock/engine/executor.h"

#include <algorithm>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/engine/memory_plan.h"
#include "penstock/hardware/probe.h"

namespace penstock {
namespace {

constexpr double kRateSeconds = 0.3;
constexpr double kDiskSeconds = 1.5;

// Of a thread that reads weights, and of a disk.
constexpr double kThreadBytesPerSecond = 12e9;
constexpr double kDiskBytesPerSecond = 2e9;
constexpr double kGuessSeconds = 0.05;

}  // namespace

Executor::Executor(Args& args)
    : model_(&args.model),
      kernels_(&args.kernels),
      recorders_(&args.recorders),
      formats_(args.formats),
      model_formats_(ModelFormatsOf(args.model.weights, args.formats)),
      cost_(args.model.config, model_formats_),
      schedule_options_(args.policy.schedule),
      schedule_(MakeSchedule(args.policy.schedule, args.model.config)) {
  host_.pool = &args.pool;
  // Tasks that keep the link waiting are short and come first: the issuer asks its lanes in the order of their making.
  if (args.policy.device.has_value()) finish_lane_ = runtime_.AddIssuerLane("host_finish");
  host_.lane = runtime_.AddIssuerLane("host_compute");
  disk_lane_ = runtime_.AddDiskLane("disk_to_dram", std::move(args.disk));
}

Executor::~Executor() { runtime_.Cancel(); }  // nobody waits for what is left

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(Args args) {
  if (args.policy.schedule.predictor == PredictorKind::kOracle) {
    return UsageError("predictor oracle: only a simulation knows what will be chosen");
  }
  if (args.recorders.records_scores() && IsLayerByLayer(args.policy.schedule.kind)) {
    return UsageError("--record-scores: schedule {} does not wait for its gates: record with on-demand or hybrid",
                      ScheduleName(args.policy.schedule.kind));
  }
  auto executor = std::unique_ptr<Executor>(new Executor(args));
  const LoadedModel& model = args.model;
  Side& host = executor->host_;
  PENSTOCK_ASSIGN_OR_RETURN(
      host.dense, DenseWeights::Load(model.checkpoint, model.weights, args.formats.dtype,
                                     args.policy.device.has_value() ? DensePart::kEmbedding : DensePart::kAll));
  PENSTOCK_ASSIGN_OR_RETURN(host.activations, Activations::Create(model.config, args.formats.rows,
                                                                  DimsOf(args.policy.plan, host.pool->num_workers())));
  PENSTOCK_ASSIGN_OR_RETURN(
      executor->kv_cache_,
      KvCache::Create(model.config, args.formats.kv, NumKvPages(args.policy.plan, model.config, args.formats.kv)));
  host.operations = std::make_unique<HostOperations>(executor->ContextOf(host));
  if (args.policy.device.has_value()) PENSTOCK_RETURN_IF_ERROR(executor->CreateDevice(args));
  PENSTOCK_RETURN_IF_ERROR(executor->CreateExperts(args));
  const Activations& a = host.activations;
  executor->routing_.emplace(GateRouting::Buffers{.choices = a.topk_idx,
                                                  .choices_ahead = {a.topk_ahead(1), a.topk_ahead(2), a.topk_ahead(3)},
                                                  .scores = a.router_logits},
                             model.config.num_topk, model.config.num_experts);
  if (PlansByRates(args.policy.schedule.kind)) executor->GuessRates();
  executor->runtime_.ResetUsage();
  executor->runtime_.SetSink(args.recorders.sink());
  return executor;
}

absl::Status Executor::CreateDevice(const Args& args) {
  const LoadedModel& model = args.model;
  const DevicePlan& plan = args.policy.plan.device;
  Device& device = device_.emplace();
  device.own_pool = std::make_unique<ThreadPool>(args.policy.device->num_threads, ThreadPool::Pinned::kNo);
  device.pool = device.own_pool.get();
  device.link_bytes_per_s = args.policy.device->link_bytes_per_s;
  device.lane = runtime_.AddThreadLane("device_compute");
  device.dram_to_pinned_lane = runtime_.AddThreadLane("dram_to_pinned");
  device.dram_to_device_lane = runtime_.AddThreadLane("dram_to_device", device.link_bytes_per_s);
  device.device_to_dram_lane = runtime_.AddThreadLane("device_to_dram", device.link_bytes_per_s);
  PENSTOCK_ASSIGN_OR_RETURN(
      device.dense, DenseWeights::Load(model.checkpoint, model.weights, args.formats.dtype, DensePart::kLayers));
  PENSTOCK_ASSIGN_OR_RETURN(
      device.activations,
      Activations::Create(model.config, args.formats.rows, DeviceDimsOf(args.policy.plan, device.pool->num_workers())));
  const OpContext context = ContextOf(device);
  device.operations =
      args.make_device_operations ? args.make_device_operations(context) : std::make_unique<HostOperations>(context);
  if (!plan.holds_kv_cache && plan.kv_bytes > 0) {
    PENSTOCK_ASSIGN_OR_RETURN(device.kv_staging,
                              KvStaging::Create(model.config, args.formats.kv,
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
                             .popularity = args.popularity,
                             .pool = &args.pool};
  if (device_.has_value()) {
    tiers.device = {.room = {.num_slots = plan.device.num_expert_slots, .num_pinned = plan.device.num_pinned_experts},
                    .finish_lane = finish_lane_,
                    .dram_to_pinned_lane = device_->dram_to_pinned_lane,
                    .dram_to_device_lane = device_->dram_to_device_lane,
                    .preload = PreloadOf(args.policy.schedule)};
  }
  PENSTOCK_ASSIGN_OR_RETURN(experts_, ExpertTiers::Create(tiers));
  return absl::OkStatus();
}

void Executor::GuessRates() {
  const auto compute = [&](const Side& side) -> LaneRates::Duration {
    const double ops_per_s = OpsPerSecond(RowArithmetic(formats_.rows.ffn), *side.pool, kGuessSeconds).value_or(1e9);
    const double bytes_per_s = kThreadBytesPerSecond * side.pool->num_workers();
    return [=](const TaskCost& cost) {
      return std::max(cost.flops / ops_per_s, static_cast<double>(cost.memory_bytes) / bytes_per_s);
    };
  };
  rates_.host_compute = compute(host_);
  rates_.disk_to_dram = TransferTime(kDiskBytesPerSecond);
  if (!device_.has_value()) return;
  rates_.device_compute = compute(*device_);
  rates_.dram_to_pinned = rates_.dram_to_device = rates_.device_to_dram = TransferTime(device_->link_bytes_per_s);
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
  if (device_.has_value()) {
    device = {.processor = {device_->lane, device_->operations.get(), device_->pool},
              .dram_to_device_lane = device_->dram_to_device_lane,
              .device_to_dram_lane = device_->device_to_dram_lane,
              .kv_staging = device_->kv_staging.has_value() ? &*device_->kv_staging : nullptr};
  }
  const double begin_s = runtime_.now_s();
  Pass pass({.config = model_->config,
             .cost = cost_,
             .runtime = runtime_,
             .host = {host_.lane, host_.operations.get(), host_.pool},
             .device = device,
             .kv = kv_cache_->layer(0),
             .experts = experts_.compute(),
             .host_experts = experts_.beside_device(),
             .rates = &rates_,
             .routing = *routing_,
             .batch = batch,
             .micro_batches = std::move(micro_batches),
             .row_status = row_statuses,
             .rows_at_once = host_.activations.dims.max_logit_rows,
             .ffn_row_bytes = kernels::RowBytes(formats_.rows.ffn, model_->config.model_dim),
             .looks_ahead = LooksAhead(schedule_options_) || recorders_->records_scores(),
             .wants_scores = WantsScores(schedule_options_) || recorders_->records_scores(),
             .on_routing = on_routing});
  PENSTOCK_RETURN_IF_ERROR(schedule_->Run(pass));
  PENSTOCK_RETURN_IF_ERROR(pass.Finish(sink));
  recorders_->AddPass(batch, begin_s, runtime_.now_s());
  return absl::OkStatus();
}

MachineRates Executor::MeasureRates() {
  MachineRates rates;
  const auto measure = [&](const Side& side, const ExpertStore* store, ProcessorRates& of) {
    of.ops_per_s = OpsPerSecond(RowArithmetic(formats_.rows.ffn), *side.pool, kRateSeconds).value_or(0);
    if (store == nullptr || store->bytes().size() < 4 * kMiB) return;
    of.memory_bytes_per_s = ReadBytesPerSecond(store->bytes(), *side.pool, kRateSeconds);
  };
  measure(compute(), experts_.compute(), rates.compute);
  if (device_.has_value()) {
    measure(host_, experts_.dram.get(), rates.host);
    rates.link_bytes_per_s = device_->link_bytes_per_s;
  }
  if (experts_.dram == nullptr) return rates;
  experts_.compute()->Announce({});
  schedule_->Reset();
  rates.disk_bytes_per_s = experts_.dram->MeasureDisk(kDiskSeconds);
  return rates;
}

void Executor::UpdateStats(EngineStats& stats) const {
  stats.lanes.clear();
  const std::vector<LaneUsage> lanes = runtime_.Usage();
  const auto cost_of = [&](LaneIdx lane) { return lanes[static_cast<size_t>(lane)].cost; };
  for (const LaneUsage& usage : lanes) stats.lanes.push_back({usage.name, usage.busy_s});
  const auto work_of = [&](LaneIdx lane) -> ProcessorWork {
    return {.memory_bytes = cost_of(lane).memory_bytes, .flops = cost_of(lane).flops};
  };
  stats.work = work_of(compute().lane);
  if (device_.has_value()) {
    stats.host_work = work_of(host_.lane);
    stats.host_work.memory_bytes += cost_of(finish_lane_).memory_bytes;
    stats.dram_to_device_bytes = cost_of(device_->dram_to_device_lane).link_bytes;
    stats.device_to_dram_bytes = cost_of(device_->device_to_dram_lane).link_bytes;
  }
  if (experts_.dram == nullptr) return;
  stats.disk_bytes = experts_.dram->counters().bytes_read;
  // Of the memory in which experts are computed.
  const ExpertCounters& counters = experts_.compute()->counters();
  stats.expert_hits = counters.hits;
  stats.expert_misses = counters.misses;
  stats.prefetch_issued = counters.prefetched;
  stats.prefetch_used = counters.prefetch_used;
  const int64_t num_read = counters.misses + counters.prefetched;
  if (num_read > 0 && !device_.has_value()) {
    stats.unused_disk_bytes = counters.bytes_read / static_cast<uint64_t>(num_read) *
                              static_cast<uint64_t>(std::max<int64_t>(0, counters.prefetched - counters.prefetch_used));
  }
}

}  // namespace penstock
