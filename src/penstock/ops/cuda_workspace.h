// The memory that operations on a CUDA device need besides activations. Plans count it in builds without CUDA, too.
#pragma once

#include <cstdint>

#include "penstock/model/model_config.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {

// Returns `num_positions` rounded up to whole pages.
inline int64_t PaddedPositions(int64_t num_positions) {
  return (num_positions + kKvPageTokens - 1) / kKvPageTokens * kKvPageTokens;
}

// Returns the floats for the scores of one row that attends to this many positions, and for a total of each head. A
// further page is counted, because the first page of a window may begin before the window.
inline int64_t CudaScoresFloats(const ModelConfig& config, int64_t num_positions) {
  return config.num_heads * (PaddedPositions(num_positions) + kKvPageTokens + 1);
}

// Returns the bytes of one row's table of pages. It has three parts: the pages' addresses, the place of the row's first
// address among them, and the row's position. Each part begins at a cache line.
inline uint64_t RowTableBytes(int64_t num_pages) { return 8 * static_cast<uint64_t>(num_pages) + 2 * 8 + 3 * 64; }

}  // namespace penstock
