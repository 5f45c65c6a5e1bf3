#include "penstock/memory/expert_store.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {

const Event& ExpertLease::arrived() const { return store_->slots_[place_.slot_idx].arrived; }
const Event& ExpertLease::known() const { return store_->slots_[place_.slot_idx].known; }

void ExpertLease::Release(const Event& last_use) {
  if (store_ != nullptr) store_->Release(place_.slot_idx, last_use);
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
      slots_(static_cast<size_t>(args.num_slots)),
      finished_(slots_.size()),
      slot_of_expert_(static_cast<size_t>(args.layouts.num_experts()), -1) {
  if (args.eviction != Eviction::kStatic) pinned_.clear();
  pinned_.resize(slot_of_expert_.size());
  num_pinned_ = std::count(pinned_.begin(), pinned_.end(), true);
  EvictionArgs eviction = {.num_slots = args.num_slots, .pinned = pinned_, .layer_of = {}};
  for (int64_t key = 0; key < layouts_->num_experts(); ++key) eviction.layer_of.push_back(layouts_->layer_of(key));
  policy_ = TraitsOf(args.eviction).make(std::move(eviction));
  for (int slot_idx = static_cast<int>(args.num_slots) - 1; slot_idx >= 0; --slot_idx) empty_.push_back(slot_idx);
}

absl::StatusOr<std::unique_ptr<ExpertStore>> ExpertStore::Create(Args args) {
  PENSTOCK_CHECK(args.num_slots >= 1);
  const uint64_t scratch_bytes =
      args.source->needs_finish() ? static_cast<uint64_t>(args.num_workers) * args.layouts.scratch_bytes() : 0;
  const uint64_t slots_bytes = static_cast<uint64_t>(args.num_slots) * args.layouts.slot_bytes();
  Memory* const memory = args.memory;
  auto store = std::unique_ptr<ExpertStore>(new ExpertStore(std::move(args)));
  PENSTOCK_CHECK(store->num_pinned_ < store->num_slots() || store->num_pinned_ == store->layouts_->num_experts());
  if (memory != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(store->scratch_, HostMemory().Map(scratch_bytes));
    PENSTOCK_ASSIGN_OR_RETURN(store->arena_, memory->Map(slots_bytes));
  }
  return store;
}

ExpertStore::~ExpertStore() {
  announced_.clear();
  while (!waiting_.empty()) PENSTOCK_CHECK(IssuePage());
  // Waits until the disk no longer writes into the slots and tasks no longer read them.
  for (const Slot& slot : slots_) {
    PENSTOCK_CHECK(slot.num_leases == 0);
    (void)runtime_->Wait(slot.arrived);
    (void)runtime_->WaitAll(slot.last_uses);
  }
}

int ExpertStore::TakeSlot(int64_t key) const {
  if (!empty_.empty()) return empty_.back();
  return policy_->Victim(key, [&](int slot_idx) { return slots_[slot_idx].num_leases == 0; });
}

// REQUIRES: no leases.
bool ExpertStore::IsBroken(int slot_idx) const {
  const Slot& slot = slots_[slot_idx];
  if (!runtime_->Done(slot.arrived)) return false;
  if (!runtime_->Wait(slot.arrived).ok()) return true;
  for (const Event& event : slot.last_uses) {
    if (!runtime_->Done(event)) return false;  // not known yet
  }
  return finished_[slot_idx].load_id == slot.load_id && finished_[slot_idx].broken;
}

Events ExpertStore::Reassign(int slot_idx, int64_t key, FetchReason reason) {
  Slot& slot = slots_[slot_idx];
  if (!empty_.empty() && empty_.back() == slot_idx) empty_.pop_back();
  if (slot.key >= 0) slot_of_expert_[slot.key] = -1;
  slot_of_expert_[key] = slot_idx;
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
  policy_->OnLoad(slot_idx, key);
  return slot_free;
}

void ExpertStore::Announce(std::vector<int64_t> keys) {
  announced_ = std::move(keys);
  FetchAhead();
}

void ExpertStore::FetchAhead() {
  if (source_->most_ahead() == 0) return;
  std::vector<int64_t> keys;
  for (const Waiting& waiting : waiting_) {
    if (!waiting.begun) keys.push_back(slots_[waiting.slot_idx].key);
  }
  for (const int64_t key : announced_) {
    if (!IsPresent(key)) keys.push_back(key);
  }
  source_->FetchAhead(keys);
}

bool ExpertStore::IssuePage() {
  PENSTOCK_CHECK(!waiting_.empty());
  Waiting& next = waiting_.front();
  Slot& slot = slots_[next.slot_idx];
  if (!next.begun) {
    next.streams_below = source_->streams(slot.key);
    if (!source_->Begin(slot.key)) return false;
    next.begun = true;
    if (next.streams_below) FetchAhead();
  }
  slot.arrived = source_->FetchPage(slot.key, SlotData(next.slot_idx), next.slot_free);
  slot.known = source_->KnownAt(slot.key, slot.arrived);
  --num_waiting_pages_;
  if (--next.num_pages > 0) return true;
  const bool leaves_room_below = next.streams_below;
  waiting_.pop_front();
  if (leaves_room_below) FetchAhead();
  return true;
}

void ExpertStore::Abandon(ExpertLease lease) {
  const int slot_idx = lease.place().slot_idx;
  const auto waiting =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.slot_idx == slot_idx; });
  if (waiting == waiting_.end()) return;
  Slot& slot = slots_[slot_idx];
  PENSTOCK_CHECK(slot.num_leases == 1);
  if (waiting->begun) source_->Cancel(slot.key);
  // Pages under way still write to the slot, and tasks may still read the expert before.
  std::vector<Event> last_uses(waiting->slot_free.begin(), waiting->slot_free.end());
  if (!runtime_->Done(slot.arrived)) last_uses.push_back(slot.arrived);
  // The counters may have been reset since the transfer began.
  counters_.bytes_read -=
      std::min(counters_.bytes_read, source_->bytes(slot.key) / static_cast<uint64_t>(source_->num_pages(slot.key)) *
                                         static_cast<uint64_t>(waiting->num_pages));
  num_waiting_pages_ -= waiting->num_pages;
  waiting_.erase(waiting);
  slot_of_expert_[slot.key] = -1;
  slot = {};
  slot.num_leases = 1;  // the caller ends this lease
  slot.last_uses = std::move(last_uses);
  empty_.push_back(slot_idx);
}

