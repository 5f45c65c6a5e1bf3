#include "penstock/ops/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr double kMinLogprob = -9999.0;  // written instead of -inf, which JSON cannot hold

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

struct LogSum {
  double max = 0;
  double log_sum = 0;  // log of the sum of exp(logit - max)
};

LogSum LogSumOf(std::span<const float> logits) {
  LogSum result;
  result.max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - result.max);
  result.log_sum = std::log(sum);
  return result;
}

double Clipped(double logprob) { return logprob > kMinLogprob ? logprob : kMinLogprob; }

// NaN and +inf come from broken weights. -inf marks a token that cannot be chosen.
bool IsBroken(float logit) { return !(logit < std::numeric_limits<float>::infinity()); }

TokenId ArgMax(std::span<const float> logits) {
  TokenId best = -1;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (IsBroken(logits[id])) return -1;
    if (logits[id] > best_logit) {
      best = static_cast<TokenId>(id);
      best_logit = logits[id];
    }
  }
  return best;
}

}  // namespace

double CounterUniform(uint64_t seed, uint64_t counter) {
  const uint64_t bits = Mix(Mix(seed + 0x9E3779B97F4A7C15ull) + (counter + 1) * 0x9E3779B97F4A7C15ull);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

absl::Status ValidateSampling(const SamplingParams& s) {
  const auto range = [](bool good, std::string_view field, std::string_view expected, auto found) {
    return good ? absl::OkStatus() : InputError("{}: expected {}, found {}", field, expected, found);
  };
  PENSTOCK_RETURN_IF_ERROR(range(s.temperature >= 0 && s.temperature <= kMaxTemperature, "temperature",
                                 fmt::format("0 to {}", kMaxTemperature), s.temperature));
  PENSTOCK_RETURN_IF_ERROR(range(s.top_k >= 0 && s.top_k <= kMaxVocabSize, "top_k", "0 (off) or more", s.top_k));
  PENSTOCK_RETURN_IF_ERROR(range(s.top_p > 0 && s.top_p <= 1, "top_p", "above 0 and at most 1", s.top_p));
  PENSTOCK_RETURN_IF_ERROR(range(s.min_p >= 0 && s.min_p <= 1, "min_p", "0 to 1", s.min_p));
  PENSTOCK_RETURN_IF_ERROR(
      range(s.repetition_penalty >= kMinRepetitionPenalty && s.repetition_penalty <= kMaxRepetitionPenalty,
            "repetition_penalty", fmt::format("{} to {}", kMinRepetitionPenalty, kMaxRepetitionPenalty),
            s.repetition_penalty));
  PENSTOCK_RETURN_IF_ERROR(
      range(s.max_tokens >= 1 && s.max_tokens <= kMaxContext, "max_tokens", "at least 1", s.max_tokens));
  PENSTOCK_RETURN_IF_ERROR(range(s.logprobs >= -1 && s.logprobs <= kMaxLogprobs, "logprobs",
                                 fmt::format("0 to {}", kMaxLogprobs), s.logprobs));
  PENSTOCK_RETURN_IF_ERROR(range(s.stop.size() <= static_cast<size_t>(kMaxStopTexts), "stop",
                                 fmt::format("at most {} texts", kMaxStopTexts), s.stop.size()));
  for (const std::string& stop : s.stop) {
    PENSTOCK_RETURN_IF_ERROR(range(!stop.empty() && stop.size() <= kMaxStopTextBytes && IsUtf8(stop), "stop",
                                   fmt::format("UTF-8 texts of 1 to {} bytes", kMaxStopTextBytes), stop.substr(0, 40)));
  }
  return absl::OkStatus();
}

double LogProbability(std::span<const float> logits, TokenId id) {
  const LogSum sum = LogSumOf(logits);
  return Clipped(static_cast<double>(logits[id]) - sum.max - sum.log_sum);
}

Sampler::Sampler(int64_t vocab_size) { candidates_.reserve(vocab_size); }

TokenId Sampler::Sample(std::span<float> logits, const SamplingParams& sampling,
                        const absl::flat_hash_set<TokenId>& seen, uint64_t token_idx) {
  if (sampling.repetition_penalty != 1.0) {
    const float penalty = static_cast<float>(sampling.repetition_penalty);
    for (const TokenId id : seen) logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
  }
  const TokenId best = ArgMax(logits);
  if (sampling.temperature == 0 || best < 0) return best;
  // Logits are taken relative to the largest, so that no temperature overflows. A tiny one leaves only the best token.
  const double max_logit = logits[best];
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = static_cast<float>((static_cast<double>(logits[id]) - max_logit) / sampling.temperature);
    if (logit > -std::numeric_limits<float>::infinity()) candidates_.push_back({logit, static_cast<TokenId>(id)});
  }
  return SampleFiltered(sampling, CounterUniform(sampling.seed, token_idx));
}

TokenId Sampler::SampleFiltered(const SamplingParams& sampling, double uniform) {
  if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + (sampling.top_k - 1), candidates_.end(), MoreLikely());
    candidates_.resize(sampling.top_k);
  }
  const float max_logit = std::min_element(candidates_.begin(), candidates_.end(), MoreLikely())->logit;
  const auto weight = [&](const Candidate& c) { return std::exp(static_cast<double>(c.logit) - max_logit); };
  if (sampling.top_p < 1) {
    // Keeps the smallest set of the most likely tokens whose probabilities reach top_p. They are popped from a heap,
    // because the set is nearly always much smaller than the vocabulary.
    double total = 0;
    for (const Candidate& c : candidates_) total += weight(c);
    const auto less_likely = [](const Candidate& a, const Candidate& b) { return MoreLikely()(b, a); };
    std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
    double kept = 0;
    auto heap_end = candidates_.end();
    while (heap_end != candidates_.begin() && kept < sampling.top_p * total) {
      std::pop_heap(candidates_.begin(), heap_end, less_likely);
      --heap_end;
      kept += weight(*heap_end);
    }
    candidates_.erase(candidates_.begin(), heap_end);
  }
  if (sampling.min_p > 0) {
    std::erase_if(candidates_, [&](const Candidate& c) { return weight(c) < sampling.min_p; });
  }
  // Sorts by token, so that the order of the sum does not depend on the filters.
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (const Candidate& c : candidates_) total += weight(c);
  double target = uniform * total;
  for (const Candidate& c : candidates_) {
    target -= weight(c);
    if (target < 0) return c.id;
  }
  return candidates_.back().id;
}

TokenLogprobs Sampler::Logprobs(std::span<const float> logits, TokenId chosen, int num_top) {
  const LogSum sum = LogSumOf(logits);
  const auto logprob = [&](TokenId id) { return Clipped(static_cast<double>(logits[id]) - sum.max - sum.log_sum); };
  TokenLogprobs result{.chosen = {chosen, logprob(chosen)}, .top = {}};
  if (num_top <= 0) return result;
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) candidates_.push_back({logits[id], static_cast<TokenId>(id)});
  const size_t count = std::min(candidates_.size(), static_cast<size_t>(num_top));
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(count), candidates_.end(),
                    MoreLikely());
  for (size_t i = 0; i < count; ++i) result.top.push_back({candidates_[i].id, logprob(candidates_[i].id)});
  return result;
}

}  // namespace penstock
