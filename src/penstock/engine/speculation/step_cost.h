// How much longer a step would take with one more row, learnt from the steps before.
//
// If a lane is busy for a share s of a step, a second more of its work delays the step by about s seconds. A lane that
// is always busy is the limit. The work of a lane that is seldom busy hides under that of others. One more row gives
// each lane more work as follows:
//   - The lanes that move experts also move those that only this row wants. If rows choose k of E experts alike, n rows
//     want E (1 - (1 - k/E)^n) different ones. The share of these that has to be moved is that of the steps before.
//   - Processors compute a row, in somewhat less than the average time of the others.
// This is a guess, which measured steps correct. A weighted regression of log(seconds) on log(rows) starts from the
// guess; later steps count more.
#pragma once

#include <cstdint>
#include <span>

#include "penstock/engine.h"

namespace penstock {

// The rows of a step, and how long it took.
struct MeasuredStep {
  int64_t num_decoding = 0;
  int64_t num_prompt_rows = 0;
  int64_t num_drafts = 0;
  int64_t num_generated = 0;  // tokens
  double seconds = 0;
  // The work of the busiest lane that moves experts, and of the busiest processor.
  double transfer_s = 0, compute_s = 0;

  int64_t num_rows() const { return num_decoding + num_prompt_rows + num_drafts; }
  // Sets the work from the lanes' counters before and after the step. Before the first step there may be none.
  void SetWork(std::span<const LaneStats> before, std::span<const LaneStats> after);
};

class StepCost {
 public:
  // Rows choose `experts_per_token` of the `num_experts` of a layer.
  StepCost(int64_t num_experts, int64_t experts_per_token);

  void Add(const MeasuredStep& step);
  // The average of late steps; 0: none is known.
  double seconds() const { return weight_ > 0 ? seconds_ / weight_ : 0; }
  // The geometric mean of their rows. REQUIRES: a step is known.
  double mean_rows() const;
  // Returns the seconds that the row behind `num_rows` would add. REQUIRES: num_rows >= 1, and a step is known.
  double OfNextRow(double num_rows) const;

 private:
  // Returns the share of a layer's experts that so many rows want.
  double ShareWanted(double num_rows) const;
  // Returns the guess from the work of lanes.
  double GuessOfNextRow(double num_rows) const;

  double share_per_row_;
  double weight_ = 0, seconds_ = 0, transfer_s_ = 0, compute_s_ = 0, shares_wanted_ = 0;  // sums of weighted steps
  double x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // sums of log(rows), of log(seconds) and of their products
};

}  // namespace penstock
