#include "penstock/memory/expert_store.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"

namespace penstock {

const Event& ExpertLease::arrived() const { return store_->slots_[place_.slot_id].arrived; }
const Event& ExpertLease::known() const { return store_->slots_[place_.slot_id].known; }

void ExpertLease::Release(const Event& last_use) {
  if (store_ != nullptr) store_->Release(place_.slot_id, last_use);
  store_ = nullptr;
}

uint64_t ExpertStore::TableBytes(const ExpertLayouts& layouts, int num_workers) {
  // Each expert counts with a slot, its events and its entries in the policy's tables.
  return layouts.memory_bytes() + static_cast<uint64_t>(layouts.num_experts()) * (sizeof(Slot) + 512) +
         static_cast<uint64_t>(num_workers) * layouts.scratch_bytes();
}

ExpertStore::ExpertStore(Args args)
    : layouts_(&args.layouts),
      runtime_(&args.runtime),
      source_(std::move(args.source)),
      pinned_(std::move(args.pinned)),
      wants_scores_(TraitsOf(args.eviction).needs_scores),
      slots_(args.num_slots),
      finished_(slots_.size()),
      slot_of_expert_(args.layouts.num_experts(), kNoSlot) {
  if (args.eviction != Eviction::kStatic) pinned_.clear();
  pinned_.resize(slot_of_expert_.size());
  num_pinned_ = std::count(pinned_.begin(), pinned_.end(), true);
  EvictionArgs eviction = {.num_slots = args.num_slots, .pinned = pinned_, .layer_of = {}};
  for (ExpertKey key{0}; key < layouts_->end_key(); ++key) eviction.layer_of.push_back(layouts_->layer_of(key));
  policy_ = TraitsOf(args.eviction).make(std::move(eviction));
  for (auto i = static_cast<int32_t>(args.num_slots) - 1; i >= 0; --i) empty_.push_back(SlotId{i});
}

absl::StatusOr<std::unique_ptr<ExpertStore>> ExpertStore::Create(Args args) {
  PENSTOCK_CHECK(args.num_slots >= 1);
  const uint64_t scratch_bytes =
      args.source->needs_finish() ? static_cast<uint64_t>(args.num_workers) * args.layouts.scratch_bytes() : 0;
  const uint64_t slots_bytes = static_cast<uint64_t>(args.num_slots) * args.layouts.slot_bytes();
  Memory* const memory = args.memory;
  const int num_workers = args.num_workers;
  auto store = std::unique_ptr<ExpertStore>(new ExpertStore(std::move(args)));
  PENSTOCK_CHECK(store->num_pinned_ < store->num_slots() || store->num_pinned_ == store->layouts_->num_experts());
  if (memory != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(store->scratch_, HostMemory().Map(scratch_bytes));
    PENSTOCK_ASSIGN_OR_RETURN(store->arena_, memory->Map(slots_bytes));
    constexpr uint64_t kMinBytes = 64 * kMiB;     // less takes no noticeable time
    constexpr uint64_t kAheadBytes = 256 * kMiB;  // half a second of touching
    if (memory->is_host() && slots_bytes >= kMinBytes) {
      const std::span<std::byte> bytes(store->arena_.data(), store->arena_.size_bytes());
      store->toucher_ = std::make_unique<PageToucher>(bytes, num_workers, kAheadBytes);
    }
  }
  return store;
}

ExpertStore::~ExpertStore() {
  announced_.clear();
  while (!waiting_.empty()) PENSTOCK_CHECK(IssuePage().has_value());
  // Waits until the disk no longer writes into the slots and tasks no longer read them.
  for (const Slot& slot : slots_) {
    PENSTOCK_CHECK(slot.num_leases == 0);
    (void)runtime_->Wait(slot.arrived);
    (void)runtime_->WaitAll(slot.last_uses);
  }
}

SlotId ExpertStore::TakeSlot(ExpertKey key) const {
  if (!empty_.empty()) return empty_.back();
  return policy_->Victim(key, [&](SlotId slot_id) { return slots_[slot_id].num_leases == 0; });
}

// Returns whether the slot's expert must be read again. REQUIRES: no leases.
bool ExpertStore::IsBroken(SlotId slot_id) const {
  const Slot& slot = slots_[slot_id];
  if (!runtime_->Done(slot.arrived)) return false;
  if (!runtime_->Wait(slot.arrived).ok()) return true;
  for (const Event& event : slot.last_uses) {
    if (!runtime_->Done(event)) return false;  // not known yet
  }
  return finished_[slot_id].load_id == slot.load_id && finished_[slot_id].broken;
}

Events ExpertStore::Reassign(SlotId slot_id, ExpertKey key, FetchReason reason) {
  Slot& slot = slots_[slot_id];
  if (!empty_.empty() && empty_.back() == slot_id) {
    empty_.pop_back();
    if (toucher_ != nullptr) toucher_->OnWanted((static_cast<uint64_t>(slot_id) + 1) * layouts_->slot_bytes());
  }
  if (slot.key != kNoExpert) slot_of_expert_[slot.key] = kNoSlot;
  slot_of_expert_[key] = slot_id;
  Events slot_free;
  for (const Event& event : slot.last_uses) {
    if (!runtime_->Done(event)) slot_free.push_back(event);
  }
  // A transfer that nobody waited for may still write to the slot.
  if (!runtime_->Done(slot.arrived)) slot_free.push_back(slot.arrived);
  counters_.bytes_read += source_->bytes(key);
  slot = {};
  slot.key = key;
  slot.load_id = next_load_id_++;
  slot.prefetched = reason == FetchReason::kPredicted;
  policy_->OnLoad(slot_id, key);
  return slot_free;
}

void ExpertStore::Announce(std::vector<ExpertKey> keys) {
  announced_ = std::move(keys);
  FetchAhead();
}

void ExpertStore::FetchAhead() {
  if (source_->max_ahead() == 0) return;
  std::vector<ExpertKey> keys;
  for (const Waiting& waiting : waiting_) {
    if (!waiting.begun) keys.push_back(slots_[waiting.slot_id].key);
  }
  for (const ExpertKey key : announced_) {
    if (!IsPresent(key)) keys.push_back(key);
  }
  source_->FetchAhead(keys);
}

std::optional<Event> ExpertStore::IssuePage() {
  PENSTOCK_CHECK(!waiting_.empty());
  Waiting& next = waiting_.front();
  Slot& slot = slots_[next.slot_id];
  if (!next.begun) {
    next.streams_below = source_->streams(slot.key);
    if (!source_->Begin(slot.key, next.page_size)) return std::nullopt;
    next.begun = true;
    if (next.streams_below) FetchAhead();
  }
  slot.arrived = source_->FetchPage(slot.key, SlotData(next.slot_id), next.slot_free);
  slot.known = source_->KnownAt(slot.key, slot.arrived);
  const Event arrived = slot.arrived;
  --num_waiting_pages_;
  if (--next.num_pages > 0) return arrived;
  const bool leaves_room_below = next.streams_below;
  waiting_.pop_front();
  if (leaves_room_below) FetchAhead();
  return arrived;
}

void ExpertStore::Abandon(ExpertLease lease) {
  const SlotId slot_id = lease.place().slot_id;
  const auto waiting =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.slot_id == slot_id; });
  if (waiting == waiting_.end()) return;
  Slot& slot = slots_[slot_id];
  PENSTOCK_CHECK(slot.num_leases == 1);
  if (waiting->begun) source_->Cancel(slot.key);
  // Pages under way still write to the slot, and tasks may still read the slot's previous expert.
  std::vector<Event> last_uses(waiting->slot_free.begin(), waiting->slot_free.end());
  if (!runtime_->Done(slot.arrived)) last_uses.push_back(slot.arrived);
  // The counters may have been reset since the transfer began.
  counters_.bytes_read -=
      std::min(counters_.bytes_read, source_->bytes(slot.key) /
                                         static_cast<uint64_t>(source_->num_pages(slot.key, waiting->page_size)) *
                                         static_cast<uint64_t>(waiting->num_pages));
  num_waiting_pages_ -= waiting->num_pages;
  waiting_.erase(waiting);
  slot_of_expert_[slot.key] = kNoSlot;
  slot = {};
  slot.num_leases = 1;  // the caller ends this lease
  slot.last_uses = std::move(last_uses);
  empty_.push_back(slot_id);
}

