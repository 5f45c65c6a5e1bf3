// The experts of the next layer, all of them, while this one is computed: for the schedules that send whole layers.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/schedule/pass.h"

namespace penstock {

// Keeps what it fetches ahead from one pass to the next.
class LayerPrefetch {
 public:
  explicit LayerPrefetch(const ModelConfig& config);

  // Leases on all experts of a layer, all their pages issued; what failed since it was fetched is fetched again.
  // REQUIRES: slots for them.
  std::vector<ExpertLease> TakeLayer(Pass& pass, int64_t layer_idx);
  // Asks for the experts of the layer with experts that comes after the one taken last, as many as there are slots for.
  void Want(Pass& pass);
  // Of the pages that were wanted since a layer was taken, `share` of `num_shares` have been issued after this.
  void IssuePages(Pass& pass, int64_t share, int64_t num_shares);
  void Reset();

 private:
  void DropFailed(Pass& pass);
  // Announces all experts from the next one on, in their order. They are read from disk into DRAM while there is room
  // for them: a window that moves ahead of what the device takes (Klotski). Does nothing without a device.
  void MoveWindow(Pass& pass);
  void WantExperts(Pass& pass, int64_t layer_idx);

  std::vector<int64_t> layer_after_;  // [num_layers]: the next one with experts, after the last one the first
  int64_t next_layer_ = 0;
  std::vector<ExpertLease> leases_;  // on its experts, by index
  int64_t num_pages_ = 0;            // that were wanted since a layer was taken
};

}  // namespace penstock
