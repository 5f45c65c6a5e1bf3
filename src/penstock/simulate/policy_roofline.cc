#include "penstock/simulate/policy_roofline.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/plan/batch_group.h"
#include "penstock/plan/formats.h"
#include "penstock/schedule/schedule.h"
#include "penstock/simulate/hardware_rates.h"

namespace penstock {
namespace {

constexpr int64_t kRowsOfABatch = 16;  // rows of one of Klotski's batches if the policy has no micro-batches

// Returns the share of the experts that every step reads from a slower memory.
double ShareMoved(const MemoryPlan& plan, bool has_device) {
  const int64_t on_device =
      plan.device.num_expert_slots == plan.num_experts_total ? plan.num_experts_total : plan.device.num_pinned_experts;
  const int64_t stay = ReadsFromDisk(plan) ? plan.num_pinned_experts + plan.device.num_pinned_experts
                       : has_device        ? on_device
                                           : plan.num_experts_total;
  return 1 - static_cast<double>(stay) / static_cast<double>(plan.num_experts_total);
}

double Intensity(double flops, double bytes) { return bytes > 0 ? flops / bytes : 0; }

// Returns the layer that stands for all with attention. In models whose layers differ, the last one sees all positions.
int64_t LastKvLayer(const ModelConfig& config) {
  int64_t layer_idx = config.num_layers - 1;
  while (layer_idx > 0 && config.is_recurrent(layer_idx)) --layer_idx;
  return layer_idx;
}

}  // namespace

absl::StatusOr<Hrm> HrmOf(const PolicyChoice& choice, const DescribedModel& model, const Hardware& hardware) {
  const bool has_device = choice.options.device == "gpu";
  Hardware used = hardware;
  if (!has_device) std::erase_if(used.tiers, [](const MemoryTier& tier) { return tier.name == "device"; });
  PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(choice.options, model.weights()));
  const std::string_view name = has_device ? "gpu" : "cpu";
  const Processor* processor = used.FindProcessor(name);
  if (processor == nullptr) return UsageError("the hardware has no processor '{}'", name);
  return Hrm::Of(used, FfnArithmetic(formats, ModelFormatsOf(model.weights(), formats), *processor));
}

std::vector<HrmPoint> DecodePoints(const PolicyChoice& choice, const DescribedModel& model, const Hrm& hrm,
                                   const Workload& workload) {
  const MemoryPlan& plan = choice.plan;
  const bool has_device = choice.options.device == "gpu";
  const absl::StatusOr<Formats> formats = ChooseFormats(choice.options, model.weights());
  if (!formats.ok()) return {};
  const ModelCost cost(model.config(), ModelFormatsOf(model.weights(), *formats));
  const int64_t num_rows = choice.num_places;
  const ScheduleKind kind = plan.schedule;
  const int64_t kernel_rows = TraitsOf(kind).is_layer_by_layer && plan.micro_batch_size > 0
                                  ? std::min(num_rows, plan.micro_batch_size)
                                  : num_rows;
  const size_t dram = has_device ? 1 : 0;
  std::vector<HrmPoint> points;

  const int64_t context = workload.prompt_tokens + workload.new_tokens / 2;
  const ModelCost::Context seen = cost.ContextOfRows(num_rows, context);
  const int64_t layer_idx = LastKvLayer(model.config());
  const bool on_host = TraitsOf(kind).attends_on_host;
  const size_t kv_level = plan.device.holds_kv_cache ? 0 : dram;
  const auto add_kv = [&](std::string name, const OperationCost& of_kv) {
    const double per_byte = Intensity(of_kv.flops, static_cast<double>(of_kv.bytes));
    points.push_back({.name = std::move(name),
                      .to = on_host ? dram : 0,
                      .ops_per_byte_to = per_byte,
                      .from = on_host ? dram : kv_level,
                      .ops_per_byte_from = per_byte});
  };
  if (seen.scored_tokens > 0) {
    add_kv(fmt::format("index scores, context of {}", context), cost.IndexScores(seen));
    add_kv(fmt::format("attention to {} positions", model.config().indexer.num_topk),
           cost.AttentionCore(layer_idx, {.seen_tokens = seen.seen_tokens, .read_tokens = seen.read_tokens}));
  } else {
    add_kv(fmt::format("attention, context of {}", context), cost.AttentionCore(layer_idx, seen));
  }
  if (plan.num_experts_total == 0) return points;

  const OperationCost all = cost.ExpertsOfUniformRouting(num_rows), kernel = cost.ExpertsOfUniformRouting(kernel_rows);
  const bool from_disk = ReadsFromDisk(plan);
  const double moved = ShareMoved(plan, has_device);
  HrmPoint experts{.name = fmt::format("experts, batch of {}", num_rows),
                   .to = 0,
                   .ops_per_byte_to = Intensity(kernel.flops, static_cast<double>(kernel.bytes)),
                   .from = moved > 0 ? (from_disk ? dram + 1 : dram) : 0,
                   .ops_per_byte_from = 0};
  experts.from = std::min(experts.from, hrm.levels().size() - 1);
  experts.ops_per_byte_from =
      moved > 0 ? Intensity(all.flops, static_cast<double>(all.bytes) * moved) : experts.ops_per_byte_to;
  points.push_back(experts);
  return points;
}

