// The rows of a pass on all ranks, for attention by heads: each rank attends to them with its own heads.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/ops/operations.h"
#include "penstock/parallel/communicator.h"

namespace penstock {

struct RankRows {
  // The rows of one micro-batch, as rows of `batch`: first those of rank 0, then those of rank 1, and so on.
  struct MicroBatch {
    RowRange all;
    std::vector<RowRange> of_rank;  // [num_ranks]
  };

  RowBatch batch;                             // token ids are 0
  std::vector<MicroBatch> micro_batches;      // in the order of the pass
  std::deque<std::vector<std::byte*>> pages;  // lists that batch.kv_pages points to
};

// Tells the other ranks this rank's rows, and learns theirs. Copies the same KV pages as the other ranks have copied
// since the last pass. Rows have no pages if `cache` is null, as in a simulation. All ranks give equally many
// micro-batches. kInternal when a rank names rows or pages that cannot be.
absl::StatusOr<RankRows> GatherRankRows(Communicator& communicator, const RowBatch& batch,
                                        std::span<const RowRange> micro_batches, KvCache* cache);

}  // namespace penstock
