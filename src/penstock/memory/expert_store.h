// The experts of one tier: slots in DRAM or in a device's memory, filled from the tier below.
//
// A lease keeps an expert in its slot. Acquiring an absent expert takes a slot: an empty one, or the eviction policy's
// choice among the slots without a lease. The transfer is issued at once or, on request, page by page. The lease has an
// event that happens when the expert has arrived.
//
// Releasing a lease names the event after which the slot may be overwritten. So a schedule can issue ahead. On the
// lanes, the next expert's transfer waits for the last expert's computation, but the issuer does not wait at all.
//
// Only the issuer of the runtime uses a store, except for Finish(), which tasks call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/eviction.h"
#include "penstock/memory/expert_key.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/memory/expert_source.h"
#include "penstock/runtime/page_toucher.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

class ExpertStore;

enum class FetchReason : uint8_t { kWanted, kPredicted };

// Where a leased expert lies. Valid until the lease is released and the event named in Release() has happened.
struct ExpertPlace {
  ExpertKey key = kNoExpert;
  SlotId slot_id = kNoSlot;
  int64_t load_id = 0;  // identifies the read that loaded the expert
};

// The promise that an expert stays in its slot. Move-only; the destructor releases it.
class ExpertLease {
 public:
  ExpertLease(ExpertLease&& other) noexcept : store_(std::exchange(other.store_, nullptr)), place_(other.place_) {}
  ExpertLease& operator=(ExpertLease&& other) noexcept {
    Release({});
    store_ = std::exchange(other.store_, nullptr);
    place_ = other.place_;
    return *this;
  }
  ~ExpertLease() { Release({}); }

  ExpertKey key() const { return place_.key; }
  const ExpertPlace& place() const { return place_; }
  // Returns the event of the expert's arrival; its status is kIo when the read failed. REQUIRES: all pages of the
  // expert have been issued.
  const Event& arrived() const;
  // Returns the event after which it is certain whether the expert arrives; its status tells. It is earlier than
  // arrived() if only a copy remains.
  const Event& known() const;
  // Ends the lease; the slot may be overwritten after `last_use`. Does nothing when the lease has already ended.
  void Release(const Event& last_use);

 private:
  friend class ExpertStore;
  ExpertLease(ExpertStore& store, const ExpertPlace& place) : store_(&store), place_(place) {}
  ExpertStore* store_;
  ExpertPlace place_;
};

struct ExpertCounters {
  int64_t hits = 0;  // wanted, and in a slot or on the way
  int64_t misses = 0;
  int64_t prefetched = 0;     // transferred because they were predicted
  int64_t prefetch_used = 0;  // prefetched, and wanted before they left
  int64_t named_hot = 0;      // named as the K most wanted of a layer, before its rows chose (Klotski)
  int64_t named_right = 0;    // and then among the K most wanted
  uint64_t bytes_read = 0;    // bytes read from the tier below
};

class ExpertStore {
 public:
  struct Args {
    const ExpertLayouts& layouts;  // outlives the store
    Runtime& runtime;              // outlives the store
    std::unique_ptr<ExpertSource> source;
    Memory* memory = nullptr;  // for the slots; null in a simulation, whose slots have no bytes
    int64_t num_slots = 0;     // >= 1
    Eviction eviction = Eviction::kLru;
    ExpertSet pinned = {};  // [num_experts]: for Eviction::kStatic; fewer than num_slots are set
    int num_workers = 1;    // workers that Finish() may use
  };
  // Returns the bytes of a store without its slots.
  static uint64_t TableBytes(const ExpertLayouts& layouts, int num_workers);

  static absl::StatusOr<std::unique_ptr<ExpertStore>> Create(Args args);
  // Waits for the reads under way.
  ~ExpertStore();

