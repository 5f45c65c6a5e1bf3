// Proves that sampling follows the filters' definitions, that its random stream depends on seed and counter alone, and
// that parameters out of range are refused by name.
#include "penstock/ops/sampler.h"

#include <cmath>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

namespace penstock {
namespace {

TokenId Draw(std::vector<float> logits, const SamplingParams& sampling, uint64_t counter,
             const absl::flat_hash_set<TokenId>& seen = {}) {
  Sampler sampler(static_cast<int64_t>(logits.size()));
  return sampler.Sample(logits, sampling, seen, counter);
}

std::vector<double> Frequencies(const std::vector<float>& logits, const SamplingParams& sampling, int num_draws) {
  std::vector<double> frequencies(logits.size());
  for (int i = 0; i < num_draws; ++i) frequencies[Draw(logits, sampling, static_cast<uint64_t>(i))] += 1.0 / num_draws;
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
  Sampler sampler(static_cast<int64_t>(logits.size()));
  const int num_top = std::min<int>(20, static_cast<int>(logits.size()));
  const TokenLogprobs result = sampler.Logprobs(logits, 0, num_top);
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
  EXPECT_THAT(message({.max_tokens = 0}), testing::HasSubstr("max_tokens"));
  EXPECT_THAT(message({.stop = {""}}), testing::HasSubstr("stop"));
  EXPECT_THAT(message({.stop = std::vector<std::string>(17, "x")}), testing::HasSubstr("stop"));
  EXPECT_THAT(message({.logprobs = 21}), testing::HasSubstr("logprobs"));
}

}  // namespace
}  // namespace penstock
