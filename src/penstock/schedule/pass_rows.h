// Which rows of which sequences go into a pass, and which of them go through the layers together: the same for real
// passes and simulated ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/memory/kv_window.h"

namespace penstock {

// A sequence with a place in the batch, as far as passes are concerned.
struct SequenceState {
  int64_t num_computed = 0;  // positions whose KV entries exist
  int64_t num_pending = 0;   // tokens that are known beyond these
  bool in_prefill = false;
};

struct SequenceRows {
  size_t sequence_idx = 0;
  int64_t first_pos = 0;
  int64_t num_rows = 0;
};

struct PassLimits {
  int64_t max_rows = 0;
  int64_t micro_batch_size = 0;  // sequences; 0: all
  KvWindow window = {};

  // Rows of one sequence.
  int64_t most_rows() const { return window.on() && max_rows > KvWindow::kMostRows ? KvWindow::kMostRows : max_rows; }
};

// A row of each sequence that decodes, and of the prompts, first come first served, what there is room for.
// REQUIRES: no more sequences than max_rows.
std::vector<SequenceRows> ChooseRows(std::span<const SequenceState> sequences, const PassLimits& limits);

// Micro-batches that are balanced by what attention reads for them; within one in the given order.
std::vector<std::vector<SequenceRows>> CutMicroBatches(std::span<const SequenceRows> parts, const PassLimits& limits);

}  // namespace penstock