  // Returns a lease on an expert, or nothing when it is absent and no slot is free. An expert whose read or checksum
  // failed is read again.
  std::optional<ExpertLease> Acquire(ExpertKey key, FetchReason reason);
  // Like Acquire(), but issues no pages of an absent expert: IssuePage() issues them, in the order of these calls.
  std::optional<ExpertLease> AcquireByPages(ExpertKey key, FetchReason reason, PageSize size = PageSize::kUsual);
  // Returns the number of pages that wait for IssuePage().
  int64_t num_waiting_pages() const { return num_waiting_pages_; }
  // Issues the next page and returns its arrival. Returns nothing when the tier below has no room for its expert now.
  // REQUIRES: num_waiting_pages() > 0.
  std::optional<Event> IssuePage();

  // Returns the expert that would leave if `key` were fetched now; kNoExpert if none would have to leave or none can.
  ExpertKey VictimFor(ExpertKey key) const {
    const SlotId slot_id = TakeSlot(key);
    return slot_id == kNoSlot ? kNoExpert : slots_[slot_id].key;
  }

  // Ends the lease on an expert. If some of its pages have not been issued, they never will be, and the expert counts
  // as absent again.
  void Abandon(ExpertLease lease);

  // Announces the experts that will be acquired after those whose pages wait, in this order. They are fetched into the
  // tier below as far as there is room. Each call replaces the previous one.
  void Announce(std::vector<ExpertKey> keys);
  // max_ahead() is the number of experts that are worth announcing. NextStreamingBelow() returns the first expert from
  // `key` on that streams through the tier below, or the key after the last expert's when there is none.
  int64_t max_ahead() const { return source_->max_ahead(); }
  ExpertKey NextStreamingBelow(ExpertKey key) { return source_->NextStreaming(key); }

  // Reports the routers' scores of all experts of a layer to an eviction policy that needs them (WantsScores).
  bool wants_scores() const { return wants_scores_; }
  void OnScores(int64_t layer_idx, std::span<const float> scores) {
    policy_->OnScores(layouts_->FirstKeyOf(layer_idx), layouts_->ValuesHere(layer_idx, scores));
  }

  // Counts a use of an expert that is already leased because it was predicted.
  void CountWanted(ExpertKey key);
  // Counts experts of a layer that were named as its most wanted ones, and those of them that were.
  void CountNamed(int64_t num_named, int64_t num_right) {
    counters_.named_hot += num_named;
    counters_.named_right += num_right;
  }
  // Returns whether the expert is in a slot or on its way into one.
  bool IsPresent(ExpertKey key) const { return slot_of_expert_[key] != kNoSlot; }

  // Returns whether the whole expert is in a slot.
  bool HasArrived(ExpertKey key) const {
    return IsPresent(key) && runtime_->Done(slots_[slot_of_expert_[key]].arrived);
  }

  // Returns true at the first call for each load: its caller counts the work of finishing the expert.
  bool TakeUnfinished(const ExpertPlace& place);
  // Verifies and packs the experts that were not used since they arrived; returns one status for each. Called before
  // their weights are used, by a task that waits for their arrival. REQUIRES: all such tasks are on one lane.
  std::vector<absl::Status> Finish(std::span<const ExpertPlace> places, ThreadPool& pool);
  // REQUIRES: Finish() has returned OK for this place.
  FfnWeights Weights(const ExpertPlace& place) const { return layouts_->Views(place.key, SlotData(place.slot_id)); }
  // Returns nullptr in a simulation.
  const std::byte* SlotOf(const ExpertPlace& place) const { return SlotData(place.slot_id); }

  // Fills the slots with finished experts: first the pinned ones, then `preferred` [num_experts] (empty: none), then
  // experts in the order of their keys. An expert with wrong data is no error here. Those that want it read it again,
  // as when it streams, and fail if it is still wrong. Other faults are returned.
  absl::Status Preload(ThreadPool* pool, const ExpertSet& preferred = {});

  // Returns the memory of all slots.
  std::span<const std::byte> bytes() const { return {arena_.data(), static_cast<size_t>(arena_.size_bytes())}; }
  // Measures the disk for about `seconds` and returns the bytes per second of reads that follow each other without
  // pause. Returns 0 when all experts are in slots. Changes no counters. REQUIRES: no leases.
  double MeasureDisk(double seconds);

