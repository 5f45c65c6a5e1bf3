#include "penstock/simulate/pass_simulator.h"

#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {

namespace {

// Returns the config of a model whose experts are this rank's parts of them.
ModelConfig WithPartsOfExperts(const PassSimulator::Args& args) {
  ModelConfig config = args.config;
  config.expert_dim = args.ranks.ColumnsOf(config.expert_dim, PanelCutUnit(args.formats.ffn)).size();
  return config;
}

}  // namespace

PassSimulator::PassSimulator(Args args)
    : args_(std::move(args)),
      cost_(args_.config, args_.formats),
      heads_config_(ConfigOfHeads(args_.config, HeadsOf(args_.config, args_.ranks))),
      heads_cost_(heads_config_, args_.formats),
      cut_expert_cost_(WithPartsOfExperts(args_), args_.formats),
      layouts_(args_.config.layer_has_experts, args_.config.num_stored_experts(), args_.expert_bytes, args_.ranks,
               args_.compressed_bytes, args_.bytes_of_experts, args_.packs),
      schedule_(TraitsOf(args_.schedule.kind).make(args_.schedule, args_.config)) {
  host_lane_ = runtime_.AddLane("host_compute", args_.rates.host_compute);
  disk_lane_ =
      runtime_.AddLane("disk_to_dram", args_.rates.disk_to_dram, args_.rates.disk_delay, args_.rates.max_reading);
  if (args_.rates.read_cpu_s > 0) runtime_.Interrupt(host_lane_, disk_lane_, args_.rates.read_cpu_s);
  if (args_.schedule.max_ahead > 0) predict_lane_ = runtime_.AddLane("predict", args_.rates.host_compute);
  if (args_.communicator == nullptr) return;
  const Link& link = args_.link;
  ranks_ = {.communicator = args_.communicator,
            .to_ranks_lane = runtime_.AddLane(
                "to_ranks",
                [link](const TaskCost& cost) { return cost.link_bytes == 0 ? 0 : link.Seconds(cost.link_bytes); }),
            .from_ranks_lane = runtime_.AddLane("from_ranks", TransferTime(link.bytes_per_s)),
            .heads = std::nullopt,
            .expert_groups = args_.schedule.expert_groups,
            .link = link,
            .compute_time = args_.device.has_value() ? args_.rates.device_compute : args_.rates.host_compute,
            .clock = &runtime_};
  if (args_.ranks.cuts_experts) ranks_->cut_expert_cost = &cut_expert_cost_;
  if (!args_.ranks.by_heads) return;
  ranks_->heads = {.cost = &heads_cost_, .row_bytes = args_.attention_row_bytes, .operations = nullptr, .kv = {}};
}

absl::StatusOr<std::unique_ptr<PassSimulator>> PassSimulator::Create(Args args) {
  auto simulator = std::unique_ptr<PassSimulator>(new PassSimulator(std::move(args)));
  PassSimulator& s = *simulator;
  const Args& a = s.args_;
  ExpertTiers::Args tiers = {.layouts = s.layouts_,
                             .runtime = s.runtime_,
                             .disk_lane = s.disk_lane_,
                             .dram = a.dram,
                             .eviction = a.eviction,
                             .pinned = a.pinned,
                             .popularity = a.popularity};
  if (a.device.has_value()) {
    s.device_.holds_kv_cache = a.device->staged_pages == 0 && !TraitsOf(a.schedule.kind).attends_on_host;
    s.device_.processor.lane = s.runtime_.AddLane("device_compute", a.rates.device_compute);
    s.device_.dram_to_device_lane = s.runtime_.AddLane("dram_to_device", a.rates.dram_to_device);
    s.device_.device_to_dram_lane = s.runtime_.AddLane("device_to_dram", a.rates.device_to_dram);
    if (a.device->staged_pages > 0) {
      PENSTOCK_ASSIGN_OR_RETURN(s.kv_staging_,
                                KvStaging::Create(HostMemory(), a.config, a.formats.kv, a.device->staged_pages));
      s.device_.kv_staging = &*s.kv_staging_;
    }
    tiers.device = {.room = a.device->room,
                    .finish_lane = s.runtime_.AddLane("host_finish", a.rates.host_compute),
                    .dram_to_pinned_lane = s.runtime_.AddLane("dram_to_pinned", a.rates.dram_to_pinned),
                    .dram_to_device_lane = s.device_.dram_to_device_lane,
                    .reads_dram = a.device->reads_dram,
                    .preload = PreloadOf(a.schedule)};
  }
  PENSTOCK_ASSIGN_OR_RETURN(s.experts_, ExpertTiers::Create(tiers));
  s.runtime_.SetSink(a.sink);  // set late, so that the sink sees no reads before the first step
  s.ResetUsage();
  return simulator;
}

void PassSimulator::ResetUsage() {
  runtime_.ResetUsage();
  for (ExpertStore* store : {experts_.dram.get(), experts_.device.get()}) {
    if (store != nullptr) store->ResetCounters();
  }
}

double PassSimulator::Time(const RowBatch& batch, std::vector<RowRange> micro_batches, RoutingSource& routing,
                           absl::FunctionRef<void(Pass&)> issue) {
  const double begin_s = runtime_.now_s();
  std::vector<absl::Status> row_status;
  std::optional<RankRows> rank_rows;
  if (args_.ranks.by_heads) {
    auto gathered = GatherRankRows(*args_.communicator, batch, micro_batches, nullptr);
    PENSTOCK_CHECK(gathered.ok());  // ranks in virtual time do not fail
    rank_rows = *std::move(gathered);
  }
  Pass pass({.config = args_.config,
             .cost = cost_,
             .runtime = runtime_,
             .host = {.lane = host_lane_},
             .device = args_.device.has_value() ? std::optional(device_) : std::nullopt,
             .ranks = ranks_,
             .rank_rows = rank_rows.has_value() ? &*rank_rows : nullptr,
             .comm = args_.comm,
             .kv_format = args_.formats.kv,
             .experts = experts_.compute(),
             .host_experts = experts_.beside_device(),
             .rates = &args_.rates,
             .routing = routing,
             .batch = batch,
             .micro_batches = std::move(micro_batches),
             .row_status = row_status,
             .rows_at_once = args_.rows_at_once,
             .ffn_row_bytes = args_.ffn_row_bytes > 0 ? args_.ffn_row_bytes : 4 * args_.config.expert_row_dim(),
             .predict_lane = predict_lane_,
             .looks_ahead = NeedsGates(args_.schedule),
             .wants_scores = NeedsScores(args_.schedule)});
  issue(pass);
  // A simulated pass does no work, so it cannot fail.
  PENSTOCK_CHECK(pass.Finish([](const RowLogits&) {}).ok());
  return runtime_.now_s() - begin_s;
}

double PassSimulator::Run(const RowBatch& batch, std::vector<RowRange> micro_batches, RoutingSource& routing) {
  return Time(batch, std::move(micro_batches), routing,
              [this](Pass& pass) { PENSTOCK_CHECK(schedule_->Run(pass).ok()); });
}

double PassSimulator::RunLogits(const RowBatch& batch, RoutingSource& routing) {
  return Time(batch, {{0, batch.num_rows()}}, routing, [](Pass&) {});
}

}  // namespace penstock
