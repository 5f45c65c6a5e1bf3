#include "penstock/engine/memory_plan.h"

#include <algorithm>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/status.h"
#include "penstock/memory/budget.h"
#include "penstock/memory/kv_cache.h"

namespace penstock {
namespace {

constexpr int64_t kDefaultBatch = 64;
constexpr int64_t kDefaultChunk = 256;
constexpr int64_t kLeastChunk = 16;
// Positions that the KV cache holds for each place of the batch where the caller does not know; a longer sequence takes
// several shares and others wait.
constexpr int64_t kPlannedPositions = 256;

// The part of a plan that grows with the batch.
struct PassSize {
  int64_t batch_size;
  int64_t prefill_chunk;
};

uint64_t KvBytes(const PlanInputs& in, int64_t batch_size) {
  const int64_t planned = in.planned_positions > 0 ? in.planned_positions : kPlannedPositions;
  const int64_t shares = KvCache::PagesFor(std::min(in.context_length, planned)) * batch_size;
  const int64_t pages = std::max(KvCache::PagesFor(in.context_length), shares);
  return RoundUp(static_cast<uint64_t>(pages) * KvCache::PageBytes(*in.config, in.kv_format), kPageBytes);
}

ActivationDims Dims(const PlanInputs& in, const PassSize& size) {
  const int64_t rows = size.batch_size + size.prefill_chunk;
  return {.max_rows = rows,
          .max_logit_rows = std::min(rows, kMaxLogitRows),
          .context_length = in.context_length,
          .num_workers = in.num_workers};
}

uint64_t PositionBytes(const PlanInputs& in, uint64_t kv_bytes) {
  const uint64_t pages = kv_bytes / KvCache::PageBytes(*in.config, in.kv_format);
  return pages * KvCache::kPageTokens * in.bytes_per_position;
}

// All that grows with the batch but the KV cache and what belongs to its positions.
uint64_t PlacesBytes(const PlanInputs& in, const PassSize& size) {
  return Activations::Bytes(*in.config, in.row_formats, Dims(in, size)) +
         static_cast<uint64_t>(size.batch_size) * in.bytes_per_sequence;
}

uint64_t PassBytes(const PlanInputs& in, const PassSize& size) {
  const uint64_t kv_bytes = KvBytes(in, size.batch_size);
  return kv_bytes + PositionBytes(in, kv_bytes) + PlacesBytes(in, size);
}

// The largest pass of at most `limit` bytes, growing the batch and the chunk by turns.
PassSize GrowPass(const PlanInputs& in, PassSize size, uint64_t limit) {
  const int64_t most_batch = in.batch_size > 0 ? in.batch_size : kDefaultBatch;
  const int64_t most_chunk = in.prefill_chunk > 0 ? in.prefill_chunk : kDefaultChunk;
  for (bool grown = true; grown;) {
    grown = false;
    PassSize larger = size;
    larger.batch_size = std::min(most_batch, size.batch_size * 2);
    if (larger.batch_size > size.batch_size && PassBytes(in, larger) <= limit) {
      size = larger;
      grown = true;
    }
    larger = size;
    larger.prefill_chunk = std::min(most_chunk, size.prefill_chunk * 2);
    if (larger.prefill_chunk > size.prefill_chunk && PassBytes(in, larger) <= limit) {
      size = larger;
      grown = true;
    }
  }
  return size;
}

}  // namespace

ActivationDims DimsOf(const MemoryPlan& plan, int num_workers) {
  const int64_t rows = plan.batch_size + plan.prefill_chunk;
  return {.max_rows = rows,
          .max_logit_rows = std::min(rows, kMaxLogitRows),
          .context_length = plan.context_length,
          .num_workers = num_workers};
}

int64_t NumKvPages(const MemoryPlan& plan, const ModelConfig& config, KvFormat kv_format) {
  return static_cast<int64_t>(plan.kv_bytes / KvCache::PageBytes(config, kv_format));
}

absl::StatusOr<MemoryPlan> PlanMemory(const PlanInputs& in) {
  const int64_t num_experts = in.config->num_experts * in.config->num_moe_layers();
  const int64_t least_slots = std::min(num_experts, in.least_slots);
  const PassSize least = {.batch_size = in.batch_size > 0 ? in.batch_size : 1,
                          .prefill_chunk = in.prefill_chunk > 0 ? in.prefill_chunk : kLeastChunk};
  const uint64_t kv_least = KvBytes(in, 1);  // a given batch size is a number of places; they share these pages
  const uint64_t activations_least = Activations::Bytes(*in.config, in.row_formats, Dims(in, least));
  const uint64_t places_least = PlacesBytes(in, least);
  const uint64_t texts_least = PositionBytes(in, kv_least) + (places_least - activations_least);
  const uint64_t slots_least = static_cast<uint64_t>(least_slots) * in.slot_bytes;
  const uint64_t required = in.fixed_bytes + texts_least + in.dense_bytes + kv_least + activations_least + slots_least;
  if (required > in.budget_bytes) {
    return ResourceError(
        "the memory budget of {} is too small: tokenizer, tables and requests {} + dense weights {} + KV cache for one "
        "sequence of {} tokens {} + activations {} + {} expert slots {} = {}; the least budget is {} bytes (give more "
        "--memory, or a smaller --context-length or --batch-size)",
        FormatBytes(in.budget_bytes), FormatBytes(in.fixed_bytes + texts_least), FormatBytes(in.dense_bytes),
        in.context_length, FormatBytes(kv_least), FormatBytes(activations_least), least_slots, FormatBytes(slots_least),
        FormatBytes(required), required);
  }
  const uint64_t left = in.budget_bytes - required;
  const uint64_t all_experts = static_cast<uint64_t>(num_experts - least_slots) * in.slot_bytes;
  const uint64_t for_pass = std::max(left / 2, left > all_experts ? left - all_experts : 0);
  const uint64_t pass_limit = kv_least + PositionBytes(in, kv_least) + places_least + for_pass;
  const PassSize size = GrowPass(in, least, pass_limit);

  MemoryPlan plan;
  plan.budget_bytes = in.budget_bytes;
  plan.fixed_bytes = in.fixed_bytes;
  plan.dense_bytes = in.dense_bytes;
  plan.batch_size = size.batch_size;
  plan.prefill_chunk = size.prefill_chunk;
  plan.context_length = in.context_length;
  plan.num_experts_total = num_experts;
  plan.activation_bytes = Activations::Bytes(*in.config, in.row_formats, Dims(in, size));
  // With a given batch size the places may share fewer pages than they would like.
  const uint64_t page_bytes = KvCache::PageBytes(*in.config, in.kv_format);
  const uint64_t pages =
      (pass_limit - PlacesBytes(in, size)) / (page_bytes + KvCache::kPageTokens * in.bytes_per_position);
  plan.kv_bytes = std::min(KvBytes(in, size.batch_size), pages * page_bytes / kPageBytes * kPageBytes);
  plan.kv_bytes = std::max(kv_least, plan.kv_bytes);
  plan.fixed_bytes += PositionBytes(in, plan.kv_bytes) + (PlacesBytes(in, size) - plan.activation_bytes);
  TierBudget budget(in.budget_bytes);
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

}  // namespace penstock
