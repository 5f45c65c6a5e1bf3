// Which sequences of a batch go through a layer together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Balanced micro-batches (MoE-Lightning, Algorithm 2, without padding): the longest sequences first, each into the
// micro-batch with the fewest tokens that has room. `tokens` [num_sequences]: what each sequence makes attention read.
// Each micro-batch has at most `most` sequences; there are as few of them as hold all. Indices of sequences; within a
// micro-batch in increasing order.
//
// The paper puts off requests that would overfill a micro-batch's share of the KV cache; here a request reserves its KV
// pages before it gets a place in the batch, so none has to. REQUIRES: most >= 1.
std::vector<std::vector<size_t>> BalanceMicroBatches(std::span<const int64_t> tokens, int64_t most);

}  // namespace penstock
