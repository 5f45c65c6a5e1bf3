// Proves with made-up times that drafts which lose time cost next to nothing, and that most of the gain is kept where
// they pay: on noisy machines, on machines that become slower, and when the work changes.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gmock/gmock.h>

#include "penstock/engine/speculation/draft_gate.h"

namespace penstock {
namespace {

struct Work {
  int num_steps = 4000;
  double gain = 1;        // tokens per second with drafts, as a multiple of those without
  double scatter = 0.2;   // of the steps' times
  double hiccups = 0.01;  // share of the steps that take ten times as long
  double slowdown = 1;    // of the last step, beside the first one
  double share_right = 0.3;
};

// Runs works of one gate after another. Returns the time without any drafts over the time that was taken.
double Speedup(const std::vector<Work>& works, unsigned seed) {
  DraftGate gate;
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> accepted(1 / 3.0);  // in bursts
  std::bernoulli_distribution is_right(0.5);
  double without_s = 0, taken_s = 0;
  for (const Work& work : works) {
    std::bernoulli_distribution is_hiccup(work.hiccups);
    for (int step = 0; step < work.num_steps; ++step) {
      const double speed = std::pow(work.slowdown, static_cast<double>(step) / work.num_steps);
      const double noise = speed * std::exp(work.scatter * normal(random)) * (is_hiccup(random) ? 10 : 1);
      constexpr int64_t kSequences = 8;
      // All forms yield the same tokens in the end; without drafts a token takes an eighth of a second.
      int64_t num_tokens = kSequences;
      double seconds = noise;
      if (gate.is_open()) {
        num_tokens += is_right(random) ? std::llround(accepted(random)) : 0;
        constexpr double kMeanTokens = 9.5;
        seconds = noise * kMeanTokens / kSequences / work.gain;
      }
      gate.Add(num_tokens, seconds, work.share_right);
      taken_s += seconds;
      without_s += noise * static_cast<double>(num_tokens) / kSequences;
    }
  }
  return without_s / taken_s;
}

double MeanSpeedup(const std::vector<Work>& works) {
  constexpr unsigned kSeeds = 20;
  double sum = 0;
  for (unsigned seed = 0; seed < kSeeds; ++seed) sum += Speedup(works, seed);
  return sum / kSeeds;
}

TEST(DraftGate, DraftsThatLoseCostNextToNothing) {
  for (const double gain : {0.3, 0.6, 0.8, 0.9, 0.95, 0.98, 1.0}) {
    for (const double scatter : {0.02, 0.2, 0.5}) {
      EXPECT_GT(MeanSpeedup({{.gain = gain, .scatter = scatter}}), 0.98) << gain << ", " << scatter;
      EXPECT_GT(MeanSpeedup({{.gain = gain, .scatter = scatter, .slowdown = 4}}), 0.98) << gain << ", " << scatter;
    }
    EXPECT_GT(MeanSpeedup({{.num_steps = 100'000, .gain = gain}}), 0.985) << gain;
  }
}

TEST(DraftGate, ShortJobsWithFewRightGuessesHaveNoTrial) {
  EXPECT_EQ(MeanSpeedup({{.num_steps = 128, .gain = 0.3, .share_right = 0.2}}), 1);
  EXPECT_GT(MeanSpeedup({{.num_steps = 128, .gain = 1.5, .share_right = 0.6}}), 1.3);
}

TEST(DraftGate, MostOfTheGainIsKept) {
  for (const double gain : {1.25, 1.5, 2.0, 3.0}) {
    for (const double scatter : {0.02, 0.2, 0.4}) {
      const double least = 1 + 0.9 * (gain - 1);
      EXPECT_GT(MeanSpeedup({{.gain = gain, .scatter = scatter, .share_right = 0.6}}), least)
          << gain << ", " << scatter;
      EXPECT_GT(MeanSpeedup({{.gain = gain, .scatter = scatter, .slowdown = 4, .share_right = 0.6}}), least)
          << gain << ", " << scatter;
      EXPECT_GT(MeanSpeedup({{.gain = gain, .scatter = scatter, .slowdown = 0.25, .share_right = 0.6}}), least)
          << gain << ", " << scatter;
    }
  }
}

TEST(DraftGate, WorkThatChangesIsMeasuredAgain) {
  const Work loses{.gain = 0.8, .share_right = 0.1}, pays{.gain = 1.6, .share_right = 0.6};
  const double after_loss = MeanSpeedup({loses, pays}), after_gain = MeanSpeedup({pays, loses});
  EXPECT_GT(after_loss, 1.22);
  EXPECT_GT(after_gain, 1.22);
  // The share of right guesses ends the pause: without it, the second half would mostly pass before the next trial.
  const Work unnoticed{.gain = 1.6, .share_right = 0.1};
  const Work long_loss{.num_steps = 20'000, .gain = 0.8, .share_right = 0.1};
  EXPECT_GT(MeanSpeedup({long_loss, pays}), MeanSpeedup({long_loss, unnoticed}) + 0.02);
}

TEST(DraftGate, TrialsAlternateAndDraftsThatDoNotMatterGoOn) {
  DraftGate gate;
  gate.Add(8, 1, 0.5);  // begins a trial
  std::vector<bool> forms;
  for (int step = 0; step < 200; ++step) {
    forms.push_back(gate.is_open());
    EXPECT_TRUE(gate.is_trial());
    EXPECT_FALSE(gate.pays());
    gate.Add(8, 1, 0.5);
  }
  EXPECT_FALSE(forms.front());
  EXPECT_EQ(std::ranges::count(forms, true), 100);
}

TEST(DraftGate, StepsWithoutTokensSayNothing) {
  DraftGate gate;
  gate.Add(8, 1, 0.5);
  for (int step = 0; step < 100; ++step) gate.Add(0, 1, 0.5);
  EXPECT_TRUE(gate.is_trial());
  EXPECT_FALSE(gate.is_open());
}

}  // namespace
}  // namespace penstock