std::optional<ExpertLease> ExpertStore::Acquire(ExpertKey key, FetchReason reason) {
  return Lease(key, reason, /*by_pages=*/std::nullopt);
}

std::optional<ExpertLease> ExpertStore::AcquireByPages(ExpertKey key, FetchReason reason, PageSize size) {
  return Lease(key, reason, size);
}

std::optional<ExpertLease> ExpertStore::Lease(ExpertKey key, FetchReason reason, std::optional<PageSize> by_pages) {
  SlotId slot_id = slot_of_expert_[key];
  const bool present = slot_id != kNoSlot && (slots_[slot_id].num_leases > 0 || !IsBroken(slot_id));
  if (!present) {
    if (slot_id == kNoSlot) slot_id = TakeSlot(key);
    if (slot_id == kNoSlot || (!by_pages.has_value() && !source_->Begin(key, PageSize::kUsual))) return std::nullopt;
    Events slot_free = Reassign(slot_id, key, reason);
    if (by_pages.has_value()) {
      waiting_.push_back({.slot_id = slot_id,
                          .page_size = *by_pages,
                          .num_pages = source_->num_pages(key, *by_pages),
                          .slot_free = std::move(slot_free)});
      num_waiting_pages_ += waiting_.back().num_pages;
    } else {
      for (int64_t page = source_->num_pages(key, PageSize::kUsual); page > 0; --page) {
        slots_[slot_id].arrived = source_->FetchPage(key, SlotData(slot_id), slot_free);
      }
      slots_[slot_id].known = source_->KnownAt(key, slots_[slot_id].arrived);
    }
  }
  Slot& slot = slots_[slot_id];
  ++slot.num_leases;
  if (reason == FetchReason::kPredicted) {
    counters_.prefetched += present ? 0 : 1;
  } else if (present) {
    CountWanted(key);
  } else {
    ++counters_.misses;
    policy_->OnUse(slot_id);
  }
  return ExpertLease(*this, {key, slot_id, slot.load_id});
}