std::optional<ExpertLease> ExpertStore::Acquire(int64_t key, FetchReason reason) {
  return Lease(key, reason, /*by_pages=*/false);
}

std::optional<ExpertLease> ExpertStore::AcquireByPages(int64_t key, FetchReason reason) {
  return Lease(key, reason, /*by_pages=*/true);
}

std::optional<ExpertLease> ExpertStore::Lease(int64_t key, FetchReason reason, bool by_pages) {
  int slot_idx = slot_of_expert_[key];
  const bool present = slot_idx >= 0 && (slots_[slot_idx].num_leases > 0 || !IsBroken(slot_idx));
  if (!present) {
    if (slot_idx < 0) slot_idx = TakeSlot(key);
    if (slot_idx < 0 || (!by_pages && !source_->Begin(key))) return std::nullopt;
    Events slot_free = Reassign(slot_idx, key, reason);
    if (by_pages) {
      waiting_.push_back(
          {.slot_idx = slot_idx, .num_pages = source_->num_pages(key), .slot_free = std::move(slot_free)});
      num_waiting_pages_ += waiting_.back().num_pages;
    } else {
      for (int64_t page = source_->num_pages(key); page > 0; --page) {
        slots_[slot_idx].arrived = source_->FetchPage(key, SlotData(slot_idx), slot_free);
      }
      slots_[slot_idx].known = source_->KnownAt(key, slots_[slot_idx].arrived);
    }
  }
  Slot& slot = slots_[slot_idx];
  ++slot.num_leases;
  if (reason == FetchReason::kPredicted) {
    counters_.prefetched += present ? 0 : 1;
  } else if (present) {
    CountWanted(key);
  } else {
    ++counters_.misses;
    policy_->OnUse(slot_idx);
  }
  return ExpertLease(*this, {key, slot_idx, slot.load_id});
}

void ExpertStore::CountWanted(int64_t key) {
  const int slot_idx = slot_of_expert_[key];
  PENSTOCK_CHECK(slot_idx >= 0);
  Slot& slot = slots_[slot_idx];
  ++counters_.hits;
  counters_.prefetch_used += slot.prefetched ? 1 : 0;
  slot.prefetched = false;
  policy_->OnUse(slot_idx);
}

void ExpertStore::Release(int slot_idx, const Event& last_use) {
  Slot& slot = slots_[slot_idx];
  // Issues the waiting pages now: nobody else would, and the next lease of this expert must find its arrival.
  while (std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.slot_idx == slot_idx; })) {
    PENSTOCK_CHECK(IssuePage());
  }
  --slot.num_leases;
  std::erase_if(slot.last_uses, [&](const Event& event) { return runtime_->Done(event); });
  if (!runtime_->Done(last_use)) slot.last_uses.push_back(last_use);
}

bool ExpertStore::TakeUnfinished(const ExpertPlace& place) {
  Slot& slot = slots_[place.slot_idx];
  return source_->needs_finish() && slot.load_id == place.load_id && !std::exchange(slot.finish_counted, true);
}

