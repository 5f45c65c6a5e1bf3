#include "penstock/schedule/expert_prefetch.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"

namespace penstock {
namespace {

constexpr int64_t kMostBrought = 4;

}  // namespace

void ExpertPrefetch::SetNext(std::vector<int64_t> keys) {
  std::reverse(keys.begin(), keys.end());
  next_ = std::move(keys);
}

void ExpertPrefetch::GiveUp(Pass& pass) { pass.experts().Abandon(*std::exchange(coming_, std::nullopt)); }

void ExpertPrefetch::Issue(Pass& pass, std::vector<Event>& events) {
  ExpertStore& store = pass.experts();
  Runtime& runtime = pass.runtime();
  if (!runtime.Done(last_page_)) {
    events.push_back(last_page_);
    return;
  }
  if (coming_.has_value() && !runtime.Wait(last_page_).ok()) GiveUp(pass);
  // What is wanted must always find a slot, and what was wanted often should stay.
  const int64_t most = std::min(store.num_streaming_slots() / 2 - 1, kMostBrought);
  while (!coming_.has_value() && !next_.empty() && std::ssize(brought_) < most) {
    const int64_t key = next_.back();
    const bool is_below = pass.host_experts() == nullptr || pass.host_experts()->HasArrived(key);
    if (!store.IsPresent(key) && is_below) {
      coming_ = store.AcquireByPages(key, FetchReason::kPredicted);
      if (!coming_.has_value()) return;  // later, when there is a slot
    }
    next_.pop_back();
  }
  if (!coming_.has_value()) return;
  if (!store.IssuePage()) return GiveUp(pass);  // the tier below has no room
  last_page_ = coming_->arrived();
  if (store.num_waiting_pages() == 0) brought_.push_back(*std::exchange(coming_, std::nullopt));
  events.push_back(last_page_);
}

std::vector<ExpertLease> ExpertPrefetch::Settle(Pass& pass, int64_t layer_idx, std::span<const int32_t> wanted) {
  ExpertStore& store = pass.experts();
  const ExpertLayouts& layouts = store.layouts();
  if (coming_.has_value() && layouts.layer_of(coming_->key()) == layer_idx) {
    const bool is_wanted =
        std::find(wanted.begin(), wanted.end(), layouts.expert_idx_of(coming_->key())) != wanted.end();
    const bool failed = pass.runtime().Done(last_page_) && !pass.runtime().Wait(last_page_).ok();
    if (is_wanted && !failed) {
      while (store.num_waiting_pages() > 0) PENSTOCK_CHECK(store.IssuePage());
      brought_.push_back(*std::exchange(coming_, std::nullopt));
    } else {
      GiveUp(pass);
    }
  }
  std::vector<ExpertLease> of_layer;
  std::vector<ExpertLease> rest;
  for (ExpertLease& lease : brought_) {
    (layouts.layer_of(lease.key()) == layer_idx ? of_layer : rest).push_back(std::move(lease));
  }
  brought_ = std::move(rest);
  return of_layer;
}

void ExpertPrefetch::Reset() {
  next_.clear();
  coming_.reset();
  brought_.clear();
}

}  // namespace penstock
