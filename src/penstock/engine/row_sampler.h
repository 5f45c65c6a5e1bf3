// Chooses the next tokens of sequences from the logits of their rows, and scores the tokens of prompts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/base/thread_pool.h"
#include "penstock/engine/sequence.h"
#include "penstock/engine/step_batch.h"
#include "penstock/kernels/kernel_table.h"
#include "penstock/model/model_config.h"
#include "penstock/ops/operations.h"
#include "penstock/ops/sampler.h"
#include "penstock/schedule/pass.h"

namespace penstock {

// The model's weights hold NaN or infinity.
absl::Status BrokenLogits();

class RowSampler {
 public:
  // `random_answers` replaces choices by uniformly random tokens, for measurements. The pool must outlive the sampler.
  RowSampler(const kernels::KernelTable& kernels, ThreadPool& pool, const ModelConfig& config, bool random_answers);

  // Returns whether each row needs nothing but its most likely token.
  bool WantsBestOnly(const StepBatch& batch) const;

  // Gives each sequence the tokens, or the log-probabilities, of its rows in `result`; fails sequences with broken
  // logits. Drafts that were wrong give nothing. Returns the number of generated tokens.
  int64_t Sample(const RowLogits& result, const StepBatch& batch);

 private:
  struct Choice {
    TokenId token_id = -1;  // -1: `status` says why there is none
    absl::Status status;
    TokenLogprobs logprobs;
    std::vector<TokenLogprobs> of_prompt;  // of Sequence::scored_at(); then no token is chosen
  };
  // Excludes the tokens that the format does not allow.
  absl::Status MaskLogits(const Sequence& sequence, std::span<float> logits) const;
  Choice Choose(const Sequence& sequence, int64_t pos, std::span<float> logits, Sampler& sampler) const;
  int64_t Take(Sequence& sequence, int64_t pos, Choice choice) const;

  ThreadPool* pool_;
  const ModelConfig* config_;
  bool random_answers_;
  std::vector<Sampler> samplers_;  // one per worker
};

}  // namespace penstock
