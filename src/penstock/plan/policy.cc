#include "penstock/plan/policy.h"

#include <algorithm>
#include <string>

#include "penstock/base/choices.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr int64_t kDeviceMicroBatch = 32;  // default size with a device, in sequences

absl::StatusOr<ScheduleOptions> ChooseSchedule(const EngineOptions& options, bool has_device) {
  const Policy& policy = options.policy;
  PENSTOCK_RETURN_IF_ERROR(CheckRange("hot experts", policy.hot_experts, kMaxExperts));
  PENSTOCK_RETURN_IF_ERROR(CheckRange("expert groups", policy.expert_groups, kMaxExperts));
  if (policy.path_length < 0 || policy.path_length > kMaxPathLength) {
    return UsageError("path length: expected 0 to {}, found {}", kMaxPathLength, policy.path_length);
  }
  ScheduleOptions schedule = {.kind = ScheduleKind::kKlotski,
                              .multi_batch = policy.multi_batch,
                              .hot_prefetch = policy.hot_prefetch,
                              .reorder = policy.reorder,
                              .hot_experts = policy.hot_experts,
                              .path_length = policy.path_length,
                              .expert_groups = policy.expert_groups};
  schedule.predictor = policy.predictor.value_or(schedule.predictor);
  schedule.replaces_routers = policy.predictor_replaces_routers;
  schedule.hybrid_rule = policy.hybrid_rule.value_or(schedule.hybrid_rule);
  schedule.kind = policy.schedule.value_or(schedule.kind);
  const ScheduleTraits& traits = TraitsOf(schedule.kind);
  if (traits.attends_on_host && !has_device) {
    return UsageError(
        "schedule {} needs a device that computes while the CPU attends: give --device cuda or emulated, or use one of "
        "{}",
        traits.name, ChoiceNames(Schedules(), [](const ScheduleTraits& other) { return !other.attends_on_host; }));
  }
  return schedule;
}

// `caches`: the engine chose a cache of experts (ChoosesFewExperts).
absl::StatusOr<Eviction> ChooseEviction(const Policy& policy, const ScheduleOptions& schedule, bool caches) {
  if (!schedule.replaces_routers) {
    return policy.eviction.value_or(caches ? Eviction::kMrsLayer : TraitsOf(schedule.kind).eviction);
  }
  // Routers that are left out rate no experts.
  if (policy.eviction.has_value() && TraitsOf(*policy.eviction).needs_scores) {
    return UsageError("eviction {}: predictor sida with mode=replace leaves out the routers, whose scores it needs",
                      TraitsOf(*policy.eviction).name);
  }
  return policy.eviction.value_or(Eviction::kLru);
}

absl::Status CheckDevice(const EngineOptions& options, bool has_device, const ScheduleTraits& schedule) {
  if (has_device && options.device_memory_bytes == 0) {
    return UsageError("--device {}: give the size of its memory with --gpu-memory (512MiB, say)", options.device);
  }
  if (!has_device && (options.device_memory_bytes > 0 || options.device_memory_share > 0)) {
    return UsageError("--gpu-memory needs a device: give --device cuda or emulated");
  }
  if (options.policy.prompt_attention == PromptAttention::kDevice && !schedule.attends_on_host) {
    return UsageError("prompt_attention device: schedule {} does not attend on the host", schedule.name);
  }
  if (options.policy.kv_tier != KvTier::kDevice) return absl::OkStatus();
  if (!has_device) return UsageError("kv_tier device: there is no device");
  if (schedule.attends_on_host) {
    return UsageError("kv_tier device: schedule {} attends on the CPU, where its KV cache lies", schedule.name);
  }
  return absl::OkStatus();
}

absl::Status CheckPinned(const EngineOptions& options, ScheduleKind kind, Eviction eviction) {
  const std::optional<PinnedExperts> pinned = options.policy.pinned_experts;
  if (!pinned.has_value()) return absl::OkStatus();
  if (eviction != Eviction::kStatic) {
    return UsageError("pinned_experts {}: with eviction {} every expert may leave; only static keeps some",
                      ChoiceName(pinned, PinnedExpertsTable()), TraitsOf(eviction).name);
  }
  if (PinsByPopularity(options.policy, kind, eviction)) {
    return UsageError("pinned_experts {}: the correlation table chooses the pinned experts",
                      ChoiceName(pinned, PinnedExpertsTable()));
  }
  return absl::OkStatus();
}

