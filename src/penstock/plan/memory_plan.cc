#include "penstock/plan/memory_plan.h"

#include <algorithm>
#include <bit>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/status.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/memory/kv_staging.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/plan/budget.h"
#include "penstock/runtime/runtime.h"

namespace penstock {
namespace {

constexpr int64_t kDefaultBatch = 64;
constexpr int64_t kDefaultChunk = 256;
constexpr int64_t kMinChunk = 16;
// When steps read experts from the disk, a step of prompt rows reads nearly all of them, whatever its size. So it gets
// about this many rows for each expert, within a maximum: 2048 rows for 256 experts of which a token takes 8.
constexpr int64_t kRowsOfReadExpert = 64;
constexpr int64_t kMaxDefaultChunk = 2048;

// The part of a plan that grows with the batch.
struct PassSize {
  int64_t batch_size;
  int64_t prefill_chunk;
};

int64_t PagesPerSequence(const PlanInputs& in) {
  return in.pages_per_sequence > 0 ? in.pages_per_sequence : KvCache::PagesFor(in.context_length);
}

// Returns the bytes of a KV page of this rank on all ranks that share the heads: every rank holds the others' pages,
// too.
uint64_t PageBytes(const PlanInputs& in) {
  if (in.heads == nullptr) return KvCache::PageBytes(*in.config, in.kv_format);
  return static_cast<uint64_t>(in.num_ranks) * KvCache::PageBytes(*in.heads, in.kv_format);
}

uint64_t KvBytes(const PlanInputs& in, int64_t batch_size) {
  const int64_t planned = in.planned_positions > 0 ? in.planned_positions : kPlannedPositions;
  const int64_t of_state = RecurrentState::NumPages(*in.config, PageBytes(in));
  const int64_t shares = (std::min(PagesPerSequence(in), KvCache::PagesFor(planned)) + of_state) * batch_size;
  const int64_t pages = std::max(PagesPerSequence(in) + of_state, shares);
  return RoundUp(static_cast<uint64_t>(pages) * PageBytes(in), kPageBytes);
}

// Activations of passes of all sizes have this in common.
struct PassKind {
  int64_t context_length;
  int num_ranks;
  int64_t experts_of_layer;
  bool cuts_experts;
};

ActivationDims Dims(const PassSize& size, const PassKind& kind, int num_workers, ActivationDims::Part part) {
  const int64_t rows = size.batch_size + size.prefill_chunk;
  return {.max_rows = rows,
          .max_logit_rows = std::min(rows, kMaxLogitRows),
          .context_length = kind.context_length,
          .num_workers = num_workers,
          .num_ranks = kind.num_ranks,
          .experts_of_layer = kind.experts_of_layer,
          .cuts_experts = kind.cuts_experts,
          .part = part};
}

int64_t ExpertsOfLayer(const PlanInputs& in) {
  return in.experts_of_layer > 0 ? in.experts_of_layer : in.config->num_stored_experts();
}
PassKind KindOf(const PlanInputs& in) { return {in.context_length, in.num_ranks, ExpertsOfLayer(in), in.cuts_experts}; }
PassKind KindOf(const MemoryPlan& plan) {
  return {plan.context_length, plan.num_ranks, plan.experts_of_layer, plan.cuts_experts};
}

ActivationDims::Part HostPart(bool has_device, bool computes_experts) {
  if (!has_device) return ActivationDims::Part::kAll;
  return computes_experts ? ActivationDims::Part::kHostExperts : ActivationDims::Part::kHost;
}

ActivationDims::Part HostPart(const PlanInputs& in) {
  return HostPart(in.device.has_value(), in.device.has_value() && in.device->host_computes_experts);
}

// Returns the bytes of the activations of a rank's heads.
uint64_t HeadActivationBytes(const PlanInputs& in, const PassSize& size, int num_workers) {
  if (in.heads == nullptr) return 0;
  return Activations::Bytes(*in.heads, in.row_formats,
                            Dims(size, KindOf(in), num_workers, ActivationDims::Part::kHeads));
}

uint64_t HostActivationBytes(const PlanInputs& in, const PassSize& size) {
  return Activations::Bytes(*in.config, in.row_formats, Dims(size, KindOf(in), in.num_workers, HostPart(in))) +
         (in.device.has_value() ? 0 : HeadActivationBytes(in, size, in.num_workers));
}
uint64_t DeviceActivationBytes(const PlanInputs& in, const PassSize& size) {
  return Activations::Bytes(*in.config, in.row_formats,
                            Dims(size, KindOf(in), in.device->num_workers, ActivationDims::Part::kAll)) +
         HeadActivationBytes(in, size, in.device->num_workers);
}

// Returns whether a window limits the KV cache. A sequence may then have more positions than its pages hold.
bool HasWindow(const PlanInputs& in) { return PagesPerSequence(in) < KvCache::PagesFor(in.context_length); }

// Returns the bytes of the tables of KV pages, and of what the caller holds for their positions.
uint64_t PositionBytes(const PlanInputs& in, uint64_t kv_bytes, int64_t batch_size) {
  const uint64_t pages = kv_bytes / PageBytes(in);
  const uint64_t tables = pages * PrefixCache::kBytesPerPage;
  if (HasWindow(in)) return tables + static_cast<uint64_t>(batch_size * in.context_length) * in.bytes_per_position;
  return tables + pages * KvCache::kPageTokens * in.bytes_per_position;
}

// Returns the bytes that the host holds of a KV cache of `kv_bytes`.
uint64_t HostKvBytes(const PlanInputs& in, uint64_t kv_bytes) {
  return in.device.has_value() && in.device->holds_kv_cache ? 0 : kv_bytes;
}

// Returns all bytes that grow with the batch, except the KV cache and the bytes for its positions.
uint64_t PlacesBytes(const PlanInputs& in, const PassSize& size) {
  // Ranks that share the heads also describe their rows and pages to each other: RankRows, and the messages.
  constexpr int64_t kBytesPerRow = 96, kBytesPerPage = 24;
  const int64_t of_rows = (size.batch_size + size.prefill_chunk) * kBytesPerRow;
  const int64_t of_pages = size.batch_size * PagesPerSequence(in) * kBytesPerPage;
  const int64_t of_ranks = in.heads == nullptr ? 0 : in.num_ranks * (of_rows + of_pages);
  return HostActivationBytes(in, size) + static_cast<uint64_t>(of_ranks) +
         static_cast<uint64_t>(size.batch_size + size.prefill_chunk) * in.bytes_per_row +
         static_cast<uint64_t>(size.batch_size) * in.bytes_per_sequence;
}

uint64_t PassBytes(const PlanInputs& in, const PassSize& size) {
  const uint64_t kv_bytes = KvBytes(in, size.batch_size);
  return HostKvBytes(in, kv_bytes) + PositionBytes(in, kv_bytes, size.batch_size) + PlacesBytes(in, size);
}

// Returns the maximum number of KV pages of a micro-batch if the cache has `num_pages`.
int64_t StagedPages(const PlanInputs& in, int64_t num_pages) {
  return in.micro_batch_size == 0 ? num_pages : std::min(num_pages, in.micro_batch_size * PagesPerSequence(in));
}

// Returns the bytes that the device holds of a KV cache of `kv_bytes`: all of it, its staging buffers, or none.
uint64_t DeviceKvBytes(const PlanInputs& in, uint64_t kv_bytes) {
  if (in.device->holds_kv_cache) return kv_bytes;
  if (!in.device->stages_kv) return 0;
  const auto num_pages = static_cast<int64_t>(kv_bytes / PageBytes(in));
  return KvStaging::Bytes(*in.config, in.kv_format, StagedPages(in, num_pages));
}

uint64_t DevicePassBytes(const PlanInputs& in, const PassSize& size) {
  return DeviceActivationBytes(in, size) + DeviceKvBytes(in, KvBytes(in, size.batch_size));
}

// Bytes that the pass may take of the host's and of the device's budget.
struct PassShares {
  uint64_t host_bytes = 0;
  uint64_t device_bytes = 0;
  uint64_t rows_bytes = 0;  // that all but the KV cache may take on the host, however large the KV cache is
};

// Returns the most prompt rows of a step, if the caller gives no number.
int64_t DefaultChunk(const ModelConfig& config, bool reads_experts) {
  if (!reads_experts || config.num_topk == 0) return kDefaultChunk;
  return std::clamp(kRowsOfReadExpert * config.num_experts / config.num_topk, kDefaultChunk, kMaxDefaultChunk);
}

// Returns the largest pass within the shares. Doubles the batch and the chunk in turn.
PassSize GrowPass(const PlanInputs& in, PassSize size, const PassShares& shares, bool reads_experts) {
  const int64_t max_batch = in.batch_size > 0 ? in.batch_size : kDefaultBatch;
  const int64_t max_chunk =
      std::max(in.prefill_chunk > 0 ? in.prefill_chunk : DefaultChunk(*in.config, reads_experts), in.min_chunk);
  const auto fits = [&](const PassSize& larger) {
    const bool fits_host = PassBytes(in, larger) <= shares.host_bytes || PlacesBytes(in, larger) <= shares.rows_bytes;
    return fits_host && (!in.device.has_value() || DevicePassBytes(in, larger) <= shares.device_bytes);
  };
  for (bool grown = true; grown;) {
    grown = false;
    PassSize larger = size;
    larger.batch_size = std::min(max_batch, size.batch_size * 2);
    if (larger.batch_size > size.batch_size && fits(larger)) {
      size = larger;
      grown = true;
    }
    larger = size;
    larger.prefill_chunk = std::min(max_chunk, size.prefill_chunk * 2);
    if (larger.prefill_chunk > size.prefill_chunk && fits(larger)) {
      size = larger;
      grown = true;
    }
  }
  return size;
}

// Returns the pass's share of the bytes that are left: half of them, or all that the experts do not need if that is
// more. A batch size that was asked for takes precedence over experts that stay in memory: its pass may take all but an
// eighth, with which reading stays ahead.
uint64_t PassShare(uint64_t left, int64_t num_experts_beside, uint64_t slot_bytes, bool batch_is_given) {
  const uint64_t all_experts = static_cast<uint64_t>(num_experts_beside) * slot_bytes;
  return std::max(batch_is_given ? left - left / 8 : left / 2, left > all_experts ? left - all_experts : 0);
}

// Returns the bytes of the largest KV cache, at most `kv_bytes`, whose part on the device is within `limit`.
uint64_t LimitDeviceKv(const PlanInputs& in, uint64_t kv_bytes, uint64_t limit) {
  const uint64_t page_bytes = PageBytes(in);
  if (DeviceKvBytes(in, kv_bytes) <= limit) return kv_bytes;
  if (in.device->holds_kv_cache) return limit / kPageBytes * kPageBytes;
  return limit / KvStaging::Bytes(*in.config, in.kv_format, 1) * page_bytes / kPageBytes * kPageBytes;
}

// Returns the bytes that a pass may take of a device's memory; kResources when not even the smallest pass fits.
absl::StatusOr<uint64_t> DevicePassLimit(const PlanInputs& in, const PassSize& min, uint64_t kv_min,
                                         int64_t num_experts) {
  const DeviceInputs& device = *in.device;
  const int64_t num_slots = std::min(num_experts, device.min_slots);
  const uint64_t activation_bytes = DeviceActivationBytes(in, min);
  const uint64_t kv_bytes = DeviceKvBytes(in, kv_min);
  const uint64_t slots_bytes = static_cast<uint64_t>(num_slots) * in.slot_bytes;
  const uint64_t required = device.fixed_bytes + device.dense_bytes + kv_bytes + activation_bytes + slots_bytes;
  if (required > device.budget_bytes) {
    return TooSmall(
        {.tier = BudgetShortage::Tier::kDevice,
         .has_batch_size = in.batch_size > 1,
         .least_bytes = required,
         .account = fmt::format("the device memory of {} is too small: buffers {} + dense weights {} + KV {} + "
                                "activations {} + {} expert slots {} = {}",
                                FormatBytes(device.budget_bytes), FormatBytes(device.fixed_bytes),
                                FormatBytes(device.dense_bytes), FormatBytes(kv_bytes), FormatBytes(activation_bytes),
                                num_slots, FormatBytes(slots_bytes), FormatBytes(required))});
  }
  // A batch size that was asked for takes precedence over experts that are pinned on the device.
  const uint64_t left = device.budget_bytes - required;
  return kv_bytes + activation_bytes +
         (in.batch_size > 0 ? left : PassShare(left, num_experts - num_slots, in.slot_bytes, false));
}

// Returns all experts of this rank.
int64_t NumExperts(const PlanInputs& in) { return ExpertsOfLayer(in) * in.config->num_moe_layers(); }

// Returns a plan for passes of this size, with what does not depend on the rest of the budget.
MemoryPlan PlanOfSize(const PlanInputs& in, const PassSize& size) {
  MemoryPlan plan;
  plan.budget_bytes = in.budget_bytes;
  plan.fixed_bytes = in.fixed_bytes;
  plan.dense_bytes = in.dense_bytes;
  plan.batch_size = size.batch_size;
  plan.prefill_chunk = size.prefill_chunk;
  plan.micro_batch_size = in.micro_batch_size;
  plan.context_length = in.context_length;
  plan.num_experts_total = NumExperts(in);
  plan.num_ranks = in.num_ranks;
  plan.experts_of_layer = ExpertsOfLayer(in);
  plan.shares_heads = in.heads != nullptr;
  plan.cuts_experts = in.cuts_experts;
  plan.kv_page_bytes = PageBytes(in);
  plan.activation_bytes = HostActivationBytes(in, size);
  return plan;
}

// Returns the bytes of the largest KV cache with which a pass takes at most `pass_bytes` of the host's budget.
uint64_t KvWithin(const PlanInputs& in, const PassSize& size, uint64_t pass_bytes) {
  const uint64_t page_bytes = PageBytes(in);
  const uint64_t page_texts =
      PrefixCache::kBytesPerPage + (HasWindow(in) ? 0 : KvCache::kPageTokens * in.bytes_per_position);
  const uint64_t others = PlacesBytes(in, size) + (HasWindow(in) ? PositionBytes(in, 0, size.batch_size) : 0);
  if (pass_bytes <= others) return 0;
  const uint64_t pages = (pass_bytes - others) / std::max<uint64_t>(1, HostKvBytes(in, page_bytes) + page_texts);
  return pages * page_bytes / kPageBytes * kPageBytes;
}

// Returns the bytes of the KV cache, which may be less than one sequence needs.
uint64_t ChooseKvBytes(const PlanInputs& in, const PassSize& size, const PassShares& shares) {
  // With a given batch size, the places may share fewer pages than planned_positions asks for.
  uint64_t kv_bytes = std::min(KvBytes(in, size.batch_size), KvWithin(in, size, shares.host_bytes));
  // A guess gives up to half of its pages away if all experts then stay in memory, and no step waits for a read. So
  // does a plan for the slots that it had: a job's texts may take a little less memory than the plan expected.
  const int64_t num_wanted = in.expert_slots > 0 ? in.expert_slots : in.planned_positions == 0 ? NumExperts(in) : 0;
  const int64_t num_slots = std::min(num_wanted, NumExperts(in));
  if (num_slots > 0) {
    const uint64_t others = in.fixed_bytes + in.dense_bytes + static_cast<uint64_t>(num_slots) * in.slot_bytes;
    const uint64_t beside_experts = KvWithin(in, size, in.budget_bytes - std::min(in.budget_bytes, others));
    if (beside_experts >= std::max(KvBytes(in, 1), kv_bytes / 2)) kv_bytes = std::min(kv_bytes, beside_experts);
  }
  if (!in.device.has_value()) return kv_bytes;
  return LimitDeviceKv(in, kv_bytes, shares.device_bytes - DeviceActivationBytes(in, size));
}

absl::StatusOr<DevicePlan> PlanDevice(const PlanInputs& in, const PassSize& size, uint64_t kv_bytes,
                                      int64_t num_experts) {
  DevicePlan plan;
  plan.name = in.device->name;
  plan.budget_bytes = in.device->budget_bytes;
  plan.fixed_bytes = in.device->fixed_bytes;
  plan.dense_bytes = in.device->dense_bytes;
  plan.activation_bytes = DeviceActivationBytes(in, size);
  plan.holds_kv_cache = in.device->holds_kv_cache;
  plan.host_computes_experts = in.device->host_computes_experts;
  plan.kv_bytes = DeviceKvBytes(in, kv_bytes);
  TierBudget budget(plan.budget_bytes);
  PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kFixed, plan.fixed_bytes));
  PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kDense, plan.dense_bytes));
  PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kKvCache, plan.kv_bytes));
  PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kActivations, plan.activation_bytes));
  if (num_experts > 0) {
    plan.num_expert_slots = std::min(num_experts, static_cast<int64_t>(budget.free_bytes() / in.slot_bytes));
    plan.expert_bytes = static_cast<uint64_t>(plan.num_expert_slots) * in.slot_bytes;
    PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kExperts, plan.expert_bytes));
  }
  return plan;
}

}  // namespace

