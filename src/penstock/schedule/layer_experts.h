// The experts of one layer that one processor computes, from being wanted to being computed, for the schedules that
// compute expert by expert over all rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "penstock/schedule/pass.h"

namespace penstock {

class LayerExperts {
 public:
  LayerExperts(Pass& pass, int64_t layer_idx) : LayerExperts(pass, layer_idx, pass.experts()) {}
  // `store`: pass.experts() or pass.host_experts().
  LayerExperts(Pass& pass, int64_t layer_idx, ExpertStore& store)
      : pass_(&pass), layer_idx_(layer_idx), store_(&store) {}

  // Takes over leases of experts that were fetched ahead.
  void Adopt(std::vector<ExpertLease> leases);
  // Asks for an expert that a row chose, unless it was asked for before: its transfer begins at once while there are
  // slots.
  void Want(int32_t expert_idx);

  // kArrival: what is there first, in order of arrival; of pinned experts a few at a time while others are on their
  // way, so that slots are given back as soon as they can be. kIndex: in increasing index, whatever arrives first.
  enum class Order : uint8_t { kArrival, kIndex };
  // Computes the wanted experts for the rows that were grouped last. `fetch_ahead` is called when all transfers of the
  // layer have been issued, and again whenever slots have been given back since: the disk is free for what comes after.
  absl::Status Compute(Order order, absl::FunctionRef<void()> fetch_ahead) {
    LayerExperts* const all[] = {this};
    return ComputeAll(all, order, fetch_ahead, [](std::vector<Event>&) {});
  }
  // That its tasks took, and the first of them.
  double busy_s() const { return busy_s_; }
  double first_s() const { return first_s_; }
  // Called before each wait: may issue something else, and adds the events after which it would go on.
  using Background = absl::FunctionRef<void(std::vector<Event>& events)>;
  // The same on several processors side by side.
  static absl::Status ComputeAll(std::span<LayerExperts* const> all, Order order, absl::FunctionRef<void()> fetch_ahead,
                                 Background background);

 private:
  // Asks for those that wait for slots; whether none does any more.
  bool Request();
  std::vector<ExpertLease> TakeReady(Order order);
  // Issues what is ready when nothing runs; whether slots were given back. Adds what must happen before there is more.
  absl::StatusOr<bool> Step(Order order, std::vector<Event>& events);

  Pass* pass_;
  int64_t layer_idx_;
  ExpertStore* store_;
  std::vector<ExpertLease> ahead_;   // fetched before they were wanted
  std::vector<int32_t> waiting_;     // wanted, no slot yet
  std::vector<ExpertLease> leases_;  // wanted, not computed
  std::optional<Event> running_;     // computes
  double busy_s_ = 0, first_s_ = 0;
};

}  // namespace penstock
