// Samples a token from logits: penalties, temperature, filters, and a counter-based random stream.
//
// The filters are applied in the order of Hugging Face transformers: repetition penalty, temperature, top-k, top-p,
// min-p. Random numbers depend only on the seed and the index of the generated token. So a request's tokens do not
// depend on batching, nor on the point at which a job was interrupted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "penstock/engine.h"

namespace penstock {

// Returns the `counter`-th number of the random stream `seed`, uniform in [0, 1).
double CounterUniform(uint64_t seed, uint64_t counter);

// Returns kInput, naming the field, when a value is out of its range (engine.h gives the ranges).
absl::Status ValidateSampling(const SamplingParams& sampling);

// Whether only the token with the largest logit is wanted.
inline bool IsArgMax(const SamplingParams& sampling) {
  return sampling.temperature == 0 && sampling.repetition_penalty == 1.0 && sampling.logprobs < 0;
}

// Chooses tokens. Holds the scratch memory of one worker, which has room for the whole vocabulary.
class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);
  static uint64_t ScratchBytes(int64_t vocab_size) { return static_cast<uint64_t>(vocab_size) * sizeof(Candidate); }

  // Chooses a token. Changes `logits` [vocab_size]. `seen` holds the ids of the prompt and of generated tokens, for the
  // repetition penalty. Returns -1 when a logit is NaN or +inf, or none is finite.
  TokenId Sample(std::span<float> logits, const SamplingParams& sampling, const absl::flat_hash_set<TokenId>& seen,
                 uint64_t token_idx);

  // Returns the log-probabilities of `chosen` and of the `num_top` most likely tokens. `logits` are as the model gave
  // them.
  TokenLogprobs Logprobs(std::span<const float> logits, TokenId chosen, int num_top);

 private:
  struct Candidate {
    float logit;
    TokenId id;
  };
  struct MoreLikely {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
  };

  TokenId SampleFiltered(const SamplingParams& sampling, double uniform);

  std::vector<Candidate> candidates_;
};

// Returns the logarithm of softmax(logits)[id], at least -9999.
double LogProbability(std::span<const float> logits, TokenId id);

}  // namespace penstock
