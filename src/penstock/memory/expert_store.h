// The experts of one tier: slots in DRAM or in a device's memory, filled from the tier below.
//
// A lease keeps an expert in its slot. Acquiring one that is not there takes a slot (empty, or the eviction policy's
// choice among those without a lease), and issues its transfer at once or, where asked, page by page; the lease's event
// tells when it has arrived. Giving a lease back names the event after which the slot may be written again, so that a
// schedule can issue ahead: the transfer of the next expert waits for the computation of the last one on the lanes, and
// the issuer for neither.
//
// Used by the issuer of the runtime, but for Finish(), which tasks call.
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
#include "penstock/memory/expert_layouts.h"
#include "penstock/memory/expert_source.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

class ExpertStore;

enum class FetchReason : uint8_t { kWanted, kPredicted };

// Where a leased expert lies. Valid as long as its lease, and after it until the event that the lease was given back
// with.
struct ExpertPlace {
  int64_t key = 0;
  int slot_idx = 0;
  int64_t load_id = 0;  // of the read that brought it
};

// The promise that an expert stays in its slot. Move-only; ends with the object at the latest.
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

  int64_t key() const { return place_.key; }
  const ExpertPlace& place() const { return place_; }
  // Its bytes have arrived; the event's status is kIo when they have not. REQUIRES: all its pages have been issued.
  const Event& arrived() const;
  // It is known whether they will: this event's status says so, sooner where only a copy is left to be made.
  const Event& known() const;
  // Ends the lease; the slot may be written when `last_use` has happened. Nothing when it has ended already.
  void Release(const Event& last_use);

 private:
  friend class ExpertStore;
  ExpertLease(ExpertStore& store, const ExpertPlace& place) : store_(&store), place_(place) {}
  ExpertStore* store_;
  ExpertPlace place_;
};

struct ExpertCounters {
  int64_t hits = 0;  // wanted, and in DRAM or already on the way
  int64_t misses = 0;
  int64_t prefetched = 0;     // read because they were predicted
  int64_t prefetch_used = 0;  // of these: wanted before they left
  uint64_t bytes_read = 0;    // from the tier below
};

class ExpertStore {
 public:
  struct Args {
    const ExpertLayouts& layouts;  // outlives the store
    Runtime& runtime;              // outlives the store
    std::unique_ptr<ExpertSource> source;
    Memory* memory = nullptr;  // of the slots; null: slots without memory, for simulations
    int64_t num_slots = 0;     // >= 1
    Eviction eviction = Eviction::kLru;
    std::vector<bool> pinned = {};  // [num_experts]: for Eviction::kStatic; fewer than num_slots
    int num_workers = 1;            // that Finish may use
  };
  // Bytes of what a store keeps beside its slots.
  static uint64_t TableBytes(const ExpertLayouts& layouts, int num_workers);

  static absl::StatusOr<std::unique_ptr<ExpertStore>> Create(Args args);
  // Waits for the reads under way.
  ~ExpertStore();

  // A lease on an expert; nothing when it is not there and no slot is free. An expert whose read or checksum failed is
  // read again when it is acquired again.
  std::optional<ExpertLease> Acquire(int64_t key, FetchReason reason);
  // The same, but the pages of an expert that is not there are left to IssuePage(), experts in the order in which they
  // were acquired.
  std::optional<ExpertLease> AcquireByPages(int64_t key, FetchReason reason);
  // Pages that wait to be issued.
  int64_t num_waiting_pages() const { return num_waiting_pages_; }
  // Issues the next of them. False when the tier below has no room for its expert now. REQUIRES: there is one.
  bool IssuePage();

  // Whose slot expert `key` would get if it came now; -1: nobody's, or there is none.
  int64_t VictimFor(int64_t key) const {
    const int slot_idx = TakeSlot(key);
    return slot_idx < 0 ? -1 : slots_[static_cast<size_t>(slot_idx)].key;
  }

  // Ends the lease on an expert of which pages may still wait: these are never issued, and it is gone again.
  void Abandon(ExpertLease lease);

  // Experts that will be acquired after those whose pages wait, in this order: they come into the tier below as far as
  // there is room for them. Each call replaces the one before it.
  void Announce(std::vector<int64_t> keys);
  // How many are worth announcing, and the first from `key` on that passes through the tier below (the number of
  // experts where there is none).
  int64_t most_ahead() const { return source_->most_ahead(); }
  int64_t NextStreamingBelow(int64_t key) { return source_->NextStreaming(key); }

  // How routers rated the experts of a layer, for evictions that want to know (WantsScores).
  bool wants_scores() const { return wants_scores_; }
  void OnScores(int64_t layer_idx, std::span<const float> scores) {
    policy_->OnScores(layouts_->KeyOf(layer_idx, 0), scores);
  }

