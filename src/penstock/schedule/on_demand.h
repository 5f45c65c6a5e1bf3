// The on-demand schedule: layer after layer for all rows of a step; the experts that the router chose are computed as
// they become usable, residents first, while the missing ones are read in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "penstock/memory/expert_cache.h"
#include "penstock/schedule/operations.h"

namespace penstock {

// Sees each layer's routing: topk_idx and topk_weights are [num_rows, num_topk].
using RoutingObserver =
    std::function<void(int64_t layer_idx, std::span<const int32_t> topk_idx, std::span<const float> topk_weights)>;

// Takes the logits [rows.size(), vocab_size] of some of the batch's logit_rows, in order; may overwrite them.
using LogitsSink = absl::FunctionRef<void(std::span<const int64_t> rows, std::span<float> logits)>;

// One pass over the model. On an I/O error the KV cache of the batch's rows is incomplete and the error is returned.
absl::Status RunOnDemand(const OpContext& context, ExpertCache* experts, const RowBatch& batch, LogitsSink sink,
                         const RoutingObserver& observer);

}  // namespace penstock
