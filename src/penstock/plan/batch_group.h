// How many batches Klotski has to compute together so that nothing waits for transfers: its planner's inequalities
// (section 6.2, (4) to (7)).
#pragma once

#include <cstdint>
#include <optional>

namespace penstock {

// Seconds of one layer. Experts are computed for the tokens of all batches of a group, so that their times are given
// for one batch and grow with it.
struct LayerTimes {
  double attention_s = 0;           // to compute one batch
  double gate_s = 0;                // likewise
  double expert_s = 0;              // one expert for its tokens of one batch; at least `least_expert_s`
  double least_expert_s = 0;        // whatever the tokens: its weights are read once
  double attention_transfer_s = 0;  // weights over the link
  double gate_transfer_s = 0;
  double expert_transfer_s = 0;  // of one
  int64_t num_hot = 0;           // experts fetched ahead: K
  int64_t num_cold = 0;          // experts beside them that the gates choose: |Q|
};

// The smallest n that satisfies all four; none when transfers take longer whatever n is, up to `most`.
std::optional<int64_t> LeastBatches(const LayerTimes& times, int64_t most);

}  // namespace penstock