void ExpertStore::CountWanted(ExpertKey key) {
  const SlotId slot_id = slot_of_expert_[key];
  PENSTOCK_CHECK(slot_id != kNoSlot);
  Slot& slot = slots_[slot_id];
  ++counters_.hits;
  counters_.prefetch_used += slot.prefetched ? 1 : 0;
  slot.prefetched = false;
  policy_->OnUse(slot_id);
}

void ExpertStore::Release(SlotId slot_id, const Event& last_use) {
  Slot& slot = slots_[slot_id];
  // Issues the waiting pages now. Nobody else would, and the next lease on this expert needs the event of its arrival.
  while (std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.slot_id == slot_id; })) {
    PENSTOCK_CHECK(IssuePage().has_value());
  }
  --slot.num_leases;
  std::erase_if(slot.last_uses, [&](const Event& event) { return runtime_->Done(event); });
  if (!runtime_->Done(last_use)) slot.last_uses.push_back(last_use);
}

bool ExpertStore::TakeUnfinished(const ExpertPlace& place) {
  Slot& slot = slots_[place.slot_id];
  return source_->needs_finish() && slot.load_id == place.load_id && !std::exchange(slot.finish_counted, true);
}

std::vector<absl::Status> ExpertStore::Finish(std::span<const ExpertPlace> places, ThreadPool& pool) {
  std::vector<absl::Status> statuses(places.size());
  if (!source_->needs_finish()) return statuses;
  std::vector<size_t> unfinished;
  for (size_t i = 0; i < places.size(); ++i) {
    const Finished& finished = finished_[places[i].slot_id];
    if (finished.load_id != places[i].load_id || finished.broken) unfinished.push_back(i);
  }
  if (unfinished.empty()) return statuses;
  constexpr int kParts = ExpertLayouts::kFinishParts;
  std::vector<absl::Status> parts(unfinished.size() * kParts);
  pool.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t task_idx, int worker_idx) {
    const ExpertPlace& place = places[unfinished[task_idx / kParts]];
    const std::span<std::byte> scratch{scratch_.data() + static_cast<uint64_t>(worker_idx) * layouts_->scratch_bytes(),
                                       static_cast<size_t>(layouts_->scratch_bytes())};
    parts[task_idx] =
        layouts_->FinishPart(place.key, static_cast<int>(task_idx % kParts), SlotData(place.slot_id), scratch);
  });
  for (size_t i = 0; i < parts.size(); ++i) statuses[unfinished[i / kParts]].Update(parts[i]);
  for (const size_t i : unfinished) finished_[places[i].slot_id] = {places[i].load_id, !statuses[i].ok()};
  return statuses;
}

