#include "penstock/schedule/expert_prefetch.h"

#include <algorithm>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"

namespace penstock {
namespace {

constexpr int64_t kMaxBrought = 4;
// Fetching experts in order is worthwhile if at least this share of them is wanted. A network that named only 45 %
// rightly made SST-2 with 128 experts 14 % slower. A second condition, that they are wanted 50 points more often than
// those that they replace, stopped networks that named 99 % rightly.
constexpr double kLeastWanted = 0.7;
// Bytes of experts that are under way at once if all are named in order. A disk needs several small reads for its full
// rate, and an expert that was not named waits for these bytes.
constexpr uint64_t kInOrderBytes = 1 * kMiB;
constexpr double kLastShare = 0.05;  // weight of the latest expert in a rate
constexpr int64_t kTriesAgain = 64;  // while fetching is not worthwhile, one expert in this many is still fetched
constexpr size_t kMaxJudged = 256;   // experts that may wait to be judged

}  // namespace

void ExpertPrefetch::SetNext(std::vector<ExpertKey> keys) {
  std::reverse(keys.begin(), keys.end());
  next_ = std::move(keys);
  num_ahead_ = 0;
  in_order_ = false;
}

void ExpertPrefetch::AddAhead(std::span<const ExpertKey> keys) {
  next_.insert(next_.begin(), keys.rbegin(), keys.rend());
  num_ahead_ += keys.size();
}

void ExpertPrefetch::SetNextInOrder(std::span<const ExpertKey> of_pass, std::span<const ExpertKey> ahead,
                                    bool is_certain) {
  next_.assign(of_pass.rbegin(), of_pass.rend());
  num_ahead_ = 0;
  AddAhead(ahead);
  in_order_ = true;
  is_certain_ = is_certain;
}

int64_t ExpertPrefetch::MaxBrought(const ExpertStore& store) const {
  // Wanted experts must always find a slot, and experts that were wanted often should stay.
  const int64_t half = store.num_streaming_slots() / 2 - 1;
  return in_order_ ? half : std::min(half, kMaxBrought);
}

bool ExpertPrefetch::Holds(ExpertKey key) const {
  return IsComing(key) ||
         std::any_of(brought_.begin(), brought_.end(), [&](const ExpertLease& lease) { return lease.key() == key; });
}

void ExpertPrefetch::GiveUp(Pass& pass) { pass.experts().Abandon(*std::exchange(coming_, std::nullopt)); }

void ExpertPrefetch::Issue(Pass& pass, std::vector<Event>& events) {
  Runtime& runtime = pass.runtime();
  std::erase_if(under_way_, [&](const Event& page) { return runtime.Done(page); });
  if (coming_.has_value() && runtime.Done(last_page_) && !runtime.Wait(last_page_).ok()) GiveUp(pass);
  while (under_way_.size() < MaxUnderWay(pass) && IssueNext(pass)) under_way_.push_back(last_page_);
  events.insert(events.end(), under_way_.begin(), under_way_.end());
}

size_t ExpertPrefetch::MaxUnderWay(Pass& pass) const {
  if (!in_order_) return 1;
  const ExpertLayouts& layouts = pass.experts().layouts();
  const uint64_t bytes = is_certain_ ? kReadAheadBytes : kInOrderBytes;
  return std::max<uint64_t>(1, bytes / std::max<uint64_t>(1, layouts.slot_bytes()));
}

bool ExpertPrefetch::IssueNext(Pass& pass) {
  ExpertStore& store = pass.experts();
  const int64_t max = MaxBrought(store);
  while (!coming_.has_value() && !next_.empty() && std::ssize(brought_) < max) {
    const ExpertKey key = next_.back();
    if (in_order_ && store.IsPresent(key) && !store.is_pinned(key) && !Holds(key)) {
      std::optional<ExpertLease> lease = store.Acquire(key, FetchReason::kPredicted);
      if (!lease.has_value()) return false;
      brought_.push_back(*std::move(lease));
    }
    const bool is_below = pass.host_experts() == nullptr || pass.host_experts()->HasArrived(key);
    if (!store.IsPresent(key) && is_below) {
      if (!IsWorthwhile()) {
        next_.clear();
        num_ahead_ = 0;
        return false;
      }
      const ExpertKey victim = store.VictimFor(key);
      coming_ = store.AcquireByPages(key, FetchReason::kPredicted, PageSize::kSmall);
      if (!coming_.has_value()) return false;  // tries again when there is a slot
      // Experts of later passes are not judged: their layers come once more in this pass.
      const bool is_judged = next_.size() > num_ahead_;
      if (is_judged && came_.size() < kMaxJudged) came_.push_back(key);
      if (is_judged && victim != kNoExpert && left_.size() < kMaxJudged) left_.push_back(victim);
    }
    next_.pop_back();
    num_ahead_ = std::min(num_ahead_, next_.size());
  }
  if (!coming_.has_value()) return false;
  const std::optional<Event> page = store.IssuePage();
  if (!page.has_value()) {  // the tier below has no room
    GiveUp(pass);
    return false;
  }
  last_page_ = *page;
  if (store.num_waiting_pages() == 0) brought_.push_back(*std::exchange(coming_, std::nullopt));
  return true;
}

bool ExpertPrefetch::IsWorthwhile() {
  if (is_certain_) return true;  // they would be read anyway
  const bool is_worthwhile = wanted_rate_ > missed_rate_ && (!in_order_ || wanted_rate_ > kLeastWanted);
  return is_worthwhile || ++num_asked_ % kTriesAgain == 0;
}

void ExpertPrefetch::Judge(const ExpertLayouts& layouts, int64_t layer_idx, std::span<const int32_t> wanted,
                           std::span<const int32_t> chosen) {
  const auto judge = [&](std::vector<ExpertKey>& keys, std::span<const int32_t> experts, double& rate) {
    std::erase_if(keys, [&](ExpertKey key) {
      if (layouts.layer_of(key) != layer_idx) return false;
      const bool is_one = std::find(experts.begin(), experts.end(), layouts.expert_idx_of(key)) != experts.end();
      rate += kLastShare * ((is_one ? 1 : 0) - rate);
      return true;
    });
  };
  judge(came_, wanted, wanted_rate_);
  judge(left_, chosen, missed_rate_);
}

std::vector<ExpertLease> ExpertPrefetch::Settle(Pass& pass, int64_t layer_idx, std::span<const int32_t> wanted,
                                                std::span<const int32_t> chosen) {
  ExpertStore& store = pass.experts();
  const ExpertLayouts& layouts = store.layouts();
  Judge(layouts, layer_idx, wanted, chosen);
  if (coming_.has_value() && layouts.layer_of(coming_->key()) == layer_idx) {
    const bool is_wanted =
        std::find(wanted.begin(), wanted.end(), layouts.expert_idx_of(coming_->key())) != wanted.end();
    const bool failed = pass.runtime().Done(last_page_) && !pass.runtime().Wait(last_page_).ok();
    if (is_wanted && !failed) {
      while (store.num_waiting_pages() > 0) PENSTOCK_CHECK(store.IssuePage().has_value());
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
  num_ahead_ = 0;
  coming_.reset();
  brought_.clear();
  came_.clear();
  left_.clear();
}

}  // namespace penstock