  // Counts a use of an expert that is leased already, because it was predicted.
  void CountWanted(int64_t key);
  // In a slot, or on its way into one.
  bool IsPresent(int64_t key) const { return slot_of_expert_[key] >= 0; }

  // In a slot, whole.
  bool HasArrived(int64_t key) const {
    return IsPresent(key) && runtime_->Done(slots_[static_cast<size_t>(slot_of_expert_[key])].arrived);
  }

  // Whether a finishing of this load is to be counted: true once for each.
  bool TakeUnfinished(const ExpertPlace& place);
  // Checks and packs those that were not used since they arrived; one status for each. To be called by a task that
  // waits for their arrival, before their weights are used; of one lane only.
  std::vector<absl::Status> Finish(std::span<const ExpertPlace> places, ThreadPool& pool);
  // Valid when Finish said so.
  FfnWeights Weights(const ExpertPlace& place) const { return layouts_->Views(place.key, SlotData(place.slot_idx)); }
  // nullptr in a simulation.
  const std::byte* SlotOf(const ExpertPlace& place) const { return SlotData(place.slot_idx); }

  // Fills the slots, finished: what is pinned first, then `preferred` [num_experts] (empty: none), then the first ones.
  absl::Status Preload(ThreadPool* pool, const std::vector<bool>& preferred = {});

  // The slots' memory, whatever it holds.
  std::span<const std::byte> bytes() const { return {arena_.data(), static_cast<size_t>(arena_.size_bytes())}; }
  // Bytes per second that come when reads follow each other without pause, for about `seconds`; 0 when all experts are
  // in slots. Nothing is counted. REQUIRES: no leases.
  double MeasureDisk(double seconds);

  const ExpertLayouts& layouts() const { return *layouts_; }
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  // Slots that no pinned expert holds or will hold.
  int64_t num_streaming_slots() const { return num_slots() - num_pinned_; }
  bool is_pinned(int64_t key) const { return pinned_[key]; }
  const ExpertCounters& counters() const { return counters_; }
  void ResetCounters() { counters_ = {}; }

 private:
  friend class ExpertLease;
  struct Slot {
    int64_t key = -1;
    int num_leases = 0;
    int64_t load_id = 0;
    bool prefetched = false;  // and not wanted since
    bool finish_counted = false;
    Event arrived, known;          // when all pages have been issued
    std::vector<Event> last_uses;  // since it was loaded
  };
  // An expert of which pages wait to be issued.
  struct Waiting {
    int slot_idx = 0;
    bool begun = false;
    bool streams_below = false;  // known when it was begun
    int64_t num_pages = 0;
    Events slot_free;
  };
  // What Finish made of a slot's load. Apart from Slot: the last load may be finished when the next is issued already.
  struct Finished {
    int64_t load_id = -1;
    bool broken = false;
  };

  explicit ExpertStore(Args args);
  std::byte* SlotData(int slot_idx) const {
    return arena_.data() == nullptr ? nullptr
                                    : arena_.data() + static_cast<uint64_t>(slot_idx) * layouts_->slot_bytes();
  }
  int TakeSlot(int64_t key) const;  // -1 when all are leased or pinned
  bool IsBroken(int slot_idx) const;
  std::optional<ExpertLease> Lease(int64_t key, FetchReason reason, bool by_pages);
  // Gives the slot to the expert; the events after which it may be written.
  Events Reassign(int slot_idx, int64_t key, FetchReason reason);
  void Release(int slot_idx, const Event& last_use);
  void FetchAhead();

  const ExpertLayouts* layouts_;
  Runtime* runtime_;
  std::unique_ptr<ExpertSource> source_;
  std::vector<bool> pinned_;
  int64_t num_pinned_ = 0;
  std::unique_ptr<EvictionPolicy> policy_;
  bool wants_scores_;
  std::vector<Slot> slots_;
  std::vector<Finished> finished_;  // by slot; of the lane whose tasks call Finish
  int64_t next_load_id_ = 0;
  std::vector<int> slot_of_expert_;  // -1: on disk only
  std::vector<int> empty_;           // slots, the first one last
  std::deque<Waiting> waiting_;
  int64_t num_waiting_pages_ = 0;
  std::vector<int64_t> announced_;
  Arena arena_;
  Arena scratch_;  // scratch_bytes() for each worker
  ExpertCounters counters_;
};

// The experts that are pinned when `count` of them can be, `taken` [num_experts] not among them: spread evenly, so that
// every layer leaves the same work to the link.
std::vector<bool> PinEvenly(const ExpertLayouts& layouts, int64_t count, const std::vector<bool>& taken = {});

// Those that are wanted most often, by `popularity` [num_experts], wherever they are. REQUIRES: count <= num_experts.
std::vector<bool> PinMostPopular(std::span<const double> popularity, int64_t count);

}  // namespace penstock
