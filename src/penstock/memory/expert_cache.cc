#include "penstock/memory/expert_cache.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/status.h"

namespace penstock {

ExpertLease::ExpertLease(ExpertLease&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      slot_idx_(other.slot_idx_),
      expert_idx_(other.expert_idx_),
      weights_(other.weights_) {}

ExpertLease::~ExpertLease() {
  if (cache_ != nullptr) cache_->Release(slot_idx_);
}

ExpertCache::ExpertPlan ExpertCache::PlanReads(const FfnTensors& tensors, uint64_t* slot_bytes) {
  std::array<const TensorInfo*, 3> in_file_order = {tensors.gate_proj, tensors.up_proj, tensors.down_proj};
  std::sort(in_file_order.begin(), in_file_order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->file_idx, a->extent.offset_bytes) < std::pair(b->file_idx, b->extent.offset_bytes);
  });
  ExpertPlan plan{.tensors = &tensors, .reads = {}};
  Dtype last_dtype = tensors.gate_proj->dtype;
  for (const TensorInfo* tensor : in_file_order) {
    // One read for neighbours, unless their types differ: see PrepareTensor.
    ReadPlan* last = plan.reads.empty() ? nullptr : &plan.reads.back();
    if (last != nullptr && last->file_idx == tensor->file_idx && last_dtype == tensor->dtype &&
        last->extent.offset_bytes + last->extent.size_bytes == tensor->extent.offset_bytes) {
      last->extent.size_bytes += tensor->extent.size_bytes;
    } else {
      plan.reads.push_back({tensor->file_idx, tensor->extent, 0});
    }
    last_dtype = tensor->dtype;
  }
  uint64_t used = 0;
  for (ReadPlan& read : plan.reads) {
    read.slot_offset = used;
    used += DiskReader::PaddedBytes(read.extent.size_bytes);
  }
  *slot_bytes = used;
  return plan;
}

uint64_t ExpertCache::SlotBytes(const WeightMap& map) {
  uint64_t max_bytes = 0;
  for (const LayerTensors& layer : map.layers) {
    for (const FfnTensors& expert : layer.experts) {
      uint64_t bytes = 0;
      PlanReads(expert, &bytes);
      max_bytes = std::max(max_bytes, bytes);
    }
  }
  return max_bytes;
}

uint64_t ExpertCache::TableBytes(const WeightMap& map) {
  uint64_t num_experts = 0;
  for (const LayerTensors& layer : map.layers) num_experts += layer.experts.size();
  // Three reads at worst, vector growth, and a slot with its list node for each expert.
  return num_experts * (sizeof(ExpertPlan) + 4 * sizeof(ReadPlan) + sizeof(Slot) + 96);
}

ExpertCache::ExpertCache(const WeightMap& map, ComputeDtype dtype, DiskReader& reader)
    : reader_(&reader), dtype_(dtype) {
  for (const LayerTensors& layer : map.layers) {
    first_expert_of_layer_.push_back(static_cast<int64_t>(experts_.size()));
    for (size_t expert_idx = 0; expert_idx < layer.experts.size(); ++expert_idx) {
      uint64_t bytes = 0;
      experts_.push_back(PlanReads(layer.experts[expert_idx], &bytes));
      expert_idx_of_key_.push_back(static_cast<int32_t>(expert_idx));
      slot_bytes_ = std::max(slot_bytes_, bytes);
    }
  }
  slot_of_expert_.assign(experts_.size(), -1);
}

absl::StatusOr<std::unique_ptr<ExpertCache>> ExpertCache::Create(const WeightMap& map, ComputeDtype dtype,
                                                                 int64_t num_slots, DiskReader& reader) {
  PENSTOCK_CHECK(num_slots >= 1);
  auto cache = std::unique_ptr<ExpertCache>(new ExpertCache(map, dtype, reader));
  PENSTOCK_ASSIGN_OR_RETURN(cache->arena_, Arena::Map(static_cast<uint64_t>(num_slots) * cache->slot_bytes_));
  cache->slots_.resize(num_slots);
  for (int slot_idx = 0; slot_idx < num_slots; ++slot_idx) {
    cache->slots_[slot_idx].lru_place = cache->lru_.insert(cache->lru_.end(), slot_idx);
  }
  return cache;
}

