#include "penstock/engine/speculation/step_cost.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

// The weight of a step falls by this factor with each later one.
constexpr double kDecay = 0.985;
// The time of one more row, of a processor's average time for each row.
constexpr double kComputeShare = 0.8;
// The guess counts as much as steps whose log(rows) have this sum of squared differences. Part of it always counts.
constexpr double kGuessWeight = 0.5, kLeastOfGuess = 0.5;

}  // namespace

void MeasuredStep::SetWork(std::span<const LaneStats> before, std::span<const LaneStats> after) {
  for (size_t lane = 0; lane < after.size(); ++lane) {
    const double busy_s = after[lane].busy_s - (lane < before.size() ? before[lane].busy_s : 0);
    double& most_s = after[lane].name.ends_with("compute") ? compute_s : transfer_s;
    most_s = std::max(most_s, busy_s);
  }
}

StepCost::StepCost(int64_t num_experts, int64_t experts_per_token)
    : share_per_row_(num_experts == 0
                         ? 1
                         : std::min(1.0, static_cast<double>(experts_per_token) / static_cast<double>(num_experts))) {}

double StepCost::ShareWanted(double num_rows) const { return 1 - std::pow(1 - share_per_row_, num_rows); }

void StepCost::Add(const MeasuredStep& step) {
  const auto num_rows = static_cast<double>(step.num_rows());
  if (num_rows < 1 || step.seconds <= 0) return;
  const double x = std::log(num_rows), y = std::log(step.seconds);
  for (double* sum : {&weight_, &seconds_, &transfer_s_, &compute_s_, &shares_wanted_, &x_, &y_, &xx_, &xy_}) {
    *sum *= kDecay;
  }
  weight_ += 1;
  seconds_ += step.seconds;
  transfer_s_ += step.transfer_s;
  compute_s_ += step.compute_s;
  shares_wanted_ += ShareWanted(num_rows);
  x_ += x;
  y_ += y;
  xx_ += x * x;
  xy_ += x * y;
}

double StepCost::mean_rows() const { return std::exp(x_ / weight_); }

double StepCost::GuessOfNextRow(double num_rows) const {
  // Busy seconds for each expert that is wanted.
  const double transfer_s = transfer_s_ / shares_wanted_ * (ShareWanted(num_rows + 1) - ShareWanted(num_rows));
  const double compute_s = kComputeShare * compute_s_ / weight_ / mean_rows();
  return std::min(1.0, transfer_s_ / seconds_) * transfer_s + std::min(1.0, compute_s_ / seconds_) * compute_s;
}

double StepCost::OfNextRow(double num_rows) const {
  const double guess_s = GuessOfNextRow(num_rows), guess = guess_s * num_rows / seconds();
  const double xx = std::max(0.0, xx_ - x_ * x_ / weight_), xy = xy_ - x_ * y_ / weight_;
  const double slope = (xy + kGuessWeight * guess) / (xx + kGuessWeight);
  return std::max(kLeastOfGuess * guess_s, std::min(1.0, slope) * seconds() / num_rows);
}

}  // namespace penstock
