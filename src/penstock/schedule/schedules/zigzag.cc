// Fetches whole layers of experts, whatever the router chooses. While a layer is computed for all micro-batches, one
// after the other, the next layer's experts are fetched. This is FlexGen's zig-zag block schedule. On a device it is
// MoE-Lightning's S4: the KV entries of the next micro-batch are copied while this one is computed. If each micro-batch
// goes through the model alone, it is ZeRO-Inference.
//
// Two layers' experts are in slots at the same time. With fewer slots (at least one layer's), the rest of the next
// layer's experts are fetched after this layer has been computed.
#include <vector>

#include "penstock/base/status.h"
#include "penstock/schedule/layer_prefetch.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

class ZigzagSchedule : public Schedule {
 public:
  ZigzagSchedule(const ModelConfig& config, bool one_micro_batch)
      : one_micro_batch_(one_micro_batch), prefetch_(config) {}

  absl::Status Run(Pass& pass) override {
    const std::span<const RowRange> all = pass.micro_batches();
    if (!one_micro_batch_) return RunBlock(pass, all, /*is_last=*/true);
    for (size_t i = 0; i < all.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(RunBlock(pass, all.subspan(i, 1), i + 1 == all.size()));
    }
    return absl::OkStatus();
  }

  void Reset() override { prefetch_.Reset(); }

 private:
  absl::Status RunBlock(Pass& pass, std::span<const RowRange> micro_batches, bool is_last) {
    for (const RowRange& rows : micro_batches) pass.attention().Embed(rows);
    prefetch_.Begin(pass, /*goes_on=*/!is_last);
    for (int64_t layer_idx = pass.layers().begin; layer_idx < pass.layers().end; ++layer_idx) {
      if (!pass.has_experts(layer_idx)) {
        for (size_t i = 0; i < micro_batches.size(); ++i) {
          pass.attention().Attend(micro_batches, i, layer_idx);
          pass.ffn().Dense(micro_batches[i], layer_idx);
        }
        continue;
      }
      std::vector<ExpertLease> leases = prefetch_.TakeLayer(pass, layer_idx);
      pass.attention().FetchKv(micro_batches[0], layer_idx);  // before the weights
      FetchNext(pass);
      Event last;
      std::vector<bool> counted(pass.config().num_experts);
      for (size_t i = 0; i < micro_batches.size(); ++i) {
        const RowRange rows = micro_batches[i];
        pass.attention().Attend(micro_batches, i, layer_idx);
        PENSTOCK_RETURN_IF_ERROR(pass.runtime().Wait(pass.ffn().Route(rows, layer_idx)));
        pass.ffn().Group(rows, layer_idx);
        for (const int32_t expert_idx : pass.ffn().Chosen(rows, layer_idx)) {
          if (counted[expert_idx]) continue;
          counted[expert_idx] = true;
          pass.experts().CountWanted(pass.experts().layouts().KeyOf(layer_idx, expert_idx));
        }
        last = pass.ffn().Experts(layer_idx, pass.experts(), leases);
        pass.ffn().Combine(rows, layer_idx);
      }
      for (ExpertLease& lease : leases) lease.Release(last);
      FetchNext(pass);
    }
    return absl::OkStatus();
  }

  void FetchNext(Pass& pass) {
    prefetch_.Want(pass);
    prefetch_.IssuePages(pass, 1, 1);
  }

  const bool one_micro_batch_;
  LayerPrefetch prefetch_;
};

}  // namespace

std::unique_ptr<Schedule> MakeZero(const ScheduleOptions&, const ModelConfig& config) {
  return std::make_unique<ZigzagSchedule>(config, /*one_micro_batch=*/true);
}
std::unique_ptr<Schedule> MakeZigzag(const ScheduleOptions&, const ModelConfig& config) {
  return std::make_unique<ZigzagSchedule>(config, /*one_micro_batch=*/false);
}

}  // namespace penstock