absl::Status ExpertStore::Preload(ThreadPool* pool, const ExpertSet& preferred) {
  std::vector<ExpertKey> keys(layouts_->num_experts());
  std::iota(keys.begin(), keys.end(), ExpertKey{0});
  const auto rank = [&](ExpertKey key) {
    if (is_pinned(key)) return 0;
    return !preferred.empty() && preferred[key] ? 1 : 2;
  };
  std::stable_sort(keys.begin(), keys.end(), [&](ExpertKey a, ExpertKey b) { return rank(a) < rank(b); });
  keys.resize(std::min(keys.size(), slots_.size()));
  std::vector<ExpertLease> leases;
  for (const ExpertKey key : keys) leases.push_back(*Acquire(key, FetchReason::kWanted));
  int64_t num_damaged = 0;
  absl::Status first_damage;
  for (const ExpertLease& lease : leases) {
    PENSTOCK_RETURN_IF_ERROR(runtime_->Wait(lease.arrived()));
    if (pool != nullptr) {
      const absl::Status finished = Finish({&lease.place(), 1}, *pool)[0];
      if (!finished.ok() && FaultOf(finished) != Fault::kModel) return finished;
      num_damaged += finished.ok() ? 0 : 1;
      first_damage.Update(finished);
    }
    (void)TakeUnfinished(lease.place());
  }
  if (num_damaged > 0) {
    LogWarning("{} of {} experts are damaged: what chooses them fails. The first: {}", num_damaged, leases.size(),
               Message(first_damage));
  }
  return absl::OkStatus();
}

double ExpertStore::MeasureDisk(double seconds) {
  const ExpertCounters counters = counters_;
  std::deque<ExpertLease> under_way;
  const double begin_s = runtime_->now_s();
  uint64_t bytes = 0;
  int64_t idx = 0, num_present = 0;
  while (runtime_->now_s() - begin_s < seconds && num_present < layouts_->num_experts()) {
    idx = (idx + 1) % layouts_->num_experts();
    const ExpertKey key{idx};
    ++num_present;
    if (IsPresent(key)) continue;
    auto lease = Acquire(key, FetchReason::kPredicted);
    if (lease.has_value()) {
      num_present = 0;
      under_way.push_back(std::move(*lease));
      continue;
    }
    if (under_way.empty()) break;
    --idx;  // tries the same expert again when a slot is free
    bytes += runtime_->Wait(under_way.front().arrived()).ok() ? layouts_->read_bytes(under_way.front().key()) : 0;
    under_way.pop_front();
  }
  while (!under_way.empty()) {
    bytes += runtime_->Wait(under_way.front().arrived()).ok() ? layouts_->read_bytes(under_way.front().key()) : 0;
    under_way.pop_front();
  }
  counters_ = counters;
  for (Slot& slot : slots_) slot.prefetched = false;
  return bytes == 0 ? 0 : static_cast<double>(bytes) / (runtime_->now_s() - begin_s);
}

namespace {

std::vector<ExpertKey> KeysWithout(const ExpertLayouts& layouts, const ExpertSet& taken) {
  std::vector<ExpertKey> keys;
  for (ExpertKey key{0}; key < layouts.end_key(); ++key) {
    if (taken.empty() || !taken[key]) keys.push_back(key);
  }
  return keys;
}

}  // namespace

ExpertSet PinEvenly(const ExpertLayouts& layouts, int64_t count, const ExpertSet& taken) {
  ExpertSet pinned(static_cast<size_t>(layouts.num_experts()));
  const std::vector<ExpertKey> keys = KeysWithout(layouts, taken);
  const auto num_keys = std::ssize(keys);
  for (int64_t i = 0; i < num_keys; ++i) {
    pinned[keys[i]] = (i + 1) * count / num_keys > i * count / num_keys;
  }
  return pinned;
}

ExpertSet PinFirst(const ExpertLayouts& layouts, int64_t count, const ExpertSet& taken) {
  ExpertSet pinned(static_cast<size_t>(layouts.num_experts()));
  const std::vector<ExpertKey> keys = KeysWithout(layouts, taken);
  for (int64_t i = 0; i < count; ++i) pinned[keys[i]] = true;
  return pinned;
}

ExpertSet PinMostPopular(std::span<const double> popularity, int64_t count) {
  std::vector<ExpertKey> keys(popularity.size());
  std::iota(keys.begin(), keys.end(), ExpertKey{0});
  std::stable_sort(keys.begin(), keys.end(),
                   [&](ExpertKey a, ExpertKey b) { return popularity[IndexOf(a)] > popularity[IndexOf(b)]; });
  ExpertSet pinned(popularity.size());
  for (int64_t i = 0; i < count; ++i) pinned[keys[i]] = true;
  return pinned;
}

}  // namespace penstock
