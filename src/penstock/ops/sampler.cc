#include "penstock/ops/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

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

double Clipped(double logprob) { return logprob < kMinLogprob ? kMinLogprob : logprob; }  // NaN stays

// NaN and +inf come from broken weights. -inf marks a token that cannot be chosen.
bool IsBroken(float logit) { return !(logit < std::numeric_limits<float>::infinity()); }

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// Weights from 0 to 1 have buckets by their exponents and the first five bits of their fractions.
constexpr int kBucketShift = 18;
size_t BucketOf(float weight) { return std::bit_cast<uint32_t>(weight) >> kBucketShift; }
float LeastOf(size_t bucket) { return std::bit_cast<float>(static_cast<uint32_t>(bucket) << kBucketShift); }

typedef float Floats8 __attribute__((vector_size(32)));
typedef int32_t Ints8 __attribute__((vector_size(32)));

// Returns the sum of the weights that are at least `least_weight` and have a logit of at least `least`.
float SumOfKept(const float* logits, const float* weights, size_t count, float least, float least_weight) {
  Floats8 sums = {};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    Floats8 logit, weight;
    std::memcpy(&logit, logits + i, sizeof(logit));
    std::memcpy(&weight, weights + i, sizeof(weight));
    sums += (Floats8)((Ints8)weight & (logit >= least) & (weight >= least_weight));
  }
  float sum = 0;
  for (int lane = 0; lane < 8; ++lane) sum += sums[lane];
  for (; i < count; ++i) sum += logits[i] >= least && weights[i] >= least_weight ? weights[i] : 0.0f;
  return sum;
}

// With a temperature below this, only the largest logits have a chance. Dividing by less would overflow.
constexpr double kMinTemperature = 1e-30;

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
  PENSTOCK_RETURN_IF_ERROR(range(std::abs(s.presence_penalty) <= kMaxPenalty, "presence_penalty",
                                 fmt::format("{} to {}", -kMaxPenalty, kMaxPenalty), s.presence_penalty));
  PENSTOCK_RETURN_IF_ERROR(range(std::abs(s.frequency_penalty) <= kMaxPenalty, "frequency_penalty",
                                 fmt::format("{} to {}", -kMaxPenalty, kMaxPenalty), s.frequency_penalty));
  for (const auto& [id, bias] : s.logit_bias) {
    PENSTOCK_RETURN_IF_ERROR(range(std::abs(bias) <= kMaxLogitBias, "logit_bias",
                                   fmt::format("{} to {}", -kMaxLogitBias, kMaxLogitBias), bias));
  }
  for (const std::vector<TokenId>& word : s.bad_words) {
    PENSTOCK_RETURN_IF_ERROR(range(!word.empty(), "bad_words", "sequences of at least one token", word.size()));
  }
  PENSTOCK_RETURN_IF_ERROR(
      range(s.min_tokens >= 0 && s.min_tokens <= s.max_tokens, "min_tokens", "0 to max_tokens", s.min_tokens));
  PENSTOCK_RETURN_IF_ERROR(range(s.max_tokens >= (s.prompt_logprobs >= 0 ? 0 : 1) && s.max_tokens <= kMaxContext,
                                 "max_tokens", s.prompt_logprobs >= 0 ? "at least 0" : "at least 1", s.max_tokens));
  PENSTOCK_RETURN_IF_ERROR(range(s.prompt_logprobs >= -1 && s.prompt_logprobs <= kMaxLogprobs, "prompt_logprobs",
                                 fmt::format("0 to {}", kMaxLogprobs), s.prompt_logprobs));
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

bool ChangesLogits(const SamplingParams& s) {
  return s.repetition_penalty != 1.0 || s.presence_penalty != 0 || s.frequency_penalty != 0 || s.min_tokens > 0 ||
         !s.logit_bias.empty() || !s.bad_words.empty();
}

Sampler::Sampler(const kernels::KernelTable& kernels, int64_t vocab_size)
    : kernels_(&kernels),
      weights_(static_cast<size_t>(vocab_size)),
      block_sums_((weights_.size() + kernels::kSoftmaxBlock - 1) / kernels::kSoftmaxBlock),
      block_maxima_(block_sums_.size()),
      bucket_sums_(BucketOf(1) + 1) {
  some_maxima_.reserve(block_sums_.size());
  candidates_.reserve(weights_.size());
  on_border_.reserve(weights_.size());
}

