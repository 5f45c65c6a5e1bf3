#include "penstock/plan/engine_plan.h"

#include <algorithm>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/thread_pool.h"
#include "penstock/hardware/machine_memory.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/memory/expert_store.h"
#include "penstock/memory/prefixes/prefix_store.h"
#include "penstock/model/family.h"
#include "penstock/model/relative_bias.h"
#include "penstock/ops/sampler.h"
#include "penstock/plan/predictor_plan.h"
#include "penstock/routing/trace_routing.h"
#include "penstock/trace/recorders.h"

namespace penstock {
namespace {

// Queues, small vectors and the allocator's overhead, as measured with the demo model under its least budget.
constexpr uint64_t kSmallThingsBytes = 2 * kMiB;

// Minimum number of rows per pass for which the memory of recorders is planned.
constexpr int64_t kRecordedRows = 1024;

// Bytes for each position of a running sequence: token id, its entry in the set of the repetition penalty, and text.
constexpr uint64_t kBytesPerPosition = 32;

// Returns the bytes that are the same for every batch size and every number of expert slots.
uint64_t FixedBytes(const EngineOptions& options, const EngineModel& model, const EngineRoom& room,
                    const ExpertLayouts& layouts, KvFormat kv_format, int64_t context_length) {
  const ModelConfig& config = model.config;
  uint64_t bytes = (options.speculates ? GuessTableBytes(room.budget_bytes) : 0) + model.memory_bytes +
                   ExpertStore::TableBytes(layouts, room.num_threads) + kSmallThingsBytes +
                   static_cast<uint64_t>(room.num_threads) * Sampler::ScratchBytes(config.vocab_size);
  if (room.device.has_value()) {
    bytes += DramSource::PinnedBytes(layouts) + ExpertStore::TableBytes(layouts, /*num_workers=*/0);
    if (room.device->kind == DeviceKind::kCuda) {
      bytes += CudaWorkspaceOf(config, context_length, options.device_memory_bytes).tables_bytes;
    }
  }
  if (!options.prefix_dir.empty()) bytes += PrefixStore::MemoryBytes(config, kv_format, context_length);
  // Each side of a device has tables of relative biases.
  if (config.encoder.is_on()) bytes += (room.device.has_value() ? 4 : 2) * RelativeBiasBytes(config);
  const int64_t recorded_rows = std::max(kRecordedRows, options.batch_size + options.prefill_chunk);
  // Loading or saving a correlation table takes room for a second table and for the file's bytes.
  const bool has_files = !(options.policy.correlation_table + options.correlation_path).empty();
  return bytes + room.caller.bytes + Recorders::MemoryBytes(options, config, recorded_rows) +
         (has_files ? 3 : 1) * ScheduleBytes(config, options.policy.path_length);
}

// Returns how often each expert was chosen, as a share of its layer's choices: [num_experts].
absl::StatusOr<std::vector<double>> ReadPopularity(const Policy& policy, const ModelConfig& config,
                                                   const ExpertLayouts& layouts) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const CorrelationTable table,
      CorrelationTable::Load(policy.correlation_table, CorrelationShapeOf(config, policy.path_length),
                             MaxCorrelationPaths(config, policy.path_length)));
  std::vector<double> popularity(layouts.num_experts());
  int64_t moe_layer = 0;
  for (const int64_t layer_idx : config.moe_layers()) {
    const std::vector<double> of_layer = table.Tendency(moe_layer++, {.num_rows = 1, .choices = {}});
    const std::vector<double> here = layouts.ValuesHere(layer_idx, std::span(of_layer));
    std::copy(here.begin(), here.end(), popularity.begin() + IndexOf(layouts.FirstKeyOf(layer_idx)));
  }
  return popularity;
}

