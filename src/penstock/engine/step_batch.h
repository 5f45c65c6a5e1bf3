// The rows of a step, and the sequences to which they belong.
//
// Each sequence has rows of tokens that it knows, and behind the last of them rows of drafts. A draft counts when the
// sequence's own choice turns out to be its token. The KV entries of other drafts are computed anew by later steps. A
// recurrent state that has seen a wrong draft is taken back to where it was before the drafts. Later steps then compute
// the accepted drafts again, too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "penstock/engine/sequence.h"
#include "penstock/memory/kv_window.h"
#include "penstock/ops/operations.h"

namespace penstock {

class StepBatch {
 public:
  RowBatch& rows() { return rows_; }
  const RowBatch& rows() const { return rows_; }
  // The statuses of the rows after a pass: [num_rows].
  std::vector<absl::Status>& statuses() { return statuses_; }
  Sequence& sequence_of(int64_t row) const { return *sequence_of_row_[row]; }
  bool is_draft(int64_t row) const { return is_draft_[row] != 0; }
  int64_t num_drafts() const;
  // Returns the rows of sequences that are not through with their prompts.
  int64_t num_prompt_rows() const;
  // Whether the sequence's choices so far make the row one of its own, the last of those that it knows. Only then do
  // the row's logits tell what follows. Drafts behind a row that failed never are.
  bool IsLastKnown(int64_t row) const;

  void Clear();
  // Adds the next rows of a sequence, and behind them its drafts. REQUIRES: with drafts, all its tokens have rows.
  void Add(Sequence& sequence, int64_t num_rows, std::span<const TokenId> drafts, const KvWindow& window);

  // These follow a pass. Says that the KV entries of known rows exist. Sequences advance before tokens are appended.
  void AdvanceKnown();
  // Fails the sequences of rows that could not be computed. Drafts that could not be are not accepted.
  void FailBroken();
  // Says the same as AdvanceKnown() of the drafts that turned out to be right, unless they must be computed again.
  // Returns their number.
  int64_t AcceptDrafts();
  // Tells the KV cache which entries exist.
  void KeepEntries();

 private:
  RowBatch rows_;
  std::vector<Sequence*> sequence_of_row_;  // [num_rows]
  std::vector<char> is_draft_;              // [num_rows]
  std::vector<absl::Status> statuses_;      // [num_rows]
};

}  // namespace penstock