absl::Status CheckCorrelation(const EngineOptions& options, ScheduleKind kind, Eviction eviction) {
  if (!TraitsOf(kind).learns_correlation && !options.correlation_path.empty()) {
    return UsageError("a correlation table is learnt by klotski, and the schedule is {}", TraitsOf(kind).name);
  }
  if (!TraitsOf(kind).learns_correlation && !options.policy.correlation_table.empty() &&
      !PinsByPopularity(options.policy, kind, eviction)) {
    return UsageError(
        "a correlation table is what klotski predicts from, and what hybrid and on-demand choose their pinned experts "
        "by (eviction static); schedule {} with eviction {} has no use for it",
        TraitsOf(kind).name, TraitsOf(eviction).name);
  }
  return absl::OkStatus();
}

// Returns whether the steps of a job choose few enough experts that a cache of highly rated ones reads less than a
// pinned share (docs/decisions/streaming.md). With a device this was measured for one sequence alone. Returns false for
// jobs that only score prompts, which choose all experts, and for jobs with a correlation table, which is meant for
// Klotski.
bool ChoosesFewExperts(const EngineOptions& options, const MemoryPlan& plan, const ModelConfig& config,
                       int64_t num_slots, bool has_device) {
  return options.decodes && RowsChooseFew(config, plan.batch_size) && (plan.batch_size == 1 || !has_device) &&
         num_slots >= config.num_moe_layers() &&  // each layer keeps one
         (options.policy.correlation_table + options.correlation_path).empty();
}

// Plans the memory, and what the policy leaves open about KV entries on a device:
// - If the host attends, the device attends to prompts if it has room for the buffers.
// - Otherwise a KV cache in DRAM moves to the device if that still holds all experts and the KV cache is no smaller.
//   Only choices and tokens then cross the links: on an H200, a step of 64 sequences took 62 % of the time
//   (docs/decisions/cuda.md).
absl::StatusOr<MemoryPlan> PlanWithKv(PlanInputs inputs, const Policy& policy, bool attends_on_host) {
  absl::StatusOr<MemoryPlan> planned = PlanMemory(inputs);
  if (!inputs.device.has_value() || !inputs.device->stages_kv) return planned;
  if (attends_on_host) {
    if (planned.ok() || policy.prompt_attention.has_value()) return planned;
    inputs.device->stages_kv = false;
    return PlanMemory(inputs);
  }
  PENSTOCK_ASSIGN_OR_RETURN(MemoryPlan plan, std::move(planned));
  if (policy.kv_tier.has_value()) return plan;
  if (plan.device.num_expert_slots < plan.num_experts_total) return plan;
  inputs.device->holds_kv_cache = true;
  inputs.device->stages_kv = false;
  const absl::StatusOr<MemoryPlan> moved = PlanMemory(inputs);
  const bool is_as_large = moved.ok() && moved->device.num_expert_slots == plan.num_experts_total &&
                           moved->batch_size >= plan.batch_size && moved->kv_bytes >= plan.kv_bytes;
  return is_as_large ? *moved : plan;
}

absl::StatusOr<KvWindow> ChooseWindow(const EngineOptions& options, const ModelConfig& config) {
  PENSTOCK_RETURN_IF_ERROR(CheckRange("attention window", options.attention_window, kMaxContext));
  PENSTOCK_RETURN_IF_ERROR(CheckRange("attention sinks", options.attention_sinks, kMaxContext));
  if (options.attention_window == 0) return KvWindow();
  if (config.sliding_window > 0) {
    return UsageError("attention window: the model has a sliding window of its own ({} tokens)", config.sliding_window);
  }
  return KvWindow{.num_tokens = options.attention_window, .num_sinks = options.attention_sinks};
}

// Returns the number of experts that are pinned if `streaming` of `num_slots` slots are kept for the other experts.
int64_t NumPinned(int64_t num_slots, int64_t num_experts, int64_t streaming) {
  return num_slots == num_experts ? num_slots : std::max<int64_t>(0, num_slots - streaming);
}

constexpr KvTierTraits kKvTiers[] = {
    {KvTier::kDram, "dram", "in DRAM; a device that computes attention gets the pages of one micro-batch at a time"},
    {KvTier::kDevice, "device", "in the device's memory"},
};