uint64_t Sampler::ScratchBytes(int64_t vocab_size) {
  const int64_t num_blocks = (vocab_size + kernels::kSoftmaxBlock - 1) / kernels::kSoftmaxBlock;
  return static_cast<uint64_t>(vocab_size) * (2 * sizeof(Candidate) + sizeof(float)) +
         static_cast<uint64_t>(num_blocks) * 3 * sizeof(float) + (BucketOf(1) + 1) * sizeof(BucketSums);
}

void Sampler::ChangeLogits(std::span<float> logits, const SamplingParams& sampling, const SamplingContext& context) {
  for (const auto& [id, bias] : sampling.logit_bias) logits[id] += bias;
  if (std::ssize(context.generated) < sampling.min_tokens) {
    for (const TokenId id : context.eos_ids) logits[id] = kMinusInfinity;
    for (const TokenId id : sampling.stop_token_ids) logits[id] = kMinusInfinity;
  }
  for (const std::vector<TokenId>& word : sampling.bad_words) {
    const auto begun = std::span(word).first(word.size() - 1);
    const size_t num_generated = context.generated.size();
    if (begun.size() > num_generated) continue;
    if (std::ranges::equal(begun, context.generated.last(begun.size()))) logits[word.back()] = kMinusInfinity;
  }
  if (sampling.repetition_penalty != 1.0) {
    const float penalty = static_cast<float>(sampling.repetition_penalty);
    for (const TokenId id : context.history.seen()) {
      logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
  }
  for (const auto& [id, count] : context.history.counts()) {
    logits[id] -= static_cast<float>(sampling.presence_penalty + sampling.frequency_penalty * count);
  }
}

TokenId Sampler::ArgMax(std::span<const float> logits) {
  const bool all_finite = kernels_->block_maxima(logits.data(), std::ssize(logits), block_maxima_.data());
  if (!all_finite) {
    for (size_t block = 0; block < block_maxima_.size(); ++block) {
      const size_t first = block * kernels::kSoftmaxBlock;
      float max = kMinusInfinity;
      for (const float logit : logits.subspan(first, std::min<size_t>(kernels::kSoftmaxBlock, logits.size() - first))) {
        if (IsBroken(logit)) return -1;
        max = std::max(max, logit);
      }
      block_maxima_[block] = max;
    }
  }
  const auto best = std::ranges::max_element(block_maxima_);
  if (*best == kMinusInfinity) return -1;
  const auto first = logits.begin() + (best - block_maxima_.begin()) * kernels::kSoftmaxBlock;
  return static_cast<TokenId>(std::find(first, logits.end(), *best) - logits.begin());
}

TokenId Sampler::Sample(std::span<float> logits, const SamplingParams& sampling, const SamplingContext& context) {
  if (ChangesLogits(sampling)) ChangeLogits(logits, sampling, context);
  const TokenId best = ArgMax(logits);
  if (sampling.temperature == 0 || best < 0) return best;
  const double uniform = CounterUniform(sampling.seed, static_cast<uint64_t>(context.generated.size()));
  candidates_.clear();
  const bool takes_some = sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < logits.size();
  if (takes_some) TakeTopK(logits, static_cast<size_t>(sampling.top_k));
  // Logits are taken relative to the largest, so that no temperature overflows.
  kernels_->softmax_blocks({.logits = logits.data(),
                            .count = std::ssize(logits),
                            .max = logits[best],
                            .scale = static_cast<float>(1 / std::max(sampling.temperature, kMinTemperature)),
                            .weights = weights_.data(),
                            .block_sums = block_sums_.data(),
                            .block_maxima = block_maxima_.data()});
  double total = 0;
  if (takes_some) {
    for (const Candidate& c : candidates_) total += weights_[c.id];
  } else {
    for (const float sum : block_sums_) total += sum;
  }
  if (sampling.top_p < 1) {
    const Candidate last = LastOfTopP(logits, sampling.top_p * total, (1 - sampling.top_p) * total);
    if (!takes_some) return DrawUpTo(last, logits, static_cast<float>(sampling.min_p), uniform);
    std::erase_if(candidates_, [&](const Candidate& c) { return MoreLikely()(last, c); });
  } else if (sampling.min_p > 0 && !takes_some) {
    TakeHeavy(logits, static_cast<float>(sampling.min_p));
  } else if (!takes_some) {
    return DrawFromAll(uniform, total);
  }
  // The largest weight is 1.
  std::erase_if(candidates_, [&](const Candidate& c) { return weights_[c.id] < sampling.min_p; });
  return DrawFromCandidates(uniform);
}

template <typename Visit>
void Sampler::VisitBlocks(float least, const Visit& visit) const {
  for (size_t block = 0; block < block_maxima_.size(); ++block) {
    if (block_maxima_[block] < least) continue;
    const size_t first = block * kernels::kSoftmaxBlock;
    visit(first, std::min(first + kernels::kSoftmaxBlock, weights_.size()));
  }
}

void Sampler::TakeTopK(std::span<const float> logits, size_t top_k) {
  // At least top_k logits are as large as the top_k-th largest maximum of a block.
  float least = kMinusInfinity;
  if (top_k <= block_maxima_.size()) {
    some_maxima_ = block_maxima_;
    const auto nth = some_maxima_.begin() + static_cast<int64_t>(top_k) - 1;
    std::nth_element(some_maxima_.begin(), nth, some_maxima_.end(), std::greater<>());
    least = *nth;
  }
  VisitBlocks(least, [&](size_t first, size_t end) {
    for (size_t id = first; id < end; ++id) {
      if (logits[id] >= least && logits[id] > kMinusInfinity) {
        candidates_.push_back({logits[id], static_cast<TokenId>(id)});
      }
    }
  });
  if (top_k < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(top_k) - 1, candidates_.end(),
                     MoreLikely());
    candidates_.resize(top_k);
    std::ranges::sort(candidates_, {}, &Candidate::id);
  }
}

