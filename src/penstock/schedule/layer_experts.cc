#include "penstock/schedule/layer_experts.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// Pinned experts that are computed at a time while others are on their way.
constexpr size_t kPinnedAtOnce = 4;

}  // namespace

// One that failed on the way is fetched again when it is wanted.
void LayerExperts::Adopt(std::vector<ExpertLease> leases) {
  Runtime& runtime = pass_->runtime();
  std::erase_if(leases, [&](const ExpertLease& lease) {
    return runtime.Done(lease.arrived()) && !runtime.Wait(lease.arrived()).ok();
  });
  ahead_ = std::move(leases);
}

void LayerExperts::Want(int32_t expert_idx) {
  ExpertStore& store = pass_->experts();
  const int64_t key = store.layouts().KeyOf(layer_idx_, expert_idx);
  if (std::any_of(leases_.begin(), leases_.end(), [&](const ExpertLease& lease) { return lease.key() == key; }) ||
      std::find(waiting_.begin(), waiting_.end(), expert_idx) != waiting_.end()) {
    return;
  }
  // Those that are there need no slot.
  if (waiting_.empty() || store.IsPresent(key)) {
    if (auto lease = store.Acquire(key, FetchReason::kWanted)) {
      leases_.push_back(std::move(*lease));
      return;
    }
  }
  waiting_.push_back(expert_idx);
}

bool LayerExperts::Request() {
  ExpertStore& store = pass_->experts();
  while (!waiting_.empty()) {
    auto lease = store.Acquire(store.layouts().KeyOf(layer_idx_, waiting_.front()), FetchReason::kWanted);
    if (!lease.has_value()) return false;
    leases_.push_back(std::move(*lease));
    waiting_.erase(waiting_.begin());
  }
  return true;
}

std::vector<ExpertLease> LayerExperts::TakeReady(Order order) {
  const Runtime& runtime = pass_->runtime();
  const auto is_pinned = [&](const ExpertLease& lease) { return pass_->experts().is_pinned(lease.key()); };
  const auto has_arrived = [&](const ExpertLease& lease) { return runtime.Done(lease.arrived()); };
  std::vector<ExpertLease> ready, rest;
  if (order == Order::kIndex) {
    std::sort(leases_.begin(), leases_.end(),
              [](const ExpertLease& a, const ExpertLease& b) { return a.key() < b.key(); });
    // Those that wait for a slot may have a lower index: what is computed first then only decides who waits.
    const auto first_missing = std::find_if_not(leases_.begin(), leases_.end(), has_arrived);
    ready.assign(std::make_move_iterator(leases_.begin()), std::make_move_iterator(first_missing));
    leases_.erase(leases_.begin(), first_missing);
    return ready;
  }
  const bool all_arrived = waiting_.empty() && std::all_of(leases_.begin(), leases_.end(), has_arrived);
  const bool streamed = std::any_of(leases_.begin(), leases_.end(),
                                    [&](const ExpertLease& lease) { return !is_pinned(lease) && has_arrived(lease); });
  size_t num_pinned = 0;
  for (ExpertLease& lease : leases_) {
    bool take = has_arrived(lease);
    if (take && !all_arrived && is_pinned(lease)) take = !streamed && num_pinned++ < kPinnedAtOnce;
    (take ? ready : rest).push_back(std::move(lease));
  }
  leases_ = std::move(rest);
  return ready;
}

absl::Status LayerExperts::Compute(Order order, absl::FunctionRef<void()> fetch_ahead) {
  ahead_.clear();  // what was fetched ahead and nobody wants may leave
  if (Request()) fetch_ahead();
  for (;;) {
    if (leases_.empty()) {
      PENSTOCK_CHECK(waiting_.empty());  // nothing holds a slot, and there is none
      return absl::OkStatus();
    }
    std::vector<ExpertLease> ready = TakeReady(order);
    if (ready.empty()) {
      std::vector<Event> arrivals;
      for (const ExpertLease& lease : leases_) arrivals.push_back(lease.arrived());
      if (order == Order::kIndex) arrivals.resize(1);
      (void)pass_->runtime().WaitAny(arrivals);
      continue;
    }
    const Event done = pass_->Experts(layer_idx_, ready);
    for (ExpertLease& lease : ready) lease.Release(done);
    if (Request()) fetch_ahead();  // the reads that their slots allow are issued before the computing ends
    PENSTOCK_RETURN_IF_ERROR(pass_->runtime().Wait(done));
  }
}

}  // namespace penstock
