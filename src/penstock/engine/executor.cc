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

// How the weights of a model lie in memory; families have one format for each kind of matrix.
ModelFormats FormatsOf(const WeightMap& map, const Formats& formats) {
  const LayerTensors& layer = map.layers[0];
  const TensorInfo& ffn = *(layer.experts.empty() ? layer.dense_ffn : layer.experts[0]).gate_proj;
  return {.attention = ResidentFormat(*layer.q_proj, formats.dtype),
          .ffn = ResidentFormat(ffn, formats.dtype),
          .lm_head = ResidentFormat(*map.lm_head, formats.dtype),
          .kv = formats.kv};
}

}  // namespace

Executor::Executor(Args& args)
    : model_(&args.model),
      kernels_(&args.kernels),
      pool_(&args.pool),
      recorders_(&args.recorders),
      formats_(args.formats),
      cost_(args.model.config, FormatsOf(args.model.weights, args.formats)),
      compute_lane_(runtime_.AddIssuerLane("host_compute")),
      disk_lane_(runtime_.AddDiskLane("disk_to_dram", std::move(args.disk))),
      schedule_(MakeSchedule(args.schedule, args.model.config)) {}

Executor::~Executor() {
  runtime_.Cancel();  // nobody waits for what is left
  schedule_.reset();
  experts_.reset();
  runtime_.SetSink(nullptr);
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(Args args) {
  auto executor = std::unique_ptr<Executor>(new Executor(args));
  const LoadedModel& model = args.model;
  PENSTOCK_ASSIGN_OR_RETURN(executor->dense_, DenseWeights::Load(model.checkpoint, model.weights, args.formats.dtype));
  const MemoryPlan& plan = args.plan;
  if (plan.num_expert_slots > 0) {
    const bool all_fit = plan.num_expert_slots == plan.num_experts_total;
    PENSTOCK_ASSIGN_OR_RETURN(executor->experts_,
                              ExpertStore::Create({.layouts = args.layouts,
                                                   .runtime = executor->runtime_,
                                                   .disk_lane = executor->disk_lane_,
                                                   .num_slots = plan.num_expert_slots,
                                                   .eviction = args.eviction,
                                                   .pinned = PinEvenly(args.layouts, args.num_pinned),
                                                   .num_workers = args.pool.num_workers()}));
    // With room for all, the disk is done before the first token; else the first pass fills the slots.
    if (all_fit) PENSTOCK_RETURN_IF_ERROR(executor->experts_->Preload(args.pool));
    executor->experts_->ResetCounters();
  }
  PENSTOCK_ASSIGN_OR_RETURN(executor->kv_cache_, KvCache::Create(model.config, args.formats.kv,
                                                                 NumKvPages(plan, model.config, args.formats.kv)));
  PENSTOCK_ASSIGN_OR_RETURN(executor->activations_, Activations::Create(model.config, args.formats.rows,
                                                                        DimsOf(plan, args.pool.num_workers())));
  executor->routing_.emplace(executor->activations_.topk_idx, model.config.num_topk);
  executor->runtime_.ResetUsage();
  executor->runtime_.SetSink(args.recorders.sink());
  return executor;
}

absl::Status Executor::Run(const RowBatch& batch, std::vector<RowRange> micro_batches, LogitsSink sink,
                           std::vector<absl::Status>& row_statuses) {
  const OpContext context{model_->config, *kernels_, *pool_, formats_.rows, *dense_, *kv_cache_, activations_};
  std::function<void(int64_t, RowRange, std::span<const int32_t>)> on_routing;
  if (recorders_->records_routing()) {
    on_routing = [this](int64_t layer_idx, RowRange rows, std::span<const int32_t> choices) {
      recorders_->AddRouting(layer_idx, rows, choices);
    };
  }
  const double begin_s = runtime_.now_s();
  Pass pass({.config = model_->config,
             .cost = cost_,
             .runtime = runtime_,
             .compute_lane = compute_lane_,
             .host_lane = compute_lane_,
             .experts = experts_.get(),
             .routing = *routing_,
             .context = &context,
             .batch = batch,
             .micro_batches = std::move(micro_batches),
             .row_status = row_statuses,
             .rows_at_once = activations_.dims.max_logit_rows,
             .on_routing = on_routing});
  PENSTOCK_RETURN_IF_ERROR(schedule_->Run(pass));
  PENSTOCK_RETURN_IF_ERROR(pass.Finish(sink));
  recorders_->AddPass(batch, begin_s, runtime_.now_s());
  return absl::OkStatus();
}

MachineRates Executor::MeasureRates() {
  MachineRates rates;
  const Arithmetic arithmetic = formats_.rows.ffn == kernels::RowFormat::kInt8   ? Arithmetic::kInt8
                                : formats_.rows.ffn == kernels::RowFormat::kBF16 ? Arithmetic::kBf16
                                                                                 : Arithmetic::kF32;
  rates.ops_per_s = OpsPerSecond(arithmetic, *pool_, kRateSeconds).value_or(0);
  if (experts_ == nullptr) return rates;
  if (experts_->bytes().size() >= 4 * kMiB) {
    rates.memory_bytes_per_s = ReadBytesPerSecond(experts_->bytes(), *pool_, kRateSeconds);
  }
  schedule_->Reset();
  rates.disk_bytes_per_s = experts_->MeasureDisk(kDiskSeconds);
  return rates;
}

void Executor::UpdateStats(EngineStats& stats) const {
  stats.lanes.clear();
  const std::vector<LaneUsage> lanes = runtime_.Usage();
  for (const LaneUsage& usage : lanes) stats.lanes.push_back({usage.name, usage.busy_s});
  stats.flops = lanes[static_cast<size_t>(compute_lane_)].cost.flops;
  stats.memory_bytes = lanes[static_cast<size_t>(compute_lane_)].cost.memory_bytes;
  if (experts_ == nullptr) return;
  const ExpertCounters& counters = experts_->counters();
  stats.disk_bytes = counters.bytes_read;
  stats.expert_hits = counters.hits;
  stats.expert_misses = counters.misses;
  stats.prefetch_issued = counters.prefetched;
  stats.prefetch_used = counters.prefetch_used;
  const int64_t num_read = counters.misses + counters.prefetched;
  if (num_read > 0) {
    stats.unused_disk_bytes = counters.bytes_read / static_cast<uint64_t>(num_read) *
                              static_cast<uint64_t>(std::max<int64_t>(0, counters.prefetched - counters.prefetch_used));
  }
}

}  // namespace penstock