void Sampler::TakeHeavy(std::span<const float> logits, float min_weight) {
  VisitBlocks(min_weight, [&](size_t first, size_t end) {
    for (size_t id = first; id < end; ++id) {
      if (weights_[id] >= min_weight) candidates_.push_back({logits[id], static_cast<TokenId>(id)});
    }
  });
}

// A histogram shows in which bucket the set ends, so only the tokens of that bucket are compared.
Sampler::Candidate Sampler::LastOfTopP(std::span<const float> logits, double least, double rest) {
  const bool takes_all = candidates_.empty();
  // Tokens that are lighter than this weigh less than `rest`, all together. (0.999: the sums are rounded.)
  const auto min_weight = takes_all ? static_cast<float>(0.999 * rest / static_cast<double>(logits.size())) : 0.0f;
  const size_t first_bucket = BucketOf(min_weight);
  std::fill(bucket_sums_.begin() + static_cast<int64_t>(first_bucket), bucket_sums_.end(), BucketSums{});
  const auto add = [&](size_t id) { bucket_sums_[BucketOf(weights_[id])][id % kBucketParts] += weights_[id]; };
  if (takes_all) {
    // Lighter tokens are added, too: leaving them out would take longer. Their buckets are not looked at.
    VisitBlocks(min_weight, [&](size_t first, size_t end) {
      for (size_t id = first; id < end; ++id) add(id);
    });
  } else {
    for (const Candidate& c : candidates_) add(c.id);
  }
  double kept = 0;  // weight of the buckets above `border`
  size_t border = bucket_sums_.size() - 1;
  const auto sum_of = [&](size_t bucket) {
    return std::accumulate(bucket_sums_[bucket].begin(), bucket_sums_[bucket].end(), 0.0f);
  };
  for (; border > first_bucket && kept + sum_of(border) < least; --border) kept += sum_of(border);

  on_border_.clear();
  const auto collect = [&](const Candidate& c) {
    if (BucketOf(weights_[c.id]) == border) on_border_.push_back(c);
  };
  if (takes_all) {
    VisitBlocks(LeastOf(border), [&](size_t first, size_t end) {
      for (size_t id = first; id < end; ++id) collect({logits[id], static_cast<TokenId>(id)});
    });
  } else {
    std::ranges::for_each(candidates_, collect);
  }
  return LastToReach(least, kept);
}

