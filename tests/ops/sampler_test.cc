// Proves that sampling follows the filters' definitions, that its random stream depends on seed and counter alone, and
// that parameters out of range are refused by name.
#include "penstock/ops/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "penstock/kernels/kernels.h"
#include "tests/effort.h"

namespace penstock {
namespace {

const kernels::KernelTable& Kernels() { return kernels::KernelsFor(kernels::BestIsa()); }

// Draws the token behind the generated ones. `prompt` counts for the repetition penalty.
TokenId DrawNext(std::vector<float> logits, const SamplingParams& sampling, const std::vector<TokenId>& generated,
                 const std::vector<TokenId>& prompt = {}) {
  Sampler sampler(Kernels(), static_cast<int64_t>(logits.size()));
  TokenHistory history(sampling);
  history.AddPrompt(prompt);
  for (const TokenId id : generated) history.AddGenerated(id);
  const TokenId eos_ids[] = {0};
  return sampler.Sample(logits, sampling, {.history = history, .generated = generated, .eos_ids = eos_ids});
}

TokenId Draw(std::vector<float> logits, const SamplingParams& sampling, uint64_t counter,
             const std::vector<TokenId>& prompt = {}) {
  return DrawNext(std::move(logits), sampling, std::vector<TokenId>(counter), prompt);
}

std::vector<double> Frequencies(const std::vector<float>& logits, const SamplingParams& sampling, int num_draws) {
  std::vector<double> frequencies(logits.size());
  Sampler sampler(Kernels(), static_cast<int64_t>(logits.size()));
  const TokenHistory history(sampling);
  std::vector<TokenId> generated;
  for (int i = 0; i < num_draws; ++i) {
    std::vector<float> changed = logits;
    frequencies[sampler.Sample(changed, sampling, {.history = history, .generated = generated})] += 1.0 / num_draws;
    generated.push_back(0);
  }
  return frequencies;
}

TEST(Sampler, UniformStreamIsUniformAndOfItsCounterAlone) {
  double sum = 0, sum_squares = 0;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const double u = CounterUniform(7, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    sum_squares += u * u;
  }
  EXPECT_NEAR(sum / 1e5, 0.5, 0.005);
  EXPECT_NEAR(sum_squares / 1e5, 1.0 / 3, 0.005);
  EXPECT_EQ(CounterUniform(7, 3), CounterUniform(7, 3));
  EXPECT_NE(CounterUniform(7, 3), CounterUniform(8, 3));
  EXPECT_NE(CounterUniform(7, 3), CounterUniform(7, 4));
}

TEST(Sampler, GreedyTakesTheFirstOfEquals) { EXPECT_EQ(Draw({1, 3, 3, 2}, {.temperature = 0}, 0), 1); }

TEST(Sampler, TemperatureOneGivesTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f};
  const auto frequencies = Frequencies(logits, {.temperature = 1}, 40'000);
  const double total = 1 + std::exp(1.0) + std::exp(2.0);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(frequencies[i], std::exp(static_cast<double>(i)) / total, 0.01);
}

TEST(Sampler, FiltersLeaveWhatTheyShould) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  const auto support = [&](SamplingParams sampling) {
    std::vector<int> ids;
    const auto frequencies = Frequencies(logits, sampling, 4'000);
    for (size_t i = 0; i < logits.size(); ++i) {
      if (frequencies[i] > 0) ids.push_back(static_cast<int>(i));
    }
    return ids;
  };
  EXPECT_THAT(support({.temperature = 1}), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(support({.temperature = 1, .top_k = 2}), testing::ElementsAre(0, 1));
  EXPECT_THAT(support({.temperature = 1, .top_p = 0.5}), testing::ElementsAre(0));
  EXPECT_THAT(support({.temperature = 1, .top_p = 0.79}), testing::ElementsAre(0, 1));
  EXPECT_THAT(support({.temperature = 1, .top_p = 0.81}), testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(support({.temperature = 1, .min_p = 0.29}), testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(support({.temperature = 1, .top_k = 3, .top_p = 0.6}), testing::ElementsAre(0, 1));
}

TEST(Sampler, RepetitionPenaltyLowersBothSigns) {
  SamplingParams sampling{.temperature = 0, .repetition_penalty = 2};
  EXPECT_EQ(Draw({3, 2}, sampling, 0, {0}), 1);
  EXPECT_EQ(Draw({-1, -1.5}, sampling, 0, {0}), 1);
}

TEST(Sampler, PresenceAndFrequencyCountGeneratedTokensAlone) {
  EXPECT_EQ(DrawNext({3, 2, 0}, {.temperature = 0, .presence_penalty = 1.5}, {0, 0, 0}), 1);
  EXPECT_EQ(DrawNext({3, 2, 0}, {.temperature = 0, .presence_penalty = 1.5}, {}, {0, 0}), 0);  // only in the prompt
  EXPECT_EQ(DrawNext({3, 2, 0}, {.temperature = 0, .frequency_penalty = 0.4}, {0, 0}), 0);
  EXPECT_EQ(DrawNext({3, 2, 0}, {.temperature = 0, .frequency_penalty = 0.4}, {0, 0, 0}), 1);
  EXPECT_EQ(DrawNext({3, 2, 0}, {.temperature = 0, .frequency_penalty = -0.6}, {1, 1}), 1);
}

TEST(Sampler, BiasesAreAdded) {
  EXPECT_EQ(DrawNext({3, 2, 0}, {.temperature = 0, .logit_bias = {{2, 4.0f}}}, {}), 2);
  EXPECT_EQ(DrawNext({3, 2, 0}, {.temperature = 0, .logit_bias = {{0, -2.0f}, {2, 1.0f}}}, {}), 1);
}

TEST(Sampler, AnAnswerDoesNotEndBeforeMinTokens) {
  const SamplingParams sampling{.temperature = 0, .min_tokens = 2, .stop_token_ids = {1}};
  EXPECT_EQ(DrawNext({3, 2, 0}, sampling, {}), 2);
  EXPECT_EQ(DrawNext({3, 2, 0}, sampling, {2}), 2);
  EXPECT_EQ(DrawNext({3, 2, 0}, sampling, {2, 2}), 0);
}

TEST(Sampler, BadWordsAreNeverCompleted) {
  const SamplingParams sampling{.temperature = 0, .bad_words = {{0}, {2, 1}}};
  EXPECT_EQ(DrawNext({3, 2, 1, 0}, sampling, {}), 1);
  EXPECT_EQ(DrawNext({3, 2, 1, 0}, sampling, {1, 2}), 2);
  EXPECT_EQ(DrawNext({3, 2, 1, 0}, sampling, {2, 1}), 1);
}

// The definitions of the filters, without shortcuts.
std::vector<TokenId> Support(const std::vector<float>& logits, const SamplingParams& sampling) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  if (sampling.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(sampling.top_k)));
  const auto weight = [&](TokenId id) {
    return std::exp((static_cast<double>(logits[id]) - logits[ids[0]]) / sampling.temperature);
  };
  double total = 0, kept = 0;
  for (const TokenId id : ids) total += weight(id);
  size_t num_kept = 0;
  while (num_kept < ids.size() && kept < sampling.top_p * total) kept += weight(ids[num_kept++]);
  ids.resize(num_kept);
  std::erase_if(ids, [&](TokenId id) { return weight(id) < sampling.min_p; });
  std::ranges::sort(ids);
  return ids;
}

TEST(Sampler, ShortcutsKeepTheTokensOfTheDefinition) {
  std::mt19937 random(3);
  for (int round = 0; round < NumTried(200); ++round) {
    std::vector<float> logits(1 + random() % 1000);
    std::normal_distribution<float> normal(0, 0.2f + static_cast<float>(random() % 5));
    for (float& logit : logits) logit = random() % 20 == 0 ? -INFINITY : normal(random);
    logits[random() % logits.size()] = 1;
    SamplingParams sampling{.temperature = 0.3 + 0.1 * static_cast<double>(random() % 12)};
    if (round % 2 == 0) sampling.top_k = 1 + static_cast<int64_t>(random() % 60);
    if (round % 3 != 0) sampling.top_p = 0.05 + 0.009 * static_cast<double>(random() % 100);
    if (round % 5 == 0) sampling.min_p = 0.01 * static_cast<double>(random() % 40);
    const std::vector<TokenId> support = Support(logits, sampling);
    const auto frequencies = Frequencies(logits, sampling, 2'000);
    for (size_t id = 0; id < logits.size(); ++id) {
      if (frequencies[id] <= 0) continue;
      EXPECT_TRUE(std::ranges::binary_search(support, static_cast<TokenId>(id))) << round;
    }
    // Likely tokens among the kept ones were drawn.
    double total = 0;
    for (const TokenId id : support) total += std::exp((logits[id] - 5) / sampling.temperature);
    for (const TokenId id : support) {
      const double expected = std::exp((logits[id] - 5) / sampling.temperature) / total;
      EXPECT_NEAR(frequencies[id], expected, 6 * std::sqrt(expected / 2'000) + 0.002) << round << " " << id;
    }
  }
}

TEST(Sampler, EveryInstructionSetDrawsTheSameTokens) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(1234);
  for (float& logit : logits) logit = normal(random);
  for (const SamplingParams& sampling : {SamplingParams{}, SamplingParams{.temperature = 0.7, .top_p = 0.9},
                                         SamplingParams{.top_k = 40, .min_p = 0.01}}) {
    std::vector<std::vector<TokenId>> drawn;
    for (const kernels::Isa isa : kernels::SupportedIsas()) {
      Sampler sampler(kernels::KernelsFor(isa), std::ssize(logits));
      const TokenHistory history(sampling);
      std::vector<TokenId>& ids = drawn.emplace_back();
      for (int i = 0; i < 300; ++i) {
        std::vector<float> changed = logits;
        ids.push_back(sampler.Sample(changed, sampling, {.history = history, .generated = ids}));
      }
    }
    EXPECT_THAT(drawn, testing::Each(drawn[0]));
  }
}

TEST(Sampler, BrokenLogitsAreReported) {
  const float nan = std::nanf("");
  EXPECT_EQ(Draw({nan, nan}, {.temperature = 0}, 0), -1);
  EXPECT_EQ(Draw({1, nan}, {.temperature = 0}, 0), -1);
  EXPECT_EQ(Draw({1, nan}, {.temperature = 1}, 0), -1);
  EXPECT_EQ(Draw({1, INFINITY}, {.temperature = 1}, 0), -1);
  EXPECT_EQ(Draw({-INFINITY, 1}, {.temperature = 1}, 0), 1);
  EXPECT_EQ(Draw({-INFINITY, -INFINITY}, {.temperature = 0}, 0), -1);
}

TEST(Sampler, NoTemperatureOverflows) {
  for (const double temperature : {5e-324, 1e-300, 1e-40, 1e-10}) {
    EXPECT_EQ(Draw({-3e38f, 1, 2, 1.99f}, {.temperature = temperature}, 0), 2) << temperature;
  }
  EXPECT_GE(Draw({1, 2, 3e38f}, {.temperature = 100}, 0), 0);
}

RC_GTEST_PROP(Sampler, LogprobsSumToOneAndTopIsSorted, ()) {
  const auto ints = *rc::gen::container<std::vector<int>>(rc::gen::inRange(-300, 300));
  RC_PRE(!ints.empty());
  std::vector<float> logits;
  for (const int i : ints) logits.push_back(static_cast<float>(i) / 20);
  Sampler sampler(Kernels(), static_cast<int64_t>(logits.size()));
  const int num_top = std::min<int>(20, static_cast<int>(logits.size()));
  const TokenLogprobs result = sampler.Logprobs(logits, std::array<TokenId, 1>{0}, num_top)[0];
  RC_ASSERT(static_cast<int>(result.top.size()) == num_top);
  double sum = 0;
  for (size_t id = 0; id < logits.size(); ++id) sum += std::exp(LogProbability(logits, static_cast<TokenId>(id)));
  RC_ASSERT(std::fabs(sum - 1) < 1e-9);
  for (size_t i = 1; i < result.top.size(); ++i) RC_ASSERT(result.top[i - 1].logprob >= result.top[i].logprob);
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  const auto message = [](SamplingParams sampling) { return std::string(ValidateSampling(sampling).message()); };
  EXPECT_EQ(message({}), "");
  EXPECT_THAT(message({.temperature = -1}), testing::HasSubstr("temperature"));
  EXPECT_THAT(message({.temperature = NAN}), testing::HasSubstr("temperature"));
  EXPECT_THAT(message({.top_k = -1}), testing::HasSubstr("top_k"));
  EXPECT_THAT(message({.top_p = 0}), testing::HasSubstr("top_p"));
  EXPECT_THAT(message({.min_p = 1.5}), testing::HasSubstr("min_p"));
  EXPECT_THAT(message({.repetition_penalty = 0}), testing::HasSubstr("repetition_penalty"));
  EXPECT_THAT(message({.presence_penalty = 2.5}), testing::HasSubstr("presence_penalty"));
  EXPECT_THAT(message({.frequency_penalty = NAN}), testing::HasSubstr("frequency_penalty"));
  EXPECT_THAT(message({.logit_bias = {{1, 101.0f}}}), testing::HasSubstr("logit_bias"));
  EXPECT_THAT(message({.max_tokens = 3, .min_tokens = 4}), testing::HasSubstr("min_tokens"));
  EXPECT_THAT(message({.max_tokens = 0}), testing::HasSubstr("max_tokens"));
  EXPECT_THAT(message({.stop = {""}}), testing::HasSubstr("stop"));
  EXPECT_THAT(message({.stop = std::vector<std::string>(17, "x")}), testing::HasSubstr("stop"));
  EXPECT_THAT(message({.logprobs = 21}), testing::HasSubstr("logprobs"));
}

}  // namespace
}  // namespace penstock
