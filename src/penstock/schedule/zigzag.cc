// Weights come layer by layer, whole, whatever the router says: while a layer is computed for all micro-batches, one
// after the other, the next layer's experts are fetched (FlexGen's zig-zag block schedule; ZeRO-Inference where each
// micro-batch goes through the model alone).
//
// Two layers' experts are in slots at a time; with fewer slots (one layer's are the least) the next layer's wait for
// this layer's to be computed.
#include <utility>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

class ZigzagSchedule : public Schedule {
 public:
  ZigzagSchedule(const ModelConfig& config, bool one_micro_batch) : one_micro_batch_(one_micro_batch) {
    for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
      if (config.layer_has_experts[layer_idx]) moe_layers_.push_back(layer_idx);
    }
  }

  absl::Status Run(Pass& pass) override {
    if (!one_micro_batch_) return RunBlock(pass, pass.micro_batches());
    for (const RowRange& micro_batch : pass.micro_batches()) {
      PENSTOCK_RETURN_IF_ERROR(RunBlock(pass, {&micro_batch, 1}));
    }
    return absl::OkStatus();
  }

  void Reset() override {
    next_.clear();
    num_fetched_ = 0;
  }

 private:
  absl::Status RunBlock(Pass& pass, std::span<const RowRange> micro_batches) {
    for (const RowRange& rows : micro_batches) pass.Embed(rows);
    size_t moe_layer = 0;
    for (int64_t layer_idx = 0; layer_idx < pass.config().num_layers; ++layer_idx) {
      if (!pass.has_experts(layer_idx)) {
        for (const RowRange& rows : micro_batches) {
          pass.Attention(rows, layer_idx);
          pass.DenseFfn(rows, layer_idx);
        }
        continue;
      }
      DropFailed(pass);
      Fetch(pass, layer_idx);
      PENSTOCK_CHECK(num_fetched_ == pass.config().num_experts);  // the plan has slots for a layer
      std::vector<ExpertLease> leases = std::exchange(next_, {});
      num_fetched_ = 0;
      const int64_t next_layer = moe_layers_[++moe_layer % moe_layers_.size()];
      Fetch(pass, next_layer);
      Event last;
      std::vector<bool> counted(static_cast<size_t>(pass.config().num_experts));
      for (const RowRange& rows : micro_batches) {
        pass.Attention(rows, layer_idx);
        PENSTOCK_RETURN_IF_ERROR(pass.runtime().Wait(pass.Route(rows, layer_idx)));
        pass.Group(rows, layer_idx);
        for (const int32_t expert_idx : pass.Chosen(rows, layer_idx)) {
          if (counted[expert_idx]) continue;
          counted[expert_idx] = true;
          pass.experts().CountWanted(pass.experts().layouts().KeyOf(layer_idx, expert_idx));
        }
        for (const ExpertLease& lease : leases) (void)pass.runtime().Wait(lease.arrived());
        last = pass.Experts(layer_idx, leases);
        pass.Combine(rows, layer_idx);
      }
      for (ExpertLease& lease : leases) lease.Release(last);
      Fetch(pass, next_layer);
    }
    return absl::OkStatus();
  }

  // What failed since it was fetched is fetched again, with all that come after it.
  void DropFailed(Pass& pass) {
    for (size_t i = 0; i < next_.size(); ++i) {
      const Event& arrived = next_[i].arrived();
      if (!pass.runtime().Done(arrived) || pass.runtime().Wait(arrived).ok()) continue;
      next_.erase(next_.begin() + static_cast<int64_t>(i), next_.end());
      num_fetched_ = static_cast<int64_t>(i);
      return;
    }
  }

  // Leases on the experts of a layer, as many as there are slots for.
  void Fetch(Pass& pass, int64_t layer_idx) {
    ExpertStore& store = pass.experts();
    for (; num_fetched_ < pass.config().num_experts; ++num_fetched_) {
      auto lease = store.Acquire(store.layouts().KeyOf(layer_idx, num_fetched_), FetchReason::kPredicted);
      if (!lease.has_value()) return;
      next_.push_back(std::move(*lease));
    }
  }

  bool one_micro_batch_;
  std::vector<int64_t> moe_layers_;
  std::vector<ExpertLease> next_;  // of the layer to come
  int64_t num_fetched_ = 0;        // of its experts
};

}  // namespace

std::unique_ptr<Schedule> MakeZigzag(const ModelConfig& config, bool one_micro_batch) {
  return std::make_unique<ZigzagSchedule>(config, one_micro_batch);
}

}  // namespace penstock