constexpr PinnedExpertsTraits kPinnedExperts[] = {
    {PinnedExperts::kEvenly, "evenly", "equally many experts of each layer"},
    {PinnedExperts::kLayers, "layers", "all experts of the first layers (Klotski's placement)"},
};
constexpr PromptAttentionTraits kPromptAttentions[] = {
    {PromptAttention::kHost, "host", "like all other attention: on the host, where the KV cache lies"},
    {PromptAttention::kDevice, "device", "on the device; KV entries of prompts are copied there and back"},
};

constexpr AttentionParallelTraits kAttentionParallels[] = {
    {AttentionParallel::kSequences, "dp", "by sequences: each rank attends to its own, with all heads"},
    {AttentionParallel::kHeads, "tp", "by heads: each rank attends to the sequences of all, with its own heads"},
};

constexpr ExpertParallelTraits kExpertParallels[] = {
    {ExpertParallel::kWhole, "ep", "each expert whole on one rank"},
    {ExpertParallel::kCut, "tp",
     "a part of every expert on each rank; parts are added up, which changes the last bits"},
};

}  // namespace

std::span<const KvTierTraits> KvTiers() { return kKvTiers; }
std::span<const PromptAttentionTraits> PromptAttentions() { return kPromptAttentions; }
std::span<const PinnedExpertsTraits> PinnedExpertsTable() { return kPinnedExperts; }
std::span<const AttentionParallelTraits> AttentionParallels() { return kAttentionParallels; }
std::span<const ExpertParallelTraits> ExpertParallels() { return kExpertParallels; }

PassLimits ChosenPolicy::pass_limits() const {
  return {.max_rows = plan.batch_size + plan.prefill_chunk,
          .micro_batch_size = plan.micro_batch_size,
          .window = kv_window,
          .prompts_last =
              TraitsOf(schedule.kind).attends_on_host && plan.device.kv_bytes > 0 && !plan.device.holds_kv_cache};
}

absl::Status CheckRange(std::string_view name, int64_t value, int64_t max) {
  if (value >= 0 && value <= max) return absl::OkStatus();
  return UsageError("{}: expected 1 to {} (0: chosen by the engine), found {}", name, max, value);
}

bool PinsByPopularity(const Policy& policy, ScheduleKind kind, Eviction eviction) {
  return !policy.correlation_table.empty() && eviction == Eviction::kStatic && TraitsOf(kind).pins_by_popularity;
}

absl::Status ParsePredictor(std::string_view text, Policy& policy) {
  const size_t colon = text.find(':');
  PENSTOCK_ASSIGN_OR_RETURN(policy.predictor, ParseChoice("predictor", text.substr(0, colon), Predictors()));
  std::string_view path = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  constexpr std::string_view kMode = ",mode=";
  policy.predictor_replaces_routers = false;
  if (const size_t comma = path.rfind(kMode); comma != std::string_view::npos) {
    const std::string_view mode = path.substr(comma + kMode.size());
    if (mode != "prefetch" && mode != "replace") {
      return UsageError("predictor {}: mode '{}': expected prefetch or replace", text.substr(0, colon),
                        Printable(mode));
    }
    policy.predictor_replaces_routers = mode == "replace";
    path = path.substr(0, comma);
  }
  policy.predictor_path = path;
  const bool needs_network = policy.predictor.has_value() && TraitsOf(*policy.predictor).needs_network;
  if (needs_network && policy.predictor_path.empty()) {
    return UsageError("predictor {}: give the file of its network, {}:FILE", text.substr(0, colon),
                      text.substr(0, colon));
  }
  if (!needs_network && colon != std::string_view::npos) {
    return UsageError("predictor {}: it has no file", text.substr(0, colon));
  }
  return absl::OkStatus();
}

std::string PredictorText(const Policy& policy) {
  std::string text(ChoiceName(policy.predictor, Predictors()));
  if (policy.predictor.has_value() && TraitsOf(*policy.predictor).needs_network) text += ":" + policy.predictor_path;
  if (policy.predictor_replaces_routers) text += ",mode=replace";
  return text;
}

