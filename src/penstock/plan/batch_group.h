// Finds how many batches Klotski must compute together so that nothing waits for transfers, by the inequalities of its
// planner (section 6.2, (4) to (7)).
#pragma once

#include <cstdint>
#include <optional>

namespace penstock {

// Seconds of one layer. An expert is computed once for the tokens of all batches of a group. Its time is given for one
// batch, and grows in proportion to the batches.
struct LayerTimes {
  double attention_s = 0;           // to compute one batch
  double gate_s = 0;                // to compute one batch
  double expert_s = 0;              // to compute one expert for its tokens of one batch
  double min_expert_s = 0;          // minimum for one expert, whatever its tokens: reading its weights once
  double attention_transfer_s = 0;  // to transfer the weights over the link
  double gate_transfer_s = 0;
  double expert_transfer_s = 0;  // to transfer one expert
  int64_t num_hot = 0;           // experts fetched ahead: K
  int64_t num_cold = 0;          // other experts that the gates choose: |Q|
};

// Returns the smallest number of batches, at most `max`, that satisfies all four inequalities; nullopt if none does.
std::optional<int64_t> MinBatches(const LayerTimes& times, int64_t max);

}  // namespace penstock
