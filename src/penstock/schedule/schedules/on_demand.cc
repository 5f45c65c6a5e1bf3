// Runs layer after layer for all rows of a pass; only attention runs by micro-batches. The experts that the router
// chose are computed as they become usable: resident ones first, while the missing ones are read.
//
// Rows that choose nearly all experts of a layer (a prompt's) need those of the next layer whatever its router says. So
// without a device, the disk goes on with the next layer when the reads of this one have been issued.
#include <algorithm>
#include <utility>
#include <vector>

#include "penstock/base/status.h"
#include "penstock/schedule/layer_experts.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

class OnDemandSchedule : public Schedule {
 public:
  absl::Status Run(Pass& pass) override {
    const RowRange rows = pass.all_rows();
    const std::span<const RowRange> micro_batches = pass.micro_batches();
    takes_all_ = !pass.has_device() && !RowsChooseFew(pass.config(), rows.size());
    ahead_.clear();
    pass.attention().Embed(rows);
    for (int64_t layer_idx = pass.layers().begin; layer_idx < pass.layers().end; ++layer_idx) {
      for (size_t i = 0; i < micro_batches.size(); ++i) pass.attention().Attend(micro_batches, i, layer_idx);
      if (pass.has_experts(layer_idx)) {
        PENSTOCK_RETURN_IF_ERROR(RunExperts(pass, rows, layer_idx));
      } else {
        pass.ffn().Dense(rows, layer_idx);
      }
    }
    return absl::OkStatus();
  }

  void Reset() override { ahead_.clear(); }

 private:
  absl::Status RunExperts(Pass& pass, RowRange rows, int64_t layer_idx) {
    PENSTOCK_RETURN_IF_ERROR(pass.runtime().Wait(pass.ffn().Route(rows, layer_idx)));
    pass.ffn().Group(rows, layer_idx);
    LayerExperts experts(pass, layer_idx);
    experts.Adopt(std::exchange(ahead_, {}));
    const std::vector<int32_t> chosen = pass.ffn().Chosen(rows, layer_idx);
    // Resident experts are requested first, so that no other expert takes their slots.
    for (const bool present : {true, false}) {
      for (const int32_t expert_idx : chosen) {
        if (pass.IsPresent(layer_idx, expert_idx) == present) experts.Want(expert_idx);
      }
    }
    BeginNext(pass, layer_idx);
    PENSTOCK_RETURN_IF_ERROR(experts.Compute(
        LayerExperts::Order::kArrival, [&] { FetchNext(pass); }, [](std::vector<Event>&) {}));
    pass.ffn().Combine(rows, layer_idx);
    return absl::OkStatus();
  }

  // Sets next_ to the experts of the next layer, if all of them are fetched ahead: first those that are present.
  void BeginNext(const Pass& pass, int64_t layer_idx) {
    next_.clear();
    do ++layer_idx;
    while (layer_idx < pass.layers().end && !pass.has_experts(layer_idx));
    if (!takes_all_ || layer_idx >= pass.layers().end) return;
    const ExpertStore& store = pass.experts();
    const ExpertKey begin = store.layouts().FirstKeyOf(layer_idx);
    const ExpertKey end = begin + store.layouts().num_experts_of(layer_idx);
    for (ExpertKey key = begin; key < end; ++key) next_.push_back(key);
    std::stable_partition(next_.begin(), next_.end(), [&](ExpertKey key) { return !store.IsPresent(key); });
    num_fetched_ = 0;
  }

  // Holds the experts of next_ that are present, so that no other one of their layer takes their slots, and fetches the
  // others as far as there are slots. As many as a ring holds keep the disk busy until the next layer's router has
  // chosen.
  void FetchNext(Pass& pass) {
    ExpertStore& store = pass.experts();
    const int64_t max = StreamingSlots(ScheduleKind::kOnDemand, pass.config().num_stored_experts(),
                                       store.num_streaming_slots(), store.layouts().slot_bytes());
    for (; !next_.empty(); next_.pop_back()) {
      const bool is_present = store.IsPresent(next_.back());
      if (!is_present && num_fetched_ >= max) return;
      auto lease = store.Acquire(next_.back(), FetchReason::kPredicted);
      if (!lease.has_value()) return;
      num_fetched_ += is_present ? 0 : 1;
      ahead_.push_back(*std::move(lease));
    }
  }

  bool takes_all_ = false;          // the pass's rows probably need nearly all experts
  std::vector<ExpertKey> next_;     // experts of the next layer that were not requested yet, the first one last
  std::vector<ExpertLease> ahead_;  // experts of the next layer
  int64_t num_fetched_ = 0;         // of ahead_
};

}  // namespace

std::unique_ptr<Schedule> MakeOnDemand(const ScheduleOptions&, const ModelConfig&) {
  return std::make_unique<OnDemandSchedule>();
}

}  // namespace penstock
