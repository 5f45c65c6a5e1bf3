// Runs layer after layer for all rows of a pass; only attention runs by micro-batches. The experts that the router
// chose are computed as they become usable: resident ones first, while the missing ones are read. Nothing is fetched
// ahead.
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
    pass.attention().Embed(rows);
    for (int64_t layer_idx = pass.layers().begin; layer_idx < pass.layers().end; ++layer_idx) {
      for (size_t i = 0; i < micro_batches.size(); ++i) pass.attention().Attend(micro_batches, i, layer_idx);
      if (!pass.has_experts(layer_idx)) {
        pass.ffn().Dense(rows, layer_idx);
        continue;
      }
      PENSTOCK_RETURN_IF_ERROR(pass.runtime().Wait(pass.ffn().Route(rows, layer_idx)));
      pass.ffn().Group(rows, layer_idx);
      LayerExperts experts(pass, layer_idx);
      const std::vector<int32_t> chosen = pass.ffn().Chosen(rows, layer_idx);
      // Resident experts are requested first, so that no other expert takes their slots.
      for (const bool present : {true, false}) {
        for (const int32_t expert_idx : chosen) {
          if (pass.IsPresent(layer_idx, expert_idx) == present) experts.Want(expert_idx);
        }
      }
      PENSTOCK_RETURN_IF_ERROR(experts.Compute(
          LayerExperts::Order::kArrival, [] {}, [](std::vector<Event>&) {}));
      pass.ffn().Combine(rows, layer_idx);
    }
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Schedule> MakeOnDemand(const ScheduleOptions&, const ModelConfig&) {
  return std::make_unique<OnDemandSchedule>();
}

}  // namespace penstock