ExpertCache::~ExpertCache() {
  // The disk still writes into the slots; what it brings is no longer wanted. Reads that failed bring no tag: then the
  // reader runs dry before all slots are filled.
  while (num_reading_ > 0) {
    const auto completed = reader_->NextCompleted(DiskReader::Wait::kYes);
    if (!completed.ok()) continue;
    if (!completed->has_value()) break;
    if (--slots_[**completed].num_reads_left == 0) --num_reading_;
  }
}

void ExpertCache::ResetCounters() {
  hits_ = 0;
  misses_ = 0;
  wait_s_ = 0;
}

absl::Status ExpertCache::Begin(int64_t layer_idx, std::span<const int32_t> expert_idxs) {
  PENSTOCK_CHECK(waiting_.empty() && ready_.empty() && num_reading_ == 0);
  for (const int32_t expert_idx : expert_idxs) {
    const int64_t key = first_expert_of_layer_[layer_idx] + expert_idx;
    const int slot_idx = slot_of_expert_[key];
    if (slot_idx >= 0) {
      slots_[slot_idx].leased = true;
      ready_.push_back(slot_idx);
      ++hits_;
    } else {
      waiting_.push_back(key);
      ++misses_;
    }
  }
  std::reverse(waiting_.begin(), waiting_.end());
  return StartReads();
}

int ExpertCache::FindFreeSlot() const {
  for (const int slot_idx : lru_) {
    const Slot& slot = slots_[slot_idx];
    if (slot.state != SlotState::kReading && !slot.leased) return slot_idx;
  }
  return -1;
}

absl::Status ExpertCache::StartReads() {
  while (!waiting_.empty()) {
    const int slot_idx = FindFreeSlot();
    if (slot_idx < 0) return absl::OkStatus();
    Slot& slot = slots_[slot_idx];
    if (slot.expert_key >= 0) slot_of_expert_[slot.expert_key] = -1;
    slot.expert_key = waiting_.back();
    waiting_.pop_back();
    slot.state = SlotState::kReading;
    const ExpertPlan& plan = experts_[slot.expert_key];
    slot.num_reads_left = static_cast<int>(plan.reads.size());
    ++num_reading_;
    // Most recently used from now on, so that the scan for a free slot passes it last.
    lru_.splice(lru_.end(), lru_, slot.lru_place);
    for (const ReadPlan& read : plan.reads) {
      PENSTOCK_RETURN_IF_ERROR(reader_->Submit({.file_idx = read.file_idx,
                                                .extent = read.extent,
                                                .target = SlotData(slot_idx) + read.slot_offset,
                                                .tag = static_cast<uint64_t>(slot_idx)}));
    }
  }
  return absl::OkStatus();
}

WeightView ExpertCache::PrepareTensor(const TensorInfo& tensor, std::byte* data) const {
  // Kernels want elements aligned to their size. A tensor at an odd offset moves down by the odd bytes; its neighbours
  // in the same read have its type, are odd by as much, and move before it.
  const uint64_t odd_bytes = reinterpret_cast<uintptr_t>(data) % SizeOf(tensor.dtype);
  if (odd_bytes != 0) {
    std::memmove(data - odd_bytes, data, tensor.extent.size_bytes);
    data -= odd_bytes;
  }
  if (dtype_ == ComputeDtype::kF32 || tensor.dtype == Dtype::kBF16) return {data, tensor.dtype};
  ToBF16s(tensor.dtype, data, static_cast<int64_t>(tensor.extent.size_bytes / SizeOf(tensor.dtype)), data);
  return {data, Dtype::kBF16};
}

