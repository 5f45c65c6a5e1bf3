#include "penstock/simulate/plan_simulator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/kernels/kernels.h"
#include "penstock/simulate/hardware_rates.h"

namespace penstock {
namespace {

// Returns the room for a model of `num_experts` experts that corresponds to `room` for `num_all` experts.
ExpertRoom Shrink(const ExpertRoom& room, Eviction eviction, int64_t num_all, int64_t num_experts, int64_t min_slots) {
  if (room.num_slots >= num_all)
    return {.num_slots = num_experts, .num_pinned = std::min(room.num_pinned, num_experts)};
  const auto shrink = [&](int64_t count) {
    return static_cast<int64_t>(
        std::lround(static_cast<double>(count) * static_cast<double>(num_experts) / static_cast<double>(num_all)));
  };
  if (eviction != Eviction::kStatic) {
    return {.num_slots = std::clamp(shrink(room.num_slots), std::min(min_slots, num_experts), num_experts)};
  }
  const int64_t num_pinned = shrink(room.num_pinned);
  return {.num_slots = std::min(num_experts, num_pinned + room.num_slots - room.num_pinned), .num_pinned = num_pinned};
}

bool NeedsTokens(const ScheduleOptions& schedule) {
  return TraitsOf(schedule.kind).fetches_by_predictor && TraitsOf(schedule.predictor).needs_network;
}

}  // namespace

absl::Status CheckNeedsNoTokens(const ScheduleOptions& schedule) {
  if (!NeedsTokens(schedule)) return absl::OkStatus();
  return UsageError("predictor {}: simulated requests have no tokens to predict from; bench routing replays real ones",
                    TraitsOf(schedule.predictor).name);
}

absl::Status CheckReplays(const ScheduleOptions& schedule, const RoutingTraceHeader& trace, std::string_view path) {
  if (!NeedsTokens(schedule)) return absl::OkStatus();
  const std::string_view name = TraitsOf(schedule.predictor).name;
  if (!trace.has_tokens()) {
    return InputError("{}: predictor {} needs a trace with tokens: record it with --record-scores",
                      Printable(std::string(path)), name);
  }
  const std::string& fingerprint = schedule.network->shape().fingerprint;
  if (trace.fingerprint == fingerprint) return absl::OkStatus();
  return InputError("{}: the trace is of model {}, and predictor {} of {}", Printable(std::string(path)),
                    trace.fingerprint, name, fingerprint);
}

absl::StatusOr<std::unique_ptr<SimulatedRanks>> MakeSimulator(const SimulationInputs& inputs,
                                                              const Hardware& hardware) {
  return MakeSimulator(inputs, hardware, inputs.config);
}

ModelConfig FewerLayers(const ModelConfig& config, int64_t num_layers) {
  PENSTOCK_CHECK(num_layers >= 1 && num_layers <= config.num_layers);
  ModelConfig fewer = config;
  fewer.num_layers = num_layers;
  if (!fewer.layer_heads.empty()) fewer.layer_heads.resize(static_cast<size_t>(num_layers));
  // The vocabulary shrinks too, so that the logits keep their share of a pass. The disk reads ahead while they are
  // computed.
  fewer.vocab_size = std::max<int64_t>(1, config.vocab_size * num_layers / config.num_layers);
  fewer.layer_has_experts.clear();
  const int64_t num_moe = config.num_moe_layers();
  int64_t num_kept = (2 * num_layers * num_moe + config.num_layers) / (2 * config.num_layers);
  if (num_moe > 0) num_kept = std::max<int64_t>(1, num_kept);
  // The layers with experts are spread evenly.
  for (int64_t i = 0; i < num_layers; ++i) {
    fewer.layer_has_experts.push_back((i + 1) * num_kept / num_layers > i * num_kept / num_layers);
    if (fewer.layer_has_experts.back() && !fewer.layer_has_ffn.empty()) fewer.layer_has_ffn[i] = true;
  }
  return fewer;
}

// Returns the bytes of each expert that cross a link.
std::vector<uint64_t> BytesOfExperts(const ExpertLayouts& layouts) {
  std::vector<uint64_t> bytes;
  for (ExpertKey key{0}; key < layouts.end_key(); ++key) {
    bytes.push_back(layouts.decompresses() ? layouts.finished_extent(key).size_bytes : layouts.read_bytes(key));
  }
  return bytes;
}

// Returns what is read for an expert on average, if experts are compressed.
std::optional<uint64_t> CompressedBytes(const ExpertLayouts& layouts) {
  if (!layouts.decompresses()) return std::nullopt;
  uint64_t bytes = 0;
  for (ExpertKey key{0}; key < layouts.end_key(); ++key) bytes += layouts.read_bytes(key);
  return bytes / static_cast<uint64_t>(layouts.num_experts());
}

absl::StatusOr<std::unique_ptr<SimulatedRanks>> MakeSimulator(const SimulationInputs& inputs, const Hardware& hardware,
                                                              const ModelConfig& fewer) {
  const ChosenPolicy& policy = inputs.plan.policy;
  const MemoryPlan& plan = policy.plan;
  const ExpertLayouts& layouts = *inputs.plan.layouts;
  const int num_ranks = plan.num_ranks;
  const int64_t num_experts = layouts.max_experts_of_layer() * fewer.num_moe_layers();
  const int64_t min = MinStreamingSlots(policy.schedule.kind, fewer.num_stored_experts());
  const auto shrink = [&](const ExpertRoom& room, Eviction eviction) {
    return &fewer == &inputs.config ? room : Shrink(room, eviction, plan.num_experts_total, num_experts, min);
  };
  std::vector<uint64_t> bytes = BytesOfExperts(layouts);
  const uint64_t all_bytes = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  const uint64_t mean_bytes = bytes.empty() ? 0 : all_bytes / bytes.size();
  if (num_ranks > 1 || &fewer != &inputs.config) bytes.clear();
  PassSimulator::Args args{.config = fewer,
                           .formats = inputs.plan.model_formats,
                           .expert_bytes = mean_bytes,
                           .bytes_of_experts = std::move(bytes),
                           .compressed_bytes = CompressedBytes(layouts),
                           .packs = layouts.packs(),
                           .schedule = policy.schedule,
                           .eviction = policy.eviction,
                           .dram = shrink({plan.num_expert_slots, plan.num_pinned_experts},
                                          policy.device.has_value() ? Eviction::kStatic : policy.eviction),
                           .pinned = policy.pinned,
                           // Popularity is only known for the experts of the whole model.
                           .popularity = &fewer == &inputs.config ? std::span<const double>(inputs.plan.popularity)
                                                                  : std::span<const double>(),
                           .rows_at_once = kMaxLogitRows,
                           .rates = {},
                           .sink = inputs.sink};
  PENSTOCK_ASSIGN_OR_RETURN(args.rates, LaneRatesOf(hardware, inputs.plan, inputs.num_threads));
  if (policy.device.has_value()) {
    args.device = {.room = shrink({plan.device.num_expert_slots, plan.device.num_pinned_experts}, policy.eviction),
                   .staged_pages = plan.device.holds_kv_cache
                                       ? 0
                                       : NumStagedPages(plan, inputs.config, inputs.plan.model_formats.kv),
                   .reads_dram = policy.device->kind == DeviceKind::kCuda};  // assumes that DRAM's pages can be locked
  }
  if (num_ranks > 1) {
    const Link* link = hardware.FindLink(kRankLink);
    if (link == nullptr) return UsageError("the hardware has no link {}: give --network", kRankLink);
    args.link = *link;
    args.comm = inputs.plan.formats.comm;
    // A host keeps rows of bf16 in the form of its instruction set, which may be floats.
    const auto row_bytes = [&](kernels::RowFormat format, int64_t dim) {
      const bool is_half = policy.device.has_value() && format == kernels::RowFormat::kBF16;
      return is_half ? 2 * dim : kernels::RowBytes(format, dim);
    };
    args.ffn_row_bytes = row_bytes(inputs.plan.formats.rows.ffn, inputs.config.expert_row_dim());
    args.ranks.by_heads = plan.shares_heads;
    args.ranks.cuts_experts = plan.cuts_experts;
    args.ranks.placement = layouts.placement();
    if (args.ranks.placement != nullptr && &fewer != &inputs.config) {
      args.ranks.placement = std::make_shared<ExpertPlacement>(args.ranks.placement->OfFewerLayers(fewer));
    }
    args.attention_row_bytes = row_bytes(inputs.plan.formats.rows.attention, inputs.config.model_dim);
  }
  return SimulatedRanks::Create(args, num_ranks);
}

}  // namespace penstock
