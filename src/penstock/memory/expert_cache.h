// Experts on disk and the slots in DRAM where they are computed; least recently used out first.
//
// One layer is fetched at a time: Begin() names the experts that the router chose, NextReady() hands out those that are
// usable, residents first, then in order of arrival, while the other reads go on. Used by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/disk_reader.h"
#include "penstock/memory/weights.h"
#include "penstock/model/weight_map.h"

namespace penstock {

class ExpertCache;

// The promise that an expert stays in its slot. Move-only; ends with the object.
class ExpertLease {
 public:
  ExpertLease(ExpertCache& cache, int slot_idx, int64_t expert_idx, const FfnWeights& weights)
      : cache_(&cache), slot_idx_(slot_idx), expert_idx_(expert_idx), weights_(weights) {}
  ExpertLease(ExpertLease&& other) noexcept;
  ExpertLease& operator=(ExpertLease&&) = delete;
  ~ExpertLease();

  int64_t expert_idx() const { return expert_idx_; }
  const FfnWeights& weights() const { return weights_; }

 private:
  ExpertCache* cache_;
  int slot_idx_;
  int64_t expert_idx_;
  FfnWeights weights_;
};

class ExpertCache {
 public:
  // Bytes of a slot that has room for any expert of the model.
  static uint64_t SlotBytes(const WeightMap& map, ComputeDtype dtype);
  // Bytes of what a cache keeps beside its slots.
  static uint64_t TableBytes(const WeightMap& map, int num_workers);

  // REQUIRES: num_slots >= 1. `map`, `reader` and `pool` must outlive the cache.
  static absl::StatusOr<std::unique_ptr<ExpertCache>> Create(const WeightMap& map, ComputeDtype dtype,
                                                             int64_t num_slots, DiskReader& reader, ThreadPool& pool);
  ~ExpertCache();

  // Begins fetching experts of a layer. REQUIRES: all of the former fetch was handed out and its leases have ended;
  // `expert_idxs` are distinct.
  absl::Status Begin(int64_t layer_idx, std::span<const int32_t> expert_idxs);
  // At least one usable expert, or none when the fetch is complete. Blocks while nothing is usable. REQUIRES: when a
  // slot is needed, the leases handed out before have ended.
  absl::StatusOr<std::vector<ExpertLease>> NextReady();

  // Fills the slots with as many experts as they hold, in order of the layers.
  absl::Status Preload();

  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }
  double wait_s() const { return wait_s_; }
  void ResetCounters();

 private:
  friend class ExpertLease;

  struct ReadPlan {
    int file_idx = 0;
    FileExtent extent;
    uint64_t slot_offset = 0;
  };
  // Where a matrix arrives in its slot and where its panels lie; the same place when it is packed already.
  struct MatrixPlan {
    const TensorInfo* tensor = nullptr;
    WeightView FfnWeights::*view = nullptr;
    WeightFormat format = WeightFormat::kF32;
    uint64_t raw_offset = 0;
    uint64_t packed_offset = 0;
  };
  // How an expert's bytes come into a slot: neighbouring tensors are one read.
  struct ExpertPlan {
    std::vector<ReadPlan> reads;
    std::array<MatrixPlan, 3> matrices;  // in the order in which they arrive
    uint64_t slot_bytes = 0;
  };
  enum class SlotState : uint8_t { kEmpty, kReading, kReady };
  struct Slot {
    SlotState state = SlotState::kEmpty;
    bool leased = false;
    int64_t expert_key = -1;  // index into experts_
    int num_reads_left = 0;
    FfnWeights weights;
    std::list<int>::iterator lru_place;
  };

  ExpertCache(const WeightMap& map, ComputeDtype dtype, DiskReader& reader, ThreadPool& pool);
  static ExpertPlan PlanExpert(const FfnTensors& tensors, ComputeDtype dtype);
  std::byte* SlotData(int slot_idx) const { return arena_.data() + static_cast<uint64_t>(slot_idx) * slot_bytes_; }
  ExpertLease Lease(int slot_idx);
  void Release(int slot_idx);
  int FindFreeSlot() const;  // -1 when every slot is leased or being read
  absl::Status StartReads();
  absl::Status CollectRead(DiskReader::Wait wait, bool* collected);
  // Checks and packs what has arrived and makes it ready.
  absl::Status FinishArrived();
  absl::Status PackSlot(int slot_idx, std::span<std::byte> scratch);

  DiskReader* reader_;
  ThreadPool* pool_;
  uint64_t slot_bytes_ = 0;
  std::vector<int64_t> first_expert_of_layer_;  // key of (layer, 0)
  std::vector<int32_t> expert_idx_of_key_;
  std::vector<ExpertPlan> experts_;
  std::vector<int> slot_of_expert_;  // -1: on disk only
  Arena arena_;
  Arena scratch_;  // a panel as it was stored, for each worker
  uint64_t scratch_bytes_ = 0;
  std::vector<Slot> slots_;
  std::list<int> lru_;  // slots, least recently used first

  std::vector<int64_t> waiting_;  // experts of this fetch without a slot yet, last one next
  std::vector<int> arrived_;      // slots whose reads are complete, not packed yet
  std::vector<int> ready_;        // slots whose experts were not handed out yet (leased meanwhile)
  int num_reading_ = 0;           // slots being read
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  double wait_s_ = 0;
};

}  // namespace penstock