  const ExpertLayouts& layouts() const { return *layouts_; }
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  // Returns the number of slots that no pinned expert holds or will hold.
  int64_t num_streaming_slots() const { return num_slots() - num_pinned_; }
  bool is_pinned(ExpertKey key) const { return pinned_[key]; }
  const ExpertCounters& counters() const { return counters_; }
  void ResetCounters() { counters_ = {}; }

 private:
  friend class ExpertLease;
  struct Slot {
    ExpertKey key = kNoExpert;
    int num_leases = 0;
    int64_t load_id = 0;
    bool prefetched = false;  // predicted, and not wanted since
    bool finish_counted = false;
    Event arrived, known;          // set once all pages have been issued
    std::vector<Event> last_uses;  // uses since the expert was loaded
  };
  // An expert with pages that wait to be issued.
  struct Waiting {
    SlotId slot_id = kNoSlot;
    PageSize page_size = PageSize::kUsual;
    bool begun = false;
    bool streams_below = false;  // set when the first page is issued
    int64_t num_pages = 0;
    Events slot_free;
  };
  // The result of Finish() for a slot's load. Kept apart from Slot, because the next load may be issued before the last
  // one is finished.
  struct Finished {
    int64_t load_id = -1;
    bool broken = false;
  };

  explicit ExpertStore(Args args);
  std::byte* SlotData(SlotId slot_id) const {
    return arena_.data() == nullptr ? nullptr : arena_.data() + static_cast<uint64_t>(slot_id) * layouts_->slot_bytes();
  }
  SlotId TakeSlot(ExpertKey key) const;  // returns kNoSlot when all slots are leased or pinned
  bool IsBroken(SlotId slot_id) const;
  std::optional<ExpertLease> Lease(ExpertKey key, FetchReason reason, std::optional<PageSize> by_pages);
  // Gives the slot to the expert and returns the events after which the slot may be written.
  Events Reassign(SlotId slot_id, ExpertKey key, FetchReason reason);
  void Release(SlotId slot_id, const Event& last_use);
  void FetchAhead();

  const ExpertLayouts* layouts_;
  Runtime* runtime_;
  std::unique_ptr<ExpertSource> source_;
  ExpertSet pinned_;
  int64_t num_pinned_ = 0;
  std::unique_ptr<EvictionPolicy> policy_;
  bool wants_scores_;
  IdVector<SlotId, Slot> slots_;
  IdVector<SlotId, Finished> finished_;  // used only by the lane whose tasks call Finish()
  int64_t next_load_id_ = 0;
  IdVector<ExpertKey, SlotId> slot_of_expert_;  // kNoSlot: not in this tier
  std::vector<SlotId> empty_;                   // empty slots, the lowest index last
  std::deque<Waiting> waiting_;
  int64_t num_waiting_pages_ = 0;
  std::vector<ExpertKey> announced_;
  Arena arena_;
  Arena scratch_;                         // scratch_bytes() for each worker
  std::unique_ptr<PageToucher> toucher_;  // of arena_, if it is large and the host's
  ExpertCounters counters_;
};

// Chooses `count` experts to pin, none of them in `taken` [num_experts]. They are spread evenly over the layers, so
// that every layer leaves the same work to the link.
ExpertSet PinEvenly(const ExpertLayouts& layouts, int64_t count, const ExpertSet& taken = {});

// Chooses the first `count` experts, layer by layer, without those in `taken` [num_experts]. REQUIRES: so many are
// left.
ExpertSet PinFirst(const ExpertLayouts& layouts, int64_t count, const ExpertSet& taken = {});

// Chooses the `count` experts that are wanted most often by `popularity` [num_experts], in any layer. REQUIRES: count
// <= num_experts.
ExpertSet PinMostPopular(std::span<const double> popularity, int64_t count);

}  // namespace penstock