// Completes this engine's share of the model with the division that the options ask for, except for the placement.
absl::StatusOr<RankSplit> DivideModel(const Policy& policy, const EngineModel& model, RankSplit ranks) {
  if (ranks.num_ranks > 1 && model.config.encoder.is_on()) {
    return UsageError("{} models, which have an encoder, run on one rank only, so far", model.config.family->name);
  }
  ranks.by_heads = ranks.num_ranks > 1 && policy.attention_parallel == AttentionParallel::kHeads;
  ranks.cuts_experts = ranks.num_ranks > 1 && policy.expert_parallel == ExpertParallel::kCut;
  if (ranks.by_heads) PENSTOCK_RETURN_IF_ERROR(CheckCutsHeads(model.weights, model.config, ranks.num_ranks));
  if (ranks.cuts_experts) {
    if (!policy.expert_placement.empty()) {
      return UsageError("--expert-placement: with --parallel experts=tp each rank has a part of every expert");
    }
    if (model.config.num_identity_experts > 0) {
      return UsageError("--parallel experts=tp: {} models have experts that return their input, which ranks do not cut",
                        model.config.family->name);
    }
    PENSTOCK_RETURN_IF_ERROR(CheckCutsExperts(model.weights, ranks.num_ranks));
  }
  if (ranks.num_ranks > 1 && !ranks.cuts_experts && ranks.num_ranks > model.config.num_stored_experts()) {
    return UsageError("{} ranks for {} experts a layer: each rank needs at least one", ranks.num_ranks,
                      model.config.num_stored_experts());
  }
  return ranks;
}

// Returns the placement of whole experts on several ranks; null: there are none.
absl::StatusOr<std::shared_ptr<const ExpertPlacement>> PlaceExperts(const Policy& policy, const ModelConfig& config,
                                                                    const RankSplit& ranks) {
  if (ranks.num_ranks == 1 || ranks.cuts_experts) return nullptr;
  const int64_t max_replicas = ExpertPlacement::MaxReplicas(config, ranks.num_ranks);
  if (policy.expert_replicas > max_replicas) {
    return UsageError("--expert-placement: replicas={}: with {} ranks, a rank lacks {} of the {} experts of a layer",
                      policy.expert_replicas, ranks.num_ranks, max_replicas, config.num_stored_experts());
  }
  if (policy.expert_placement.empty()) {
    if (policy.expert_replicas > 0) return UsageError("'expert_replicas' needs 'expert_placement', a routing trace");
    return std::make_shared<ExpertPlacement>(ExpertPlacement::Contiguous(config, ranks.num_ranks));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ChoiceCounts counts, TraceRouting::CountChoices(policy.expert_placement, config));
  return std::make_shared<ExpertPlacement>(
      ExpertPlacement::Balanced(config, ranks.num_ranks, counts, policy.expert_replicas));
}

// Returns kResources or kUsage when the GPU cannot compute the model, or not in these formats.
absl::Status CheckGpu(std::string_view name, const DeviceSpec& gpu, const EngineModel& model, const Formats& formats) {
  PENSTOCK_RETURN_IF_ERROR(CheckComputedOnGpus(name, model.config, model.weights, formats.dtype));
  PENSTOCK_RETURN_IF_ERROR(CheckSharedMemory(gpu, model.config));
  if (formats.comm == CommFormat::kF32) return absl::OkStatus();
  return UsageError("--device {}: outputs of experts are not rounded on GPUs; use --comm-dtype f32", name);
}

}  // namespace

uint64_t ShareOf(uint64_t bytes, double share, double default_share) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * (share > 0 ? share : default_share));
}

uint64_t ChooseDeviceBudget(const EngineOptions& options, const std::optional<DeviceSpec>& device) {
  const bool is_gpu = device.has_value() && device->kind == DeviceKind::kCuda;
  if (options.device_memory_bytes > 0 || !is_gpu) return options.device_memory_bytes;
  return ShareOf(device->free_bytes, options.device_memory_share, kDefaultDeviceShare);
}

