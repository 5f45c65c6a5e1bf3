// The memory that operations on a CUDA device need besides activations. Plans count it in builds without CUDA, too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "penstock/model/model_config.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {

// Returns `num_positions` rounded up to whole pages.
inline int64_t PaddedPositions(int64_t num_positions) {
  return (num_positions + kKvPageTokens - 1) / kKvPageTokens * kKvPageTokens;
}

// Returns the floats for the scores of one row that attends to this many positions, and for a total of each head. A
// further page is counted, because the first page of a window may begin before the window.
inline int64_t CudaScoresFloats(const ModelConfig& config, int64_t num_positions) {
  int64_t num_heads = config.num_heads;
  for (const LayerHeads& heads : config.layer_heads) num_heads = std::max(num_heads, heads.num_heads);
  return num_heads * (PaddedPositions(num_positions) + kKvPageTokens + 1);
}

// Returns the bytes of one row's table of pages. It has four parts: the pages' addresses, the place of the row's first
// address among them, the row's position, and the first position that it sees. Each part begins at a cache line.
inline uint64_t RowTableBytes(int64_t num_pages) { return 8 * static_cast<uint64_t>(num_pages) + 3 * 8 + 4 * 64; }

// Returns the bytes of a table of recurrent states: where the rows of each sequence begin and end, and the addresses of
// each state's parts; then the same of states that are copied.
inline uint64_t StateTableBytes(int64_t num_parts, uint64_t num_sequences, uint64_t num_copies) {
  const uint64_t of_state = 8 * (1 + static_cast<uint64_t>(num_parts));
  return 8 + of_state * (num_sequences + num_copies) + 5 * 64;
}

// Returns the bytes of a block's shared memory that kernels with a row or a state of the model need.
inline uint64_t SharedBytes(const ModelConfig& config) {
  const Recurrent& r = config.recurrent;
  int64_t floats = config.model_dim + 2;  // norms
  if (config.num_recurrent_layers() > 0) {
    // 32 columns of a state, and the keys, queries and decays of three rows; or the columns and their rates.
    constexpr int64_t kCols = 32, kRowVectors = 9;
    const int64_t of_rule = r.projects_values() ? 2 * kCols * r.key_dim : (kCols + kRowVectors) * (r.key_dim + 7);
    floats = std::max({floats, r.values_dim(), r.has_matrix() ? of_rule : 0});
  }
  return 4 * static_cast<uint64_t>(floats);
}

// Returns the bytes of such a table for one sequence, whose state is copied twice behind one row, and of a number for
// each head; 0 for a model without recurrent layers.
inline uint64_t MinStateTableBytes(const ModelConfig& config) {
  if (config.num_recurrent_layers() == 0) return 0;
  const int64_t num_parts =
      std::max(RecurrentState::MaxPieces(config.recurrent), RecurrentState::NumConvParts(config.recurrent));
  return StateTableBytes(num_parts, 1, 2) + 4 * static_cast<uint64_t>(config.recurrent.num_value_heads);
}

}  // namespace penstock