absl::StatusOr<ChosenPolicy> ChoosePolicy(const EngineOptions& options, const std::optional<DeviceSpec>& device,
                                          uint64_t device_dense_bytes, PlanInputs inputs) {
  const Policy& policy = options.policy;
  const ModelConfig& config = *inputs.config;
  PENSTOCK_RETURN_IF_ERROR(CheckRange("micro-batch size", policy.micro_batch_size, kMaxBatchSize));
  PENSTOCK_RETURN_IF_ERROR(CheckRange("expert slots", policy.expert_slots, kMaxExperts * kMaxLayers));
  PENSTOCK_RETURN_IF_ERROR(CheckRange("streaming slots", policy.streaming_slots, kMaxExperts * kMaxLayers));
  PENSTOCK_RETURN_IF_ERROR(CheckRange("disk window", policy.disk_window, kMaxLayers));
  ChosenPolicy chosen;
  chosen.device = device;
  PENSTOCK_ASSIGN_OR_RETURN(chosen.kv_window, ChooseWindow(options, config));
  inputs.pages_per_sequence = chosen.kv_window.NumPages(inputs.context_length);
  PENSTOCK_ASSIGN_OR_RETURN(chosen.schedule, ChooseSchedule(options, device.has_value()));
  ScheduleKind& kind = chosen.schedule.kind;
  PENSTOCK_RETURN_IF_ERROR(CheckDevice(options, device.has_value(), TraitsOf(kind)));
  inputs.micro_batch_size =
      policy.micro_batch_size == 0 && device.has_value() ? kDeviceMicroBatch : policy.micro_batch_size;
  const int64_t num_experts = inputs.experts_of_layer > 0 ? inputs.experts_of_layer : config.num_stored_experts();
  inputs.min_slots = MinStreamingSlots(kind, num_experts);
  if (device.has_value()) {
    const bool holds_kv =
        policy.kv_tier.has_value() ? policy.kv_tier == KvTier::kDevice : TraitsOf(kind).keeps_kv_on_device;
    inputs.device = {
        .name = device->name,
        .budget_bytes = options.device_memory_bytes,
        .dense_bytes = device_dense_bytes,
        .fixed_bytes = DeviceFixedBytes(*device, config, inputs.context_length, options.device_memory_bytes),
        .num_workers = device->num_threads,
        .min_slots = inputs.min_slots,
        .holds_kv_cache = holds_kv,
        .stages_kv =
            !holds_kv && (!TraitsOf(kind).attends_on_host || policy.prompt_attention != PromptAttention::kHost),
        .host_computes_experts = TraitsOf(kind).host_computes_experts};
    inputs.min_slots = MinStreamingSlots(ScheduleKind::kOnDemand, num_experts);  // experts pass through DRAM on demand
  }
  PENSTOCK_ASSIGN_OR_RETURN(chosen.plan, PlanWithKv(inputs, policy, TraitsOf(kind).attends_on_host));
  MemoryPlan& plan = chosen.plan;
  const int64_t num_slots = device.has_value() ? plan.device.num_expert_slots : plan.num_expert_slots;
  // Without experts, a schedule only matters if it attends on the host.
  const bool was_asked = policy.schedule.has_value() && (config.num_moe_layers() > 0 || TraitsOf(kind).attends_on_host);
  const bool caches =
      !was_asked && num_slots > 0 && ChoosesFewExperts(options, plan, config, num_slots, device.has_value());
  if (!was_asked && (num_slots == plan.num_experts_total || caches)) kind = ScheduleKind::kOnDemand;
  PENSTOCK_ASSIGN_OR_RETURN(chosen.eviction, ChooseEviction(policy, chosen.schedule, caches));

  if (chosen.eviction == Eviction::kStatic) {
    const int64_t streaming = policy.streaming_slots > 0
                                  ? std::max(policy.streaming_slots, MinStreamingSlots(kind, num_experts))
                                  : StreamingSlots(kind, num_experts, num_slots, inputs.slot_bytes);
    const int64_t num_pinned = NumPinned(num_slots, plan.num_experts_total, streaming);
    (device.has_value() ? plan.device.num_pinned_experts : plan.num_pinned_experts) = num_pinned;
  }
  if (device.has_value()) {
    const int64_t streaming = policy.disk_window > 0 ? policy.disk_window * num_experts + 1
                                                     : StreamingSlots(ScheduleKind::kOnDemand, num_experts,
                                                                      plan.num_expert_slots, inputs.slot_bytes);
    plan.num_pinned_experts = std::min(NumPinned(plan.num_expert_slots, plan.num_experts_total, streaming),
                                       plan.num_experts_total - plan.device.num_pinned_experts);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckCorrelation(options, kind, chosen.eviction));
  PENSTOCK_RETURN_IF_ERROR(CheckPinned(options, kind, chosen.eviction));
  chosen.pinned = policy.pinned_experts.value_or(PinnedExperts::kEvenly);
  plan.schedule = kind;
  plan.eviction = chosen.eviction;
  return chosen;
}

}  // namespace penstock