absl::StatusOr<uint64_t> ChooseBudget(const EngineOptions& options, uint64_t emulated_bytes) {
  const uint64_t asked_bytes = options.memory_bytes;
  const MachineMemory machine = ReadMachineMemory();
  if (emulated_bytes > machine.total_bytes) {
    return ResourceError("the emulated device's memory of {} is more than this machine (or its cgroup) has: {}",
                         FormatBytes(emulated_bytes), FormatBytes(machine.total_bytes));
  }
  if (asked_bytes > machine.total_bytes - emulated_bytes) {
    return ResourceError("the memory budget of {} is more than this machine (or its cgroup) has{}: {}",
                         FormatBytes(asked_bytes), emulated_bytes > 0 ? " beside the emulated device" : "",
                         FormatBytes(machine.total_bytes - emulated_bytes));
  }
  if (asked_bytes > 0) return asked_bytes;
  return ShareOf(machine.available_bytes - std::min(machine.available_bytes, emulated_bytes), options.memory_share,
                 kDefaultMemoryShare);
}

absl::StatusOr<EngineRoom> RoomOf(const EngineOptions& options) {
  EngineRoom room;
  PENSTOCK_ASSIGN_OR_RETURN(room.device, ParseDevice(options.device));
  const bool emulates = room.device.has_value() && room.device->kind == DeviceKind::kEmulated;
  const int device_threads = emulates ? room.device->num_threads : 0;
  room.num_threads = options.threads > 0 ? options.threads : std::max(1, NumUsableCpus() - device_threads);
  PENSTOCK_ASSIGN_OR_RETURN(room.budget_bytes, ChooseBudget(options, emulates ? options.device_memory_bytes : 0));
  return room;
}

absl::StatusOr<int64_t> ChooseContextLength(const EngineOptions& options, const ModelConfig& config) {
  PENSTOCK_RETURN_IF_ERROR(CheckRange("context length", options.context_length, kMaxContext));
  if (config.encoder.is_on() && options.attention_window > 0) {
    return UsageError("--attention-window: {} models have an encoder, where every token sees the whole prompt",
                      config.family->name);
  }
  if (config.encoder.is_on() && options.context_length > kMaxPrefillChunk) {
    return UsageError("context length {}: an encoder reads a prompt at once, at most {} tokens", options.context_length,
                      kMaxPrefillChunk);
  }
  // Relative biases are the same for all great distances, so they set no limit.
  if (options.context_length > config.max_positions && options.attention_window == 0 && !config.encoder.is_on()) {
    return UsageError("context length {} is more than the model's {} (longer ones need --attention-window)",
                      options.context_length, config.max_positions);
  }
  // The default does not depend on the budget, because the budget must not decide which requests are too long.
  constexpr int64_t kDefaultContext = 8192;
  return options.context_length > 0 ? options.context_length : std::min(config.max_positions, kDefaultContext);
}

void LogWindow(const KvWindow& window, int64_t context_length, const ModelConfig& config) {
  if (!window.on()) return;
  LogInfo("attention window: each token sees the first {} tokens ({} asked for, in KV pages of {}) and the last {}",
          window.sink_pages() * KvCache::kPageTokens, window.num_sinks, KvCache::kPageTokens, window.num_tokens);
  if (context_length > config.max_positions) {
    LogWarning("the context length of {} is more than the model's {}: it was not trained on later positions",
               context_length, config.max_positions);
  }
}