// Halves the range that contains the token, so the tokens need not be sorted.
Sampler::Candidate Sampler::LastToReach(double least, double kept) {
  constexpr int64_t kFewTokens = 16;
  auto begin = on_border_.begin(), end = on_border_.end();
  while (end - begin > kFewTokens) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, MoreLikely());
    double with_these = kept;
    for (auto c = begin; c != middle; ++c) with_these += weights_[c->id];
    if (with_these < least) {
      kept = with_these;
      begin = middle;
    } else {
      end = middle;
    }
  }
  std::sort(begin, end, MoreLikely());
  auto last = begin;
  for (kept += weights_[last->id]; kept < least && last + 1 != end; kept += weights_[last->id]) ++last;
  return *last;
}

TokenId Sampler::DrawFromCandidates(double uniform) const {
  double total = 0;
  for (const Candidate& c : candidates_) total += weights_[c.id];
  double target = uniform * total;
  for (const Candidate& c : candidates_) {
    target -= weights_[c.id];
    if (target < 0) return c.id;
  }
  return candidates_.back().id;
}

TokenId Sampler::DrawUpTo(const Candidate& last, std::span<const float> logits, float min_weight, double uniform) {
  // Equal logits are kept up to last.id.
  const float least_after = std::nextafter(last.logit, std::numeric_limits<float>::infinity());
  const auto least_of = [&](size_t id) { return static_cast<TokenId>(id) <= last.id ? last.logit : least_after; };
  double total = 0;
  std::ranges::fill(block_sums_, 0.0f);
  VisitBlocks(std::max(min_weight, weights_[last.id]), [&](size_t first, size_t end) {
    float& sum = block_sums_[first / kernels::kSoftmaxBlock];
    for (size_t id = first; id < end;) {
      // A part ends at last.id, where the least logit changes.
      const auto next = static_cast<size_t>(last.id) + 1;
      const size_t part_end = id < next ? std::min(next, end) : end;
      sum += SumOfKept(&logits[id], &weights_[id], part_end - id, least_of(id), min_weight);
      id = part_end;
    }
    total += sum;
  });
  double target = uniform * total;
  TokenId chosen = last.id;  // if the sums were rounded up
  for (size_t block = 0; block < block_sums_.size(); ++block) {
    if (block_sums_[block] <= 0) continue;
    if (target >= block_sums_[block]) {
      target -= block_sums_[block];
      continue;
    }
    const size_t first = block * kernels::kSoftmaxBlock;
    for (size_t id = first; id < std::min(first + kernels::kSoftmaxBlock, weights_.size()); ++id) {
      if (logits[id] < least_of(id) || weights_[id] < min_weight || weights_[id] <= 0) continue;
      chosen = static_cast<TokenId>(id);
      target -= weights_[id];
      if (target < 0) return chosen;
    }
    return chosen;
  }
  return chosen;
}

TokenId Sampler::DrawFromAll(double uniform, double total) const {
  double target = uniform * total;
  TokenId last = 0;  // with a weight
  for (size_t block = 0; block < block_sums_.size(); ++block) {
    if (block_maxima_[block] <= 0) continue;
    const bool is_here = target < block_sums_[block];
    if (!is_here) {
      target -= block_sums_[block];
      if (block + 1 < block_sums_.size()) continue;
    }
    const size_t first = block * kernels::kSoftmaxBlock,
                 end = std::min(first + kernels::kSoftmaxBlock, weights_.size());
    for (size_t id = first; id < end; ++id) {
      if (weights_[id] <= 0) continue;
      last = static_cast<TokenId>(id);
      target -= weights_[id];
      if (is_here && target < 0) return last;
    }
    if (is_here) return last;  // the block's sum was rounded up
  }
  return last;
}

std::vector<TokenLogprobs> Sampler::Logprobs(std::span<const float> logits, std::span<const TokenId> chosen,
                                             int num_top) {
  const LogSum sum = LogSumOf(logits);
  const auto logprob = [&](TokenId id) { return Clipped(static_cast<double>(logits[id]) - sum.max - sum.log_sum); };
  std::vector<TokenLogprob> top;
  if (num_top > 0 && ArgMax(logits) >= 0) {
    candidates_.clear();
    TakeTopK(logits, static_cast<size_t>(num_top));
    std::ranges::sort(candidates_, MoreLikely());
    for (const Candidate& candidate : candidates_) top.push_back({candidate.id, logprob(candidate.id)});
  }
  std::vector<TokenLogprobs> results;
  for (const TokenId id : chosen) results.push_back({.chosen = {id, logprob(id)}, .top = top});
  return results;
}

}  // namespace penstock