std::vector<absl::Status> ExpertStore::Finish(std::span<const ExpertPlace> places, ThreadPool& pool) {
  std::vector<absl::Status> statuses(places.size());
  if (!source_->needs_finish()) return statuses;
  std::vector<size_t> unfinished;
  for (size_t i = 0; i < places.size(); ++i) {
    const Finished& finished = finished_[places[i].slot_idx];
    if (finished.load_id != places[i].load_id || finished.broken) unfinished.push_back(i);
  }
  if (unfinished.empty()) return statuses;
  constexpr int kParts = ExpertLayouts::kFinishParts;
  std::vector<absl::Status> parts(unfinished.size() * kParts);
  pool.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t task_idx, int worker_idx) {
    const ExpertPlace& place = places[unfinished[static_cast<size_t>(task_idx / kParts)]];
    const std::span<std::byte> scratch{scratch_.data() + static_cast<uint64_t>(worker_idx) * layouts_->scratch_bytes(),
                                       static_cast<size_t>(layouts_->scratch_bytes())};
    parts[static_cast<size_t>(task_idx)] =
        layouts_->FinishPart(place.key, static_cast<int>(task_idx % kParts), SlotData(place.slot_idx), scratch);
  });
  for (size_t i = 0; i < parts.size(); ++i) statuses[unfinished[i / kParts]].Update(parts[i]);
  for (const size_t i : unfinished) finished_[places[i].slot_idx] = {places[i].load_id, !statuses[i].ok()};
  return statuses;
}

absl::Status ExpertStore::Preload(ThreadPool* pool, const std::vector<bool>& preferred) {
  std::vector<int64_t> keys(static_cast<size_t>(layouts_->num_experts()));
  std::iota(keys.begin(), keys.end(), 0);
  const auto rank = [&](int64_t key) {
    if (is_pinned(key)) return 0;
    return !preferred.empty() && preferred[static_cast<size_t>(key)] ? 1 : 2;
  };
  std::stable_sort(keys.begin(), keys.end(), [&](int64_t a, int64_t b) { return rank(a) < rank(b); });
  keys.resize(std::min(keys.size(), slots_.size()));
  std::vector<ExpertLease> leases;
  for (const int64_t key : keys) leases.push_back(*Acquire(key, FetchReason::kWanted));
  for (const ExpertLease& lease : leases) {
    PENSTOCK_RETURN_IF_ERROR(runtime_->Wait(lease.arrived()));
    if (pool != nullptr) PENSTOCK_RETURN_IF_ERROR(Finish({&lease.place(), 1}, *pool)[0]);
    (void)TakeUnfinished(lease.place());
  }
  return absl::OkStatus();
}

double ExpertStore::MeasureDisk(double seconds) {
  const ExpertCounters counters = counters_;
  std::deque<ExpertLease> under_way;
  const double begin_s = runtime_->now_s();
  uint64_t bytes = 0;
  int64_t key = 0, num_present = 0;
  while (runtime_->now_s() - begin_s < seconds && num_present < layouts_->num_experts()) {
    key = (key + 1) % layouts_->num_experts();
    ++num_present;
    if (IsPresent(key)) continue;
    auto lease = Acquire(key, FetchReason::kPredicted);
    if (lease.has_value()) {
      num_present = 0;
      under_way.push_back(std::move(*lease));
      continue;
    }
    if (under_way.empty()) break;
    --key;  // tries the same expert again when a slot is free
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

std::vector<bool> PinEvenly(const ExpertLayouts& layouts, int64_t count, const std::vector<bool>& taken) {
  std::vector<bool> pinned(static_cast<size_t>(layouts.num_experts()));
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < layouts.num_experts(); ++key) {
    if (taken.empty() || !taken[static_cast<size_t>(key)]) keys.push_back(key);
  }
  const auto num_keys = std::ssize(keys);
  for (int64_t i = 0; i < num_keys; ++i) {
    pinned[static_cast<size_t>(keys[static_cast<size_t>(i)])] = (i + 1) * count / num_keys > i * count / num_keys;
  }
  return pinned;
}

std::vector<bool> PinMostPopular(std::span<const double> popularity, int64_t count) {
  std::vector<size_t> keys(popularity.size());
  std::iota(keys.begin(), keys.end(), size_t{0});
  std::stable_sort(keys.begin(), keys.end(), [&](size_t a, size_t b) { return popularity[a] > popularity[b]; });
  std::vector<bool> pinned(popularity.size());
  for (int64_t i = 0; i < count; ++i) pinned[keys[static_cast<size_t>(i)]] = true;
  return pinned;
}

}  // namespace penstock
