// What operations on a CUDA device need of its memory besides activations: plans count it in builds without CUDA, too.
#pragma once

#include <cstdint>

#include "penstock/model/model_config.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {

// Positions of whole pages.
inline int64_t PaddedPositions(int64_t num_positions) {
  return (num_positions + kKvPageTokens - 1) / kKvPageTokens * kKvPageTokens;
}

// For the scores of one row that attends to so many positions, and a total for each head. The first page of a window
// may begin before it.
inline int64_t CudaScoresFloats(const ModelConfig& config, int64_t num_positions) {
  return config.num_heads * (PaddedPositions(num_positions) + kKvPageTokens + 1);
}

// For the table of one row's pages: their addresses, where they begin in the table, and the row's position; each of the
// three begins a cache line.
inline uint64_t RowTableBytes(int64_t num_pages) { return 8 * static_cast<uint64_t>(num_pages) + 2 * 8 + 3 * 64; }

}  // namespace penstock