void ExpertCache::FinishSlot(int slot_idx) {
  Slot& slot = slots_[slot_idx];
  const ExpertPlan& plan = experts_[slot.expert_key];
  struct Part {
    const TensorInfo* tensor;
    WeightView* view;
  };
  std::array<Part, 3> parts = {{{plan.tensors->gate_proj, &slot.weights.gate_proj},
                                {plan.tensors->up_proj, &slot.weights.up_proj},
                                {plan.tensors->down_proj, &slot.weights.down_proj}}};
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.tensor->extent.offset_bytes < b.tensor->extent.offset_bytes; });
  for (const Part& part : parts) {
    for (const ReadPlan& read : plan.reads) {
      const uint64_t begin = read.extent.offset_bytes;
      const uint64_t offset = part.tensor->extent.offset_bytes;
      if (read.file_idx != part.tensor->file_idx || offset < begin || offset >= begin + read.extent.size_bytes)
        continue;
      std::byte* landing = SlotData(slot_idx) + read.slot_offset + begin % kPageBytes;
      *part.view = PrepareTensor(*part.tensor, landing + (offset - begin));
    }
  }
  slot.state = SlotState::kReady;
  slot.leased = true;
  slot_of_expert_[slot.expert_key] = slot_idx;
  ready_.push_back(slot_idx);
  --num_reading_;
}

absl::Status ExpertCache::CollectRead(DiskReader::Wait wait, bool* collected) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<uint64_t> tag, reader_->NextCompleted(wait));
  *collected = tag.has_value();
  if (tag.has_value() && --slots_[*tag].num_reads_left == 0) FinishSlot(static_cast<int>(*tag));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ExpertLease>> ExpertCache::NextReady() {
  PENSTOCK_RETURN_IF_ERROR(StartReads());
  bool collected = num_reading_ > 0;
  while (collected && num_reading_ > 0) {
    PENSTOCK_RETURN_IF_ERROR(CollectRead(DiskReader::Wait::kNo, &collected));
  }
  if (ready_.empty() && num_reading_ > 0) {
    const auto start = std::chrono::steady_clock::now();
    while (ready_.empty()) PENSTOCK_RETURN_IF_ERROR(CollectRead(DiskReader::Wait::kYes, &collected));
    wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  PENSTOCK_CHECK(!ready_.empty() || waiting_.empty());
  std::vector<ExpertLease> leases;
  leases.reserve(ready_.size());
  for (const int slot_idx : ready_) leases.push_back(Lease(slot_idx));
  ready_.clear();
  return leases;
}

ExpertLease ExpertCache::Lease(int slot_idx) {
  const Slot& slot = slots_[slot_idx];
  return ExpertLease(*this, slot_idx, expert_idx_of_key_[slot.expert_key], slot.weights);
}

void ExpertCache::Release(int slot_idx) {
  Slot& slot = slots_[slot_idx];
  slot.leased = false;
  lru_.splice(lru_.end(), lru_, slot.lru_place);
}

absl::Status ExpertCache::Preload() {
  int64_t room = num_slots();
  for (size_t layer_idx = 0; layer_idx < first_expert_of_layer_.size() && room > 0; ++layer_idx) {
    const int64_t first = first_expert_of_layer_[layer_idx];
    const int64_t end = layer_idx + 1 < first_expert_of_layer_.size() ? first_expert_of_layer_[layer_idx + 1]
                                                                      : static_cast<int64_t>(experts_.size());
    std::vector<int32_t> expert_idxs;
    for (int64_t key = first; key < end && room > 0; ++key, --room) expert_idxs.push_back(expert_idx_of_key_[key]);
    PENSTOCK_RETURN_IF_ERROR(Begin(static_cast<int64_t>(layer_idx), expert_idxs));
    for (;;) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ExpertLease> leases, NextReady());
      if (leases.empty()) break;
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
