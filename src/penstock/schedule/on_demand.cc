#include "penstock/schedule/on_demand.h"

#include <algorithm>

#include "penstock/base/status.h"

namespace penstock {
namespace {

absl::Status RunExperts(const OpContext& context, ExpertCache& experts, int64_t num_rows, int64_t layer_idx,
                        const RoutingObserver& observer) {
  const std::vector<int32_t> chosen = ops::Route(context, num_rows, layer_idx);
  if (observer) {
    const size_t num_assignments = static_cast<size_t>(num_rows * context.config.num_topk);
    observer(layer_idx, context.activations.topk_idx.first(num_assignments),
             context.activations.topk_weights.first(num_assignments));
  }
  PENSTOCK_RETURN_IF_ERROR(experts.Begin(layer_idx, chosen));
  for (;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ExpertLease> leases, experts.NextReady());
    if (leases.empty()) break;
    ops::Experts(context, leases);
  }
  ops::Combine(context, num_rows);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunOnDemand(const OpContext& context, ExpertCache* experts, const RowBatch& batch, LogitsSink sink,
                         const RoutingObserver& observer) {
  const int64_t num_rows = batch.num_rows();
  ops::Embed(context, batch);
  for (int64_t layer_idx = 0; layer_idx < context.config.num_layers; ++layer_idx) {
    ops::Attention(context, batch, layer_idx);
    if (context.config.layer_has_experts[layer_idx]) {
      PENSTOCK_RETURN_IF_ERROR(RunExperts(context, *experts, num_rows, layer_idx, observer));
    } else {
      ops::DenseFfn(context, num_rows, layer_idx);
    }
  }
  const std::span<const int64_t> wanted = batch.logit_rows;
  const size_t rows_at_once = static_cast<size_t>(context.activations.dims.max_logit_rows);
  for (size_t begin = 0; begin < wanted.size(); begin += rows_at_once) {
    const auto rows = wanted.subspan(begin, std::min(rows_at_once, wanted.size() - begin));
    ops::Logits(context, rows);
    sink(rows, context.activations.logits.first(rows.size() * static_cast<size_t>(context.config.vocab_size)));
  }
  return absl::OkStatus();
}

}  // namespace penstock
