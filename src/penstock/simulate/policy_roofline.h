// Places the decoding of a policy on the roofline of its machine.
#pragma once

#include <optional>
#include <vector>

#include "penstock/plan/hrm_plot.h"
#include "penstock/simulate/policy_search.h"

namespace penstock {

// Returns the roofline model of the machine for this policy, in the arithmetic of its experts. The device is left out
// if the policy does not use it. kUsage when the hardware lacks the rates.
absl::StatusOr<Hrm> HrmOf(const PolicyChoice& choice, const DescribedModel& model, const Hardware& hardware);

// Returns a point for attention and one for the experts of a layer, in a step in which the whole batch decodes. Weights
// that stay in the memory where they are used do not count as read from another level. So a larger resident share and
// a larger batch both raise the intensity (MoE-Lightning, section 3.3).
std::vector<HrmPoint> DecodePoints(const PolicyChoice& choice, const DescribedModel& model, const Hrm& hrm,
                                   const Workload& workload);

// Returns the smallest number of sequences, in whole micro-batches, that take as long to compute as the streamed
// experts take to transfer. Uses Klotski's inequalities (plan/batch_group.h) with num_topk hot experts. Returns 0 if
// nothing is transferred, and nullopt if no batch is large enough or rates are missing.
std::optional<int64_t> BatchThatHidesTransfers(const PolicyChoice& choice, const DescribedModel& model,
                                               const Hardware& hardware, const Workload& workload);

}  // namespace penstock