uint64_t GuessTableBytes(uint64_t budget_bytes) {
  return std::bit_floor(std::clamp<uint64_t>(budget_bytes / 256, 4 * kKiB, 4 * kMiB));
}

ActivationDims DimsOf(const MemoryPlan& plan, int num_workers) {
  return Dims({plan.batch_size, plan.prefill_chunk}, KindOf(plan), num_workers,
              HostPart(!plan.device.name.empty(), plan.device.host_computes_experts));
}

ActivationDims DeviceDimsOf(const MemoryPlan& plan, int num_workers) {
  return Dims({plan.batch_size, plan.prefill_chunk}, KindOf(plan), num_workers, ActivationDims::Part::kAll);
}

ActivationDims HeadDimsOf(const MemoryPlan& plan, int num_workers) {
  return Dims({plan.batch_size, plan.prefill_chunk}, KindOf(plan), num_workers, ActivationDims::Part::kHeads);
}

bool ReadsFromDisk(const MemoryPlan& plan) {
  return plan.num_expert_slots < plan.num_experts_total &&
         plan.num_pinned_experts + plan.device.num_pinned_experts < plan.num_experts_total;
}

int64_t MaxReading(const MemoryPlan& plan) {
  if (!ReadsFromDisk(plan)) return kAnyReading;
  return std::max<int64_t>(1, (plan.num_expert_slots - plan.num_pinned_experts) / 2);
}

