// Brings experts that layers to come will probably want, page by page and only while the link has nothing else to do:
// what is wanted waits for one page at most. What turns out not to be wanted is given up. To a device only what is in
// DRAM: pages that wait for a disk would keep the link.
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
  void SetNext(std::vector<int64_t> keys);
  // Issues the next page when the one before it has come. `events` gets its arrival: when there may be another one.
  void Issue(Pass& pass, std::vector<Event>& events);
  // Whether pages of an expert are still to come.
  bool IsComing(int64_t key) const { return coming_.has_value() && coming_->key() == key; }
  // It is known which experts of this layer are wanted here. What is under way for it is brought to its end or given up;
  // returns leases on what was brought.
  std::vector<ExpertLease> Settle(Pass& pass, int64_t layer_idx, std::span<const int32_t> wanted);
  void Reset();

 private:
  void GiveUp(Pass& pass);

  std::vector<int64_t> next_;  // the first one last
  std::optional<ExpertLease> coming_;
  std::vector<ExpertLease> brought_;
  Event last_page_;
};

}  // namespace penstock
