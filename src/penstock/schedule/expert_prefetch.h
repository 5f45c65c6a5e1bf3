// Brings experts that layers to come will probably want, page by page and only while the link has nothing else to do:
// what is wanted waits for one page at most. What turns out not to be wanted is given up. To a device only what is in
// DRAM: pages that wait for a disk would keep the link.
//
// What comes takes another expert's place. How often the experts that came were computed there when their layer came,
// and how often those that had to leave for them were chosen, is counted: as long as leaving experts are missed more
// often, only a few come, to see whether that has changed.
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
  // What should come next, in this order; replaces what was named before. Not those that are there.
  void SetNext(std::vector<ExpertKey> keys);
  // Issues the next page when the one before it has come. `events` gets its arrival: when there may be another one.
  void Issue(Pass& pass, std::vector<Event>& events);
  // Whether pages of an expert are still to come.
  bool IsComing(ExpertKey key) const { return coming_.has_value() && coming_->key() == key; }
  // It is known which experts of this layer are wanted here. What is under way for it is brought to its end or given
  // up; returns leases on what was brought. `chosen`: by the layer's rows, wherever they are computed.
  std::vector<ExpertLease> Settle(Pass& pass, int64_t layer_idx, std::span<const int32_t> wanted,
                                  std::span<const int32_t> chosen);
  void Reset();

 private:
  void GiveUp(Pass& pass);
  bool IsWorthwhile();
  // What came for this layer, and what left it.
  void Judge(const ExpertLayouts& layouts, int64_t layer_idx, std::span<const int32_t> wanted,
             std::span<const int32_t> chosen);

  std::vector<ExpertKey> next_;  // the first one last
  std::optional<ExpertLease> coming_;
  std::vector<ExpertLease> brought_;
  Event last_page_;
  std::vector<ExpertKey> came_, left_;        // not judged yet
  double wanted_rate_ = 1, missed_rate_ = 0;  // of those, lately
  int64_t num_asked_ = 0;
};

}  // namespace penstock
