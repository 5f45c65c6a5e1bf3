#include "penstock/memory/expert_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"

namespace penstock {

ExpertLease::ExpertLease(ExpertLease&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      slot_idx_(other.slot_idx_),
      expert_idx_(other.expert_idx_),
      weights_(other.weights_) {}

ExpertLease::~ExpertLease() {
  if (cache_ != nullptr) cache_->Release(slot_idx_);
}

namespace {

uint64_t PackedBytesOf(const TensorInfo& tensor, WeightFormat format) {
  return PackedBytes(format, tensor.shape[0], tensor.shape[1]);
}

// Largest panel of any expert as it is stored.
uint64_t ScratchBytes(const WeightMap& map) {
  uint64_t bytes = 0;
  for (const LayerTensors& layer : map.layers) {
    for (const FfnTensors& expert : layer.experts) {
      for (const TensorInfo* tensor : {expert.gate_proj, expert.up_proj, expert.down_proj}) {
        bytes = std::max(bytes, StoredPanelBytes(*tensor));
      }
    }
  }
  return RoundUp(bytes, kPageBytes);
}

}  // namespace

// Matrices are packed in place, panel by panel in the order in which they lie: a panel is copied aside and written
// where the panels before it end. What is written may never reach what is still to be read, so the reads are put as far
// into the slot as the panels may outgrow them (by a last panel that is not full, or an odd number of inputs).
ExpertCache::ExpertPlan ExpertCache::PlanExpert(const FfnTensors& tensors, ComputeDtype dtype) {
  ExpertPlan plan;
  plan.matrices = {{{.tensor = tensors.gate_proj, .view = &FfnWeights::gate_proj},
                    {.tensor = tensors.up_proj, .view = &FfnWeights::up_proj},
                    {.tensor = tensors.down_proj, .view = &FfnWeights::down_proj}}};
  std::sort(plan.matrices.begin(), plan.matrices.end(), [](const MatrixPlan& a, const MatrixPlan& b) {
    return std::pair(a.tensor->file_idx, a.tensor->extent.offset_bytes) <
           std::pair(b.tensor->file_idx, b.tensor->extent.offset_bytes);
  });
  uint64_t raw_end = 0, packed_end = 0, outgrowth = 0;
  for (MatrixPlan& matrix : plan.matrices) {
    const TensorInfo& tensor = *matrix.tensor;
    ReadPlan* last = plan.reads.empty() ? nullptr : &plan.reads.back();
    if (last != nullptr && last->file_idx == tensor.file_idx &&
        last->extent.offset_bytes + last->extent.size_bytes == tensor.extent.offset_bytes) {
      last->extent.size_bytes += tensor.extent.size_bytes;
    } else {
      plan.reads.push_back({tensor.file_idx, tensor.extent, RoundUp(raw_end, kPageBytes)});
      last = &plan.reads.back();
    }
    matrix.format = ResidentFormat(tensor, dtype);
    matrix.raw_offset = last->slot_offset + last->extent.offset_bytes % kPageBytes +
                        (tensor.extent.offset_bytes - last->extent.offset_bytes);
    raw_end = matrix.raw_offset + tensor.extent.size_bytes;
    matrix.packed_offset = tensor.packed.has_value() ? matrix.raw_offset : RoundUp(packed_end, kCacheLineBytes);
    packed_end = matrix.packed_offset + PackedBytesOf(tensor, matrix.format);
    if (tensor.packed.has_value()) continue;
    const auto behind = [&](uint64_t packed, uint64_t raw) { return packed > raw ? packed - raw : 0; };
    outgrowth = std::max({outgrowth, behind(matrix.packed_offset, matrix.raw_offset), behind(packed_end, raw_end)});
  }
  outgrowth = RoundUp(outgrowth, kPageBytes);
  for (ReadPlan& read : plan.reads) read.slot_offset += outgrowth;
  for (MatrixPlan& matrix : plan.matrices) {
    matrix.raw_offset += outgrowth;
    if (matrix.tensor->packed.has_value()) matrix.packed_offset = matrix.raw_offset;
  }
  const ReadPlan& last = plan.reads.back();
  plan.slot_bytes =
      RoundUp(std::max(last.slot_offset + DiskReader::PaddedBytes(last.extent.size_bytes), packed_end), kPageBytes);
  return plan;
}

uint64_t ExpertCache::SlotBytes(const WeightMap& map, ComputeDtype dtype) {
  uint64_t max_bytes = 0;
  for (const LayerTensors& layer : map.layers) {
    for (const FfnTensors& expert : layer.experts) {
      max_bytes = std::max(max_bytes, PlanExpert(expert, dtype).slot_bytes);
    }
  }
  return max_bytes;
}

uint64_t ExpertCache::TableBytes(const WeightMap& map, int num_workers) {
  uint64_t num_experts = 0;
  for (const LayerTensors& layer : map.layers) num_experts += layer.experts.size();
  // Three reads at worst, vector growth, and a slot with its list node for each expert.
  return num_experts * (sizeof(ExpertPlan) + 4 * sizeof(ReadPlan) + sizeof(Slot) + 96) +
         static_cast<uint64_t>(num_workers) * ScratchBytes(map);
}

ExpertCache::ExpertCache(const WeightMap& map, ComputeDtype dtype, DiskReader& reader, ThreadPool& pool)
    : reader_(&reader), pool_(&pool), scratch_bytes_(ScratchBytes(map)) {
  for (const LayerTensors& layer : map.layers) {
    first_expert_of_layer_.push_back(static_cast<int64_t>(experts_.size()));
    for (size_t expert_idx = 0; expert_idx < layer.experts.size(); ++expert_idx) {
      experts_.push_back(PlanExpert(layer.experts[expert_idx], dtype));
      expert_idx_of_key_.push_back(static_cast<int32_t>(expert_idx));
      slot_bytes_ = std::max(slot_bytes_, experts_.back().slot_bytes);
    }
  }
  slot_of_expert_.assign(experts_.size(), -1);
}

absl::StatusOr<std::unique_ptr<ExpertCache>> ExpertCache::Create(const WeightMap& map, ComputeDtype dtype,
                                                                 int64_t num_slots, DiskReader& reader,
                                                                 ThreadPool& pool) {
  PENSTOCK_CHECK(num_slots >= 1);
  auto cache = std::unique_ptr<ExpertCache>(new ExpertCache(map, dtype, reader, pool));
  PENSTOCK_ASSIGN_OR_RETURN(cache->scratch_,
                            Arena::Map(static_cast<uint64_t>(pool.num_workers()) * cache->scratch_bytes_));
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
  PENSTOCK_CHECK(waiting_.empty() && arrived_.empty() && ready_.empty() && num_reading_ == 0);
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

absl::Status ExpertCache::PackSlot(int slot_idx, std::span<std::byte> scratch) {
  Slot& slot = slots_[slot_idx];
  for (const MatrixPlan& matrix : experts_[slot.expert_key].matrices) {
    const TensorInfo& tensor = *matrix.tensor;
    std::byte* packed = SlotData(slot_idx) + matrix.packed_offset;
    slot.weights.*matrix.view = {packed, matrix.format};
    const std::byte* raw = SlotData(slot_idx) + matrix.raw_offset;
    if (tensor.xxh3.has_value()) {
      PENSTOCK_RETURN_IF_ERROR(CheckSum(tensor, XXH3_64bits(raw, tensor.extent.size_bytes)));
    }
    if (tensor.packed.has_value()) continue;
    const int64_t num_cols = tensor.shape[0], inner_dim = tensor.shape[1];
    for (int64_t col = 0; col < num_cols; col += kPanelCols) {
      const int64_t count = std::min(kPanelCols, num_cols - col);
      const uint64_t raw_bytes = static_cast<uint64_t>(count * inner_dim) * SizeOf(tensor.dtype);
      std::memcpy(scratch.data(), raw, raw_bytes);
      PackPanel(tensor.dtype, scratch.data(), count, inner_dim, matrix.format, packed);
      raw += raw_bytes;
      packed += PanelBytes(matrix.format, inner_dim);
    }
  }
  return absl::OkStatus();
}

absl::Status ExpertCache::FinishArrived() {
  std::vector<absl::Status> statuses(arrived_.size());
  pool_->ParallelFor(static_cast<int64_t>(arrived_.size()), [&](int64_t i, int worker_idx) {
    statuses[i] =
        PackSlot(arrived_[i], {scratch_.data() + static_cast<uint64_t>(worker_idx) * scratch_bytes_, scratch_bytes_});
  });
  for (const absl::Status& status : statuses) PENSTOCK_RETURN_IF_ERROR(status);
  for (const int slot_idx : arrived_) {
    Slot& slot = slots_[slot_idx];
    slot.state = SlotState::kReady;
    slot.leased = true;
    slot_of_expert_[slot.expert_key] = slot_idx;
    ready_.push_back(slot_idx);
  }
  arrived_.clear();
  return absl::OkStatus();
}

absl::Status ExpertCache::CollectRead(DiskReader::Wait wait, bool* collected) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<uint64_t> tag, reader_->NextCompleted(wait));
  *collected = tag.has_value();
  if (tag.has_value() && --slots_[*tag].num_reads_left == 0) {
    arrived_.push_back(static_cast<int>(*tag));
    --num_reading_;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ExpertLease>> ExpertCache::NextReady() {
  PENSTOCK_RETURN_IF_ERROR(StartReads());
  bool collected = num_reading_ > 0;
  while (collected && num_reading_ > 0) {
    PENSTOCK_RETURN_IF_ERROR(CollectRead(DiskReader::Wait::kNo, &collected));
  }
  if (ready_.empty() && arrived_.empty() && num_reading_ > 0) {
    const auto start = std::chrono::steady_clock::now();
    while (arrived_.empty()) PENSTOCK_RETURN_IF_ERROR(CollectRead(DiskReader::Wait::kYes, &collected));
    wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  PENSTOCK_RETURN_IF_ERROR(FinishArrived());
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
