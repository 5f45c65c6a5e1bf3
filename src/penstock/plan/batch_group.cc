#include "penstock/plan/batch_group.h"

#include <algorithm>

namespace penstock {

std::optional<int64_t> MinBatches(const LayerTimes& t, int64_t max) {
  const auto num_hot = static_cast<double>(t.num_hot), num_cold = static_cast<double>(t.num_cold);
  for (int64_t batches = 1; batches <= max; ++batches) {
    const auto n = static_cast<double>(batches);
    const double expert_s = std::max(t.min_expert_s, n * t.expert_s);
    const double before_s = n * (t.attention_s + t.gate_s);                                // until the last gate
    const bool hides_gate = n * t.attention_s >= t.gate_transfer_s;                        // (4)
    const bool hides_hot = before_s >= t.gate_transfer_s + num_hot * t.expert_transfer_s;  // (5)
    const bool hides_first_cold =                                                          // (6)
        t.num_cold == 0 || before_s + num_hot * expert_s >= t.gate_transfer_s + (num_hot + 1) * t.expert_transfer_s;
    const bool hides_all = before_s + (num_hot + num_cold) * expert_s >=  // (7)
                           t.gate_transfer_s + (num_hot + num_cold) * t.expert_transfer_s + t.attention_transfer_s;
    if (hides_gate && hides_hot && hides_first_cold && hides_all) return batches;
  }
  return std::nullopt;
}

}  // namespace penstock
