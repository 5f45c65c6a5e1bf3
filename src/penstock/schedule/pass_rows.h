// Chooses the rows of each sequence that go into a pass, and the micro-batches in which they go through the layers.
// Real and simulated passes share these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/memory/kv_window.h"

namespace penstock {

// The state of a sequence in the batch, as far as passes depend on it.
struct SequenceState {
  int64_t num_computed = 0;   // positions whose KV entries exist
  int64_t num_pending = 0;    // known tokens after these positions
  bool in_prefill = false;    // takes several rows: a prompt, or tokens that an output format forces
  bool waits = false;         // takes no rows in this pass: another sequence computes the same tokens
  int64_t num_drafts = 0;     // rows behind the known ones, of a sequence that decodes
  int64_t num_to_encode = 0;  // the next positions: a prompt that the encoder has not read
};

struct SequenceRows {
  size_t sequence_idx = 0;
  int64_t first_pos = 0;
  int64_t num_rows = 0;
};

struct PassLimits {
  int64_t max_rows = 0;
  int64_t micro_batch_size = 0;  // sequences in a micro-batch; 0: all
  KvWindow window = {};
  bool prompts_last = false;  // in each micro-batch, sequences with several rows come after the others

  // Returns the maximum number of rows of one sequence.
  int64_t max_rows_of_sequence() const {
    return window.on() && max_rows > KvWindow::kMaxRows ? KvWindow::kMaxRows : max_rows;
  }
};

// Chooses the pending rows of each sequence that decodes, and its drafts. Prompts get the remaining rows, first come
// first served. As long as there are prompts that an encoder must read, chooses whole ones of these, and nothing else.
// REQUIRES: at most max_rows sequences with their drafts, and max_rows positions of a prompt for an encoder.
std::vector<SequenceRows> ChooseRows(std::span<const SequenceState> sequences, const PassLimits& limits);

// Whether prompts are left for an encoder after a pass of these rows.
bool IsToEncode(std::span<const SequenceState> sequences, std::span<const SequenceRows> chosen);

// Cuts micro-batches that are balanced by what attention reads for them. Each one keeps its parts in the given order,
// apart from prompts_last.
std::vector<std::vector<SequenceRows>> CutMicroBatches(std::span<const SequenceRows> parts, const PassLimits& limits);

}  // namespace penstock
