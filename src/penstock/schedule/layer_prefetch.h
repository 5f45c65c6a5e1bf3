// Fetches all experts of the next layer while this one is computed. Schedules that send whole layers use this class.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/schedule/pass.h"

namespace penstock {

// Keeps the experts that it fetched ahead from one pass to the next.
class LayerPrefetch {
 public:
  explicit LayerPrefetch(const ModelConfig& config);

  // Called before the first layer of a pass, or of a part of its rows. If the rows go through other layers than
  // expected, gives up the experts that were fetched for them. `goes_on`: another part of the rows goes through the
  // same layers next.
  void Begin(Pass& pass, bool goes_on = false);
  // Returns leases on all experts of a layer, with all their pages issued. Experts whose fetch failed are fetched
  // again. REQUIRES: slots for all of them.
  std::vector<ExpertLease> TakeLayer(Pass& pass, int64_t layer_idx);
  // Requests the experts of the layer that is to be taken next, as many as there are slots for.
  void Want(Pass& pass);
  // Issues pages until `share` of `num_shares` equal parts of the pages wanted since the last TakeLayer() are issued.
  void IssuePages(Pass& pass, int64_t share, int64_t num_shares);
  void Reset();

 private:
  void DropFailed(Pass& pass);
  // Announces all experts from the next one on, in their order. They are read from disk into DRAM as far as there is
  // room. This window moves ahead of the experts that the device takes (Klotski). Does nothing without a device.
  void MoveWindow(Pass& pass);
  void WantExperts(Pass& pass, int64_t layer_idx);

  // Returns the first of these layers with experts; that of the whole model if there is none.
  int64_t FirstOf(IndexRange layers) const;

  std::vector<int64_t> layer_after_;  // [num_layers]: the next layer with experts; after the last one, the first
  int64_t next_layer_ = 0;
  IndexRange next_layers_;           // of what comes after the present rows
  std::vector<ExpertLease> leases_;  // on experts of next_layer_, in the order of their index
  int64_t num_pages_ = 0;            // wanted since a layer was taken
};

}  // namespace penstock
