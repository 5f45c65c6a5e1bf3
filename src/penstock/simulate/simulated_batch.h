// Simulates an engine's requests without tokens: they wait, get a place and KV pages, are prefilled and decoded. The
// tokens with which prompts begin in common are computed once, and lie in the KV cache once.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/ops/operations.h"
#include "penstock/plan/policy.h"
#include "penstock/plan/workload.h"
#include "penstock/schedule/pass_rows.h"

namespace penstock {

// The rows that a step computes.
struct StepSize {
  int64_t num_decoding = 0;  // sequences that decode, one row each
  int64_t num_prompt_rows = 0;
  bool operator==(const StepSize&) const = default;
};

class SimulatedBatch {
 public:
  // `workload` and `policy` must outlive the batch. A workload without a number of requests has one for each place.
  // A request takes `num_state_pages` for its recurrent state, besides those of its positions. With `has_encoder`, an
  // encoder reads the prompts, and the decoder begins with a token of its own.
  SimulatedBatch(const Workload& workload, const ChosenPolicy& policy, int64_t num_kv_pages, int64_t num_state_pages,
                 bool has_encoder);

  int64_t num_requests() const { return num_requests_; }
  // Returns the prompt tokens so far that were not computed, because an earlier request had computed them.
  int64_t num_skipped_tokens() const { return num_skipped_tokens_; }
  bool idle() const { return running_.empty() && num_admitted_ == num_requests_; }

  // A step calls these in this order. Fill() is optional.
  void Admit();
  StepSize ChooseRows();
  std::vector<RowRange> Fill(RowBatch& batch) const;  // returns the micro-batches
  int64_t Advance();                                  // returns the number of tokens that the step generated

 private:
  struct Running {
    uint32_t id = 0;
    int64_t num_prompt = 0;  // with an encoder, also the token with which the decoder begins
    int64_t num_shared = 0;  // first tokens that another request computes
    int64_t num_pages = 0;   // of its own
    int64_t num_generated = 0;
    SequenceState state = {};
  };

  const Workload& workload_;
  const ChosenPolicy& policy_;
  const PassLimits limits_;
  const int64_t num_state_pages_;
  const bool has_encoder_;
  const int64_t num_requests_;
  int64_t num_admitted_ = 0;
  int64_t num_skipped_tokens_ = 0;
  int64_t num_shared_computed_ = 0;  // of the common tokens
  int64_t free_pages_;
  std::vector<Running> running_;
  std::vector<SequenceRows> parts_;  // rows of the present step
  bool next_encodes_ = false;
};

}  // namespace penstock