std::optional<int64_t> BatchThatHidesTransfers(const PolicyChoice& choice, const DescribedModel& model,
                                               const Hardware& hardware, const Workload& workload) {
  const ModelConfig& config = model.config();
  const bool has_device = choice.options.device == "gpu";
  if (choice.plan.num_experts_total == 0 || ShareMoved(choice.plan, has_device) <= 0) return 0;
  const absl::StatusOr<EnginePlan> plan = PlanOn(hardware, choice.options, model);
  if (!plan.ok()) return std::nullopt;
  const absl::StatusOr<LaneRates> rates = LaneRatesOf(hardware, *plan, choice.options.threads);
  if (!rates.ok()) return std::nullopt;
  const ModelCost cost(config, plan->model_formats);
  const auto compute_s = [&](const OperationCost& c) {
    return (has_device ? rates->device_compute : rates->host_compute)(
        {.flops = c.flops, .memory_bytes = c.bytes, .kv_bytes = c.kv_bytes, .kv_flops = c.kv_flops});
  };
  const bool from_disk = ReadsFromDisk(choice.plan) || !has_device;
  const uint64_t transfer_bytes =
      from_disk && plan->layouts->decompresses() ? plan->layouts->read_bytes(ExpertKey{0}) : cost.expert_bytes();
  const double transfer_s = (from_disk ? rates->disk_to_dram : rates->dram_to_device)({.link_bytes = transfer_bytes});
  const int64_t rows = choice.plan.micro_batch_size > 0 ? std::min(choice.plan.micro_batch_size, choice.num_places)
                                                        : std::min<int64_t>(choice.num_places, kRowsOfABatch);
  const int64_t positions = workload.prompt_tokens + workload.new_tokens / 2;
  constexpr int64_t kManyRows = 4096;
  const double rows_of_expert = static_cast<double>(rows * config.num_topk) / static_cast<double>(config.num_experts);
  const LayerTimes times{
      .attention_s = compute_s(cost.Attention(LastKvLayer(config), rows, cost.ContextOfRows(rows, positions))),
      .gate_s = compute_s(cost.Route(rows)),
      .expert_s = compute_s(cost.Expert(kManyRows)) / kManyRows * rows_of_expert,
      .min_expert_s = compute_s(cost.Expert(1)),
      .expert_transfer_s = transfer_s * ShareMoved(choice.plan, has_device),
      .num_hot = config.num_topk,
      .num_cold = config.num_experts - config.num_topk};
  const std::optional<int64_t> batches = MinBatches(times, kMaxBatchSize / rows);
  if (!batches.has_value()) return std::nullopt;
  return *batches * rows;
}

}  // namespace penstock
