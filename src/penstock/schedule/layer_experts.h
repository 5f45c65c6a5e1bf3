// The experts of one layer that one processor computes: requests them, waits for their arrival and computes them.
// Schedules that compute expert by expert, over all rows, use this class.
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
  // Requests an expert that a row chose, unless it was requested before. If there is a slot, its transfer begins at
  // once.
  void Want(int32_t expert_idx);

  // kArrival: computes experts in the order of their arrival. While some are still on their way, a task computes only a
  // few pinned experts, so that slots are released early. kIndex: computes in increasing index, even if others arrive
  // first.
  enum class Order : uint8_t { kArrival, kIndex };
  // Called before each wait. It may issue other work, and adds the events after which it could issue more.
  using Background = absl::FunctionRef<void(std::vector<Event>& events)>;
  // Computes the wanted experts for the rows that were grouped last. Calls `fetch_ahead` when all transfers of the
  // layer have been issued, and again whenever slots have been released since. The disk is then free for later layers.
  absl::Status Compute(Order order, absl::FunctionRef<void()> fetch_ahead, Background background) {
    LayerExperts* const all[] = {this};
    return ComputeAll(all, order, fetch_ahead, background);
  }
  // busy_s() returns the seconds that its tasks took; first_s() returns those of the first task.
  double busy_s() const { return busy_s_; }
  double first_s() const { return first_s_; }
  // Like Compute(), for several processors at once.
  static absl::Status ComputeAll(std::span<LayerExperts* const> all, Order order, absl::FunctionRef<void()> fetch_ahead,
                                 Background background);

 private:
  // Requests the experts that wait for slots. Returns whether none is waiting any more.
  bool Request();
  std::vector<ExpertLease> TakeReady(Order order);
  // An expert can be computed when its weights have arrived and its inputs are here. Returns the event of whichever is
  // missing; it has happened if both are there.
  Event UsableAt(const ExpertLease& lease) const;
  // Issues the ready experts if no task runs; returns whether slots were released. Adds the events after which there
  // may be more to issue.
  absl::StatusOr<bool> Step(Order order, std::vector<Event>& events);

  Pass* pass_;
  int64_t layer_idx_;
  ExpertStore* store_;
  std::vector<ExpertLease> ahead_;   // fetched before they were wanted
  std::vector<int32_t> waiting_;     // wanted, without a slot yet
  std::vector<ExpertLease> leases_;  // wanted, not computed yet
  std::optional<Event> running_;     // the task that computes
  double busy_s_ = 0, first_s_ = 0;
};

}  // namespace penstock
