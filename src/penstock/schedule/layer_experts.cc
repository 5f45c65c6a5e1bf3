#include "penstock/schedule/layer_experts.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// Maximum number of pinned experts in one task while other experts are on their way.
constexpr size_t kPinnedAtOnce = 4;

}  // namespace

// Drops experts whose transfer has failed; they are fetched again when they are wanted.
void LayerExperts::Adopt(std::vector<ExpertLease> leases) {
  Runtime& runtime = pass_->runtime();
  std::erase_if(leases, [&](const ExpertLease& lease) {
    return runtime.Done(lease.arrived()) && !runtime.Wait(lease.arrived()).ok();
  });
  ahead_ = std::move(leases);
}

void LayerExperts::Want(int32_t expert_idx) {
  const ExpertKey key = store_->layouts().KeyOf(layer_idx_, expert_idx);
  if (std::any_of(leases_.begin(), leases_.end(), [&](const ExpertLease& lease) { return lease.key() == key; }) ||
      std::find(waiting_.begin(), waiting_.end(), expert_idx) != waiting_.end()) {
    return;
  }
  // Present experts need no new slot.
  if (waiting_.empty() || store_->IsPresent(key)) {
    if (auto lease = store_->Acquire(key, FetchReason::kWanted)) {
      leases_.push_back(std::move(*lease));
      return;
    }
  }
  waiting_.push_back(expert_idx);
}

bool LayerExperts::Request() {
  while (!waiting_.empty()) {
    auto lease = store_->Acquire(store_->layouts().KeyOf(layer_idx_, waiting_.front()), FetchReason::kWanted);
    if (!lease.has_value()) return false;
    leases_.push_back(std::move(*lease));
    waiting_.erase(waiting_.begin());
  }
  return true;
}

Event LayerExperts::UsableAt(const ExpertLease& lease) const {
  if (!pass_->runtime().Done(lease.arrived())) return lease.arrived();
  return pass_->ffn().InputsOf(store_->layouts().expert_idx_of(lease.key()));
}

std::vector<ExpertLease> LayerExperts::TakeReady(Order order) {
  const Runtime& runtime = pass_->runtime();
  const auto is_pinned = [&](const ExpertLease& lease) { return store_->is_pinned(lease.key()); };
  const auto has_arrived = [&](const ExpertLease& lease) {
    return runtime.Done(lease.arrived()) &&
           runtime.Done(pass_->ffn().InputsOf(store_->layouts().expert_idx_of(lease.key())));
  };
  std::vector<ExpertLease> ready;
  if (order == Order::kIndex) {
    std::sort(leases_.begin(), leases_.end(),
              [](const ExpertLease& a, const ExpertLease& b) { return a.key() < b.key(); });
    // An expert that waits for a slot may have a lower index than these. It is not waited for, because these may hold
    // the slot that it needs.
    const auto first_missing = std::find_if_not(leases_.begin(), leases_.end(), has_arrived);
    ready.assign(std::make_move_iterator(leases_.begin()), std::make_move_iterator(first_missing));
    leases_.erase(leases_.begin(), first_missing);
    return ready;
  }
  // The host's tasks may run in the issuer's thread. So the host computes one expert at a time, and the issuer can
  // issue work for the device in between.
  const bool beside_device = store_ == pass_->host_experts();
  const bool all_arrived = waiting_.empty() && std::all_of(leases_.begin(), leases_.end(), has_arrived);
  const bool streamed = std::any_of(leases_.begin(), leases_.end(),
                                    [&](const ExpertLease& lease) { return !is_pinned(lease) && has_arrived(lease); });
  size_t num_pinned = 0;
  std::erase_if(leases_, [&](ExpertLease& lease) {
    bool take = has_arrived(lease);
    if (take && !all_arrived && is_pinned(lease)) take = !streamed && num_pinned++ < kPinnedAtOnce;
    if (beside_device && !ready.empty()) take = false;
    if (take) ready.push_back(std::move(lease));
    return take;
  });
  return ready;
}

absl::StatusOr<bool> LayerExperts::Step(Order order, std::vector<Event>& events) {
  Runtime& runtime = pass_->runtime();
  if (running_.has_value() && runtime.Done(*running_)) {
    PENSTOCK_RETURN_IF_ERROR(runtime.Wait(*running_));
    const double seconds = runtime.Seconds(*running_);
    if (busy_s_ == 0) first_s_ = seconds;
    busy_s_ += seconds;
    running_.reset();
  }
  bool gave_back = false;
  if (!running_.has_value()) {
    std::vector<ExpertLease> ready = TakeReady(order);
    if (!ready.empty()) {
      running_ = pass_->ffn().Experts(layer_idx_, *store_, ready);
      for (ExpertLease& lease : ready) lease.Release(*running_);
      gave_back = true;
    }
  }
  if (running_.has_value()) {
    events.push_back(*running_);
  } else if (order == Order::kIndex && !leases_.empty()) {
    events.push_back(UsableAt(leases_.front()));
  } else {
    for (const ExpertLease& lease : leases_) events.push_back(UsableAt(lease));
  }
  return gave_back;
}

absl::Status LayerExperts::ComputeAll(std::span<LayerExperts* const> all, Order order,
                                      absl::FunctionRef<void()> fetch_ahead, Background background) {
  for (LayerExperts* experts : all) experts->ahead_.clear();  // experts fetched ahead that nobody wants may leave
  bool may_fetch = true;
  for (;;) {
    // Reads into released slots are issued before the computation ends.
    if (may_fetch) {
      bool all_requested = true;
      for (LayerExperts* experts : all) all_requested &= experts->Request();
      if (all_requested) fetch_ahead();
    }
    may_fetch = false;
    std::vector<Event> events;
    for (LayerExperts* experts : all) {
      PENSTOCK_ASSIGN_OR_RETURN(const bool gave_back, experts->Step(order, events));
      may_fetch |= gave_back;
    }
    if (may_fetch) continue;
    if (events.empty()) break;
    background(events);
    (void)all.front()->pass_->runtime().WaitAny(events);
  }
  // No lease is left here, so an expert that still waits could never get a slot.
  for (const LayerExperts* experts : all) PENSTOCK_CHECK(experts->waiting_.empty());
  return absl::OkStatus();
}

}  // namespace penstock
