#include "penstock/schedule/layer_prefetch.h"

#include <utility>

#include "penstock/base/check.h"

namespace penstock {

LayerPrefetch::LayerPrefetch(const ModelConfig& config) : layer_after_(config.num_layers) {
  // Goes around twice: the first round finds the layer that follows the last one.
  int64_t after = 0;
  for (int64_t i = 2 * config.num_layers - 1; i >= 0; --i) {
    const int64_t layer_idx = i % config.num_layers;
    layer_after_[layer_idx] = after;
    if (config.layer_has_experts[layer_idx]) after = layer_idx;
  }
}

int64_t LayerPrefetch::FirstOf(IndexRange layers) const {
  return layer_after_[(layers.begin + std::ssize(layer_after_) - 1) % std::ssize(layer_after_)];
}

void LayerPrefetch::Begin(Pass& pass, bool goes_on) {
  next_layers_ = goes_on ? pass.layers() : pass.next_layers();
  const int64_t first = FirstOf(pass.layers());
  if (next_layer_ != first) leases_.clear();
  next_layer_ = first;
}

std::vector<ExpertLease> LayerPrefetch::TakeLayer(Pass& pass, int64_t layer_idx) {
  IssuePages(pass, 1, 1);
  DropFailed(pass);
  WantExperts(pass, layer_idx);
  PENSTOCK_CHECK(std::ssize(leases_) == pass.experts().layouts().num_experts_of(layer_idx));
  IssuePages(pass, 1, 1);
  num_pages_ = 0;
  next_layer_ = layer_after_[layer_idx];
  if (next_layer_ <= layer_idx || next_layer_ >= pass.layers().end) next_layer_ = FirstOf(next_layers_);
  return std::exchange(leases_, {});
}

void LayerPrefetch::Want(Pass& pass) {
  const int64_t num_issued = num_pages_ - pass.experts().num_waiting_pages();
  WantExperts(pass, next_layer_);
  MoveWindow(pass);
  num_pages_ = num_issued + pass.experts().num_waiting_pages();
}

void LayerPrefetch::MoveWindow(Pass& pass) {
  if (!pass.has_device()) return;
  ExpertStore& store = pass.experts();
  const ExpertKey first = store.layouts().FirstKeyOf(next_layer_) + std::ssize(leases_);
  const int64_t max = store.max_ahead();
  std::vector<ExpertKey> keys;
  // Goes once around the model.
  for (const auto& [begin, end] : {std::pair(first, store.layouts().end_key()), std::pair(ExpertKey{0}, first)}) {
    for (ExpertKey key = store.NextStreamingBelow(begin); key < end && std::ssize(keys) < max;) {
      if (!store.IsPresent(key)) keys.push_back(key);
      key = store.NextStreamingBelow(key + 1);
    }
  }
  store.Announce(std::move(keys));
}

void LayerPrefetch::WantExperts(Pass& pass, int64_t layer_idx) {
  ExpertStore& store = pass.experts();
  while (std::ssize(leases_) < store.layouts().num_experts_of(layer_idx)) {
    auto lease =
        store.AcquireByPages(store.layouts().FirstKeyOf(layer_idx) + std::ssize(leases_), FetchReason::kPredicted);
    if (!lease.has_value()) return;
    leases_.push_back(std::move(*lease));
  }
}

void LayerPrefetch::IssuePages(Pass& pass, int64_t share, int64_t num_shares) {
  const int64_t left = num_pages_ - num_pages_ * share / num_shares;
  const bool all = share == num_shares;
  // The tier below holds an expert only while its pages are issued. It makes room for a wanted expert by dropping
  // experts that were fetched ahead, so IssuePage() always succeeds.
  while (pass.experts().num_waiting_pages() > (all ? 0 : left)) {
    PENSTOCK_CHECK(pass.experts().IssuePage().has_value());
  }
}

void LayerPrefetch::DropFailed(Pass& pass) {
  for (size_t i = 0; i < leases_.size(); ++i) {
    const Event& arrived = leases_[i].arrived();
    if (!pass.runtime().Done(arrived) || pass.runtime().Wait(arrived).ok()) continue;
    leases_.erase(leases_.begin() + static_cast<int64_t>(i), leases_.end());
    return;
  }
}

void LayerPrefetch::Reset() { leases_.clear(); }

}  // namespace penstock
