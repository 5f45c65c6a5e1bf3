// Decides which sequences of a batch go through a layer together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Returns balanced micro-batches (MoE-Lightning, Algorithm 2, without padding). The longest sequences are placed first,
// each into the micro-batch with the fewest tokens that has room. `tokens` [num_sequences] holds the tokens that
// attention reads for each sequence. Each micro-batch has at most `max` sequences, and there are as few micro-batches
// as possible. Each holds indices of sequences in increasing order.
//
// The paper postpones requests that would overfill a micro-batch's share of the KV cache. Here a request reserves its
// KV pages before it gets a place in the batch, so none is postponed. REQUIRES: max >= 1.
std::vector<std::vector<size_t>> BalanceMicroBatches(std::span<const int64_t> tokens, int64_t max);

}  // namespace penstock
