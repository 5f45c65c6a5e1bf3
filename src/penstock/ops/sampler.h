// Samples a token from logits: penalties, temperature, filters, and a counter-based random stream.
//
// Biases and bans come first, then penalties, temperature, top-k, top-p and min-p, as in vLLM and in Hugging Face
// transformers. Random numbers depend only on the seed and the index of the generated token. So a request's tokens do
// not depend on batching, nor on the point at which a job was interrupted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "penstock/engine.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock {

// Returns the `counter`-th number of the random stream `seed`, uniform in [0, 1).
double CounterUniform(uint64_t seed, uint64_t counter);

// Returns kInput, naming the field, when a value is out of its range (engine.h gives the ranges).
absl::Status ValidateSampling(const SamplingParams& sampling);

// Whether a field changes logits before the temperature.
bool ChangesLogits(const SamplingParams& sampling);
// Whether only the token with the largest logit is wanted.
inline bool IsArgMax(const SamplingParams& sampling) {
  return sampling.temperature == 0 && sampling.logprobs < 0 && !ChangesLogits(sampling);
}

// The tokens of a request so far, as its fields need them.
class TokenHistory {
 public:
  explicit TokenHistory(const SamplingParams& sampling)
      : keeps_seen_(sampling.repetition_penalty != 1.0),
        keeps_counts_(sampling.presence_penalty != 0 || sampling.frequency_penalty != 0) {}
  void AddPrompt(std::span<const TokenId> ids) {
    if (keeps_seen_) seen_.insert(ids.begin(), ids.end());
  }
  void AddGenerated(TokenId id) {
    if (keeps_seen_) seen_.insert(id);
    if (keeps_counts_) ++counts_[id];
  }
  // The tokens of the prompt and the generated ones; kept only for the repetition penalty.
  const absl::flat_hash_set<TokenId>& seen() const { return seen_; }
  // How often each token was generated; kept only for the presence and frequency penalties.
  const absl::flat_hash_map<TokenId, int32_t>& counts() const { return counts_; }

 private:
  bool keeps_seen_;
  bool keeps_counts_;
  absl::flat_hash_set<TokenId> seen_;
  absl::flat_hash_map<TokenId, int32_t> counts_;
};

// The parts of a request that a sampler needs besides its parameters.
struct SamplingContext {
  const TokenHistory& history;
  std::span<const TokenId> generated = {};
  std::span<const TokenId> eos_ids = {};  // forbidden before min_tokens
};

// Chooses tokens. Holds the scratch memory of one worker, which has room for the whole vocabulary.
class Sampler {
 public:
  Sampler(const kernels::KernelTable& kernels, int64_t vocab_size);
  static uint64_t ScratchBytes(int64_t vocab_size);

  // Chooses a token. Changes `logits` [vocab_size]. Returns -1 when a logit is NaN or +inf, or none is finite.
  TokenId Sample(std::span<float> logits, const SamplingParams& sampling, const SamplingContext& context);

  // Returns the log-probability of each token in `chosen`, and with it those of the `num_top` most likely tokens: NaN
  // when the logits are broken. `logits` are as the model gave them.
  std::vector<TokenLogprobs> Logprobs(std::span<const float> logits, std::span<const TokenId> chosen, int num_top);

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

  // Applies biases, bans and penalties.
  static void ChangeLogits(std::span<float> logits, const SamplingParams& sampling, const SamplingContext& context);
  // Returns the first of the largest logits, or -1 as Sample(). Fills block_maxima_.
  TokenId ArgMax(std::span<const float> logits);
  // Sets candidates_ to the top_k most likely tokens, in the order of their ids.
  void TakeTopK(std::span<const float> logits, size_t top_k);
  // Calls visit(first id, end) for each block whose maximum (of logits, later of weights) is at least this.
  template <typename Visit>
  void VisitBlocks(float least, const Visit& visit) const;
  // Sets candidates_ to the tokens with at least this weight. REQUIRES: weights_ are set, like in all that follow.
  void TakeHeavy(std::span<const float> logits, float min_weight);
  // Returns the least likely token of the smallest set of the most likely candidates whose weights reach `least`. An
  // empty candidates_ stands for all tokens of which no set with less than `rest` together is needed.
  Candidate LastOfTopP(std::span<const float> logits, double least, double rest);
  // Returns the token among on_border_ with which the weights, from the most likely on, reach `least`. More likely
  // tokens weigh `kept`.
  Candidate LastToReach(double least, double kept);
  // Draws from the tokens that are at least as likely as `last` and weigh at least this. Changes block_sums_.
  TokenId DrawUpTo(const Candidate& last, std::span<const float> logits, float min_weight, double uniform);
  TokenId DrawFromCandidates(double uniform) const;
  TokenId DrawFromAll(double uniform, double total) const;

  const kernels::KernelTable* kernels_;
  std::vector<float> weights_;  // [vocab_size]
  std::vector<float> block_sums_, block_maxima_, some_maxima_;
  // Neighbouring tokens often have the same bucket. With several sums their additions do not wait for each other.
  static constexpr size_t kBucketParts = 4;
  using BucketSums = std::array<float, kBucketParts>;
  std::vector<BucketSums> bucket_sums_;
  std::vector<Candidate> candidates_;  // in the order of their ids
  std::vector<Candidate> on_border_;
};

// Returns the logarithm of softmax(logits)[id], at least -9999.
double LogProbability(std::span<const float> logits, TokenId id);

}  // namespace penstock
