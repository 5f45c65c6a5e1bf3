// Fetches experts that later layers will probably want, page by page and only while the link is idle. So a wanted
// expert waits for one page at most, or for a few small experts (see below). Experts that turn out not to be wanted are
// abandoned. Experts are fetched to a device only from DRAM: pages that wait for a disk would block the link.
//
// A fetched expert replaces another expert. Two rates are counted: how often the fetched experts were computed in their
// layer, and how often the replaced experts were chosen in theirs. As long as the replaced experts are missed more
// often, only a few are fetched, to see whether that has changed.
//
// If the experts of all later layers are known, they are named in the order in which the layers need them. Named
// experts that are present then keep their slots, as fetched ones do. So a fetch for a late layer replaces no expert
// that an earlier layer will probably want. Several small ones are then fetched at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "penstock/memory/expert_store.h"
#include "penstock/schedule/pass.h"

namespace penstock {

class ExpertPrefetch {
 public:
  // Names the experts to fetch next, in this order, in place of those named before. Present experts are skipped.
  void SetNext(std::vector<ExpertKey> keys);
  // The same, but holds the present ones. They are in the order of their layers: first those of this pass, then those
  // of later ones. If it is certain that these and no others will be wanted, they are fetched as fast as the disk can.
  void SetNextInOrder(std::span<const ExpertKey> of_pass, std::span<const ExpertKey> ahead, bool is_certain);
  // Adds experts of later passes behind those that were named in order.
  void AddAhead(std::span<const ExpertKey> keys);
  // Issues the next pages, as far as earlier ones have arrived. Adds the arrivals of the pages under way to `events`:
  // after each, there may be another page to issue.
  void Issue(Pass& pass, std::vector<Event>& events);
  // Returns whether an expert is being fetched and some of its pages have not been issued.
  bool IsComing(ExpertKey key) const { return coming_.has_value() && coming_->key() == key; }
  // Called when a layer's rows have chosen their experts (`chosen`, on any processor). `wanted` lists those that the
  // processor of this store computes. If an expert of this layer is under way, it is fetched completely when it is
  // wanted, and abandoned when it is not. Returns leases on the layer's fetched experts.
  std::vector<ExpertLease> Settle(Pass& pass, int64_t layer_idx, std::span<const int32_t> wanted,
                                  std::span<const int32_t> chosen);
  void Reset();

 private:
  void GiveUp(Pass& pass);
  // Issues one page and sets last_page_. Returns false if there is none to issue now.
  bool IssueNext(Pass& pass);
  size_t MaxUnderWay(Pass& pass) const;  // pages
  bool IsWorthwhile();
  // Returns the maximum number of experts to hold.
  int64_t MaxBrought(const ExpertStore& store) const;
  bool Holds(ExpertKey key) const;
  // Updates the rates by the experts of this layer that were fetched and those that were replaced.
  void Judge(const ExpertLayouts& layouts, int64_t layer_idx, std::span<const int32_t> wanted,
             std::span<const int32_t> chosen);

  std::vector<ExpertKey> next_;  // in reverse order: the next one is last
  std::optional<ExpertLease> coming_;
  std::vector<ExpertLease> brought_;
  size_t num_ahead_ = 0;     // of next_: experts of later passes, the first ones
  bool in_order_ = false;    // the experts of all later layers are named
  bool is_certain_ = false;  // and no others will be wanted
  Event last_page_;
  std::vector<Event> under_way_;              // pages
  std::vector<ExpertKey> came_, left_;        // fetched and replaced experts, not judged yet
  double wanted_rate_ = 1, missed_rate_ = 0;  // recent rates of wanted experts in came_, chosen ones in left_
  int64_t num_asked_ = 0;
};

}  // namespace penstock