absl::StatusOr<EnginePlan> PlanEngine(const EngineOptions& options, const EngineModel& model, const EngineRoom& room,
                                      std::shared_ptr<const ExpertLayouts> layouts) {
  PENSTOCK_RETURN_IF_ERROR(CheckRange("batch size", options.batch_size, kMaxBatchSize));
  PENSTOCK_RETURN_IF_ERROR(CheckRange("prefill chunk", options.prefill_chunk, kMaxPrefillChunk));
  PENSTOCK_ASSIGN_OR_RETURN(RankSplit ranks, DivideModel(options.policy, model, room.ranks));
  // The plan is that of the rank with the most heads, so that all ranks have room for the same rows.
  RankSplit last = ranks;
  last.rank = ranks.num_ranks - 1;
  const HeadRange heads = HeadsOf(model.config, last);
  const ModelConfig heads_config = ConfigOfHeads(model.config, heads);
  PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(options, model.weights));
  if (room.device.has_value() && room.device->kind == DeviceKind::kCuda) {
    PENSTOCK_RETURN_IF_ERROR(CheckGpu(options.device, *room.device, model, formats));
  }
  if (layouts == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(ranks.placement, PlaceExperts(options.policy, model.config, ranks));
    layouts = std::make_shared<ExpertLayouts>(model.weights, model.files, formats.dtype, ranks);
  }
  PlanInputs inputs;
  inputs.config = &model.config;
  inputs.row_formats = formats.rows;
  inputs.kv_format = formats.kv;
  inputs.budget_bytes = room.budget_bytes;
  PENSTOCK_ASSIGN_OR_RETURN(inputs.context_length, ChooseContextLength(options, model.config));
  inputs.fixed_bytes = FixedBytes(options, model, room, *layouts, formats.kv, inputs.context_length);
  inputs.dense_bytes = DenseWeights::Bytes(model.weights, formats.dtype,
                                           room.device.has_value() ? DensePart::kEmbedding : DensePart::kAll, heads);
  inputs.slot_bytes = layouts->slot_bytes();
  inputs.num_ranks = ranks.num_ranks;
  inputs.experts_of_layer = layouts->max_experts_of_layer();
  inputs.cuts_experts = ranks.cuts_experts;
  inputs.heads = ranks.by_heads ? &heads_config : nullptr;
  inputs.num_workers = room.num_threads;
  inputs.batch_size = options.batch_size;
  inputs.prefill_chunk = options.prefill_chunk;
  // A prompt goes through an encoder at once.
  if (model.config.encoder.is_on()) inputs.min_chunk = inputs.context_length;
  inputs.planned_positions = options.planned_positions;
  inputs.expert_slots = options.policy.expert_slots;
  inputs.bytes_per_sequence = room.caller.bytes_per_sequence;
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<SidaShape> network, ReadNetworkShape(options.policy, model));
  const PredictorBytes predictor = PredictorBytesOf(options.policy, network, model.config);
  inputs.fixed_bytes += predictor.fixed;
  inputs.bytes_per_sequence += predictor.per_place;
  inputs.bytes_per_row = predictor.per_row;
  inputs.bytes_per_position = kBytesPerPosition + room.caller.bytes_per_position;
  const uint64_t device_dense_bytes = DenseWeights::Bytes(model.weights, formats.dtype, DensePart::kLayers, heads);
  PENSTOCK_ASSIGN_OR_RETURN(ChosenPolicy policy, ChoosePolicy(options, room.device, device_dense_bytes, inputs));
  const ScheduleTraits& schedule = TraitsOf(policy.schedule.kind);
  if (ranks.num_ranks > 1 && room.device.has_value() && (schedule.attends_on_host || schedule.host_computes_experts)) {
    return UsageError("schedule {} with a device runs on one rank only", schedule.name);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckReplacesRouters(policy.schedule, options.device, model, room, ranks));
  if (ranks.by_heads && room.device.has_value() && !policy.plan.device.holds_kv_cache) {
    return UsageError("--parallel attention=tp: the KV cache must lie on the device");
  }
  EnginePlan plan{.formats = formats,
                  .model_formats = ModelFormatsOf(model.weights, formats),
                  .layouts = std::move(layouts),
                  .policy = std::move(policy),
                  .popularity = {}};
  if (network.has_value()) PENSTOCK_RETURN_IF_ERROR(LoadNetwork(options.policy, *network, plan.policy));
  if (PinsByPopularity(options.policy, plan.policy.schedule.kind, plan.policy.eviction)) {
    PENSTOCK_ASSIGN_OR_RETURN(plan.popularity, ReadPopularity(options.policy, model.config, *plan.layouts));
  }
  return plan;
}

}  // namespace penstock