bool CachesHoldSlots(const MemoryPlan& plan) {
  constexpr uint64_t kCacheBytes = uint64_t{32} << 20;  // of a third cache; usual ones have 16 to 64 MiB
  if (!ReadsFromDisk(plan)) return false;
  const int64_t num_slots = std::max<int64_t>(1, plan.num_expert_slots);
  const auto num_streaming = static_cast<uint64_t>(num_slots - plan.num_pinned_experts);
  return plan.expert_bytes / static_cast<uint64_t>(num_slots) * num_streaming <= kCacheBytes;
}

int64_t NumKvPages(const MemoryPlan& plan) { return static_cast<int64_t>(plan.kv_bytes / plan.kv_page_bytes); }

int64_t NumStagedPages(const MemoryPlan& plan, const ModelConfig& config, KvFormat kv_format) {
  return static_cast<int64_t>(plan.device.kv_bytes / KvStaging::Bytes(config, kv_format, 1));
}

absl::StatusOr<MemoryPlan> PlanMemory(const PlanInputs& in) {
  const int64_t num_experts = NumExperts(in);
  const int64_t min_slots = std::min(num_experts, in.min_slots);
  const PassSize min = {.batch_size = in.batch_size > 0 ? in.batch_size : 1,
                        .prefill_chunk = std::max(in.prefill_chunk > 0 ? in.prefill_chunk : kMinChunk, in.min_chunk)};
  const uint64_t kv_min = KvBytes(in, 1);  // one sequence's pages, which all places of a given batch size can share
  const uint64_t host_kv_min = HostKvBytes(in, kv_min);
  const uint64_t activations_min = HostActivationBytes(in, min);
  const uint64_t places_min = PlacesBytes(in, min);
  const uint64_t positions_min = PositionBytes(in, kv_min, min.batch_size);
  const uint64_t texts_min = positions_min + (places_min - activations_min);
  const uint64_t slots_min = static_cast<uint64_t>(min_slots) * in.slot_bytes;
  const uint64_t required = in.fixed_bytes + texts_min + in.dense_bytes + host_kv_min + activations_min + slots_min;
  if (required > in.budget_bytes) {
    return TooSmall({.has_batch_size = in.batch_size > 1,
                     .least_bytes = required,
                     .account = fmt::format(
                         "the memory budget of {} is too small: tokenizer, tables and requests {} + dense "
                         "weights {} + KV cache for one sequence of {} tokens {} + activations {} + {} expert "
                         "slots {} = {}",
                         FormatBytes(in.budget_bytes), FormatBytes(in.fixed_bytes + texts_min),
                         FormatBytes(in.dense_bytes), in.context_length, FormatBytes(host_kv_min),
                         FormatBytes(activations_min), min_slots, FormatBytes(slots_min), FormatBytes(required))});
  }
  const uint64_t left = in.budget_bytes - required;
  PassShares shares{.host_bytes = host_kv_min + positions_min + places_min +
                                  PassShare(left, num_experts - min_slots, in.slot_bytes, in.batch_size > 0)};
  if (in.batch_size > 0) shares.rows_bytes = places_min + left / 8;
  if (in.device.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(shares.device_bytes, DevicePassLimit(in, min, kv_min, num_experts));
  }
  const bool reads_experts = left < static_cast<uint64_t>(num_experts - min_slots) * in.slot_bytes;
  const PassSize size = GrowPass(in, min, shares, reads_experts);

  MemoryPlan plan = PlanOfSize(in, size);
  plan.kv_bytes = std::max(kv_min, ChooseKvBytes(in, size, shares));
  plan.fixed_bytes +=
      PositionBytes(in, plan.kv_bytes, size.batch_size) + (PlacesBytes(in, size) - plan.activation_bytes);
  TierBudget budget(in.budget_bytes);
  PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kFixed, plan.fixed_bytes));
  PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kDense, plan.dense_bytes));
  PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kKvCache, HostKvBytes(in, plan.kv_bytes)));
  PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kActivations, plan.activation_bytes));
  if (num_experts > 0) {
    plan.num_expert_slots = std::min(num_experts, static_cast<int64_t>(budget.free_bytes() / in.slot_bytes));
    plan.expert_bytes = static_cast<uint64_t>(plan.num_expert_slots) * in.slot_bytes;
    PENSTOCK_RETURN_IF_ERROR(budget.Reserve(MemoryTag::kExperts, plan.expert_bytes));
  }
  if (in.device.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(plan.device, PlanDevice(in, size, plan.kv_bytes, num_experts));
  }
  return plan;
}

}  // namespace penstock
