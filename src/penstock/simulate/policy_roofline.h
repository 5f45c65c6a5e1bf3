// Where the decoding of a policy lies on the roofline of its machine.
#pragma once

#include <optional>
#include <vector>

#include "penstock/plan/hrm_plot.h"
#include "penstock/simulate/policy_search.h"

namespace penstock {

// Of a machine for this policy: without its device where that is not used, in the arithmetic of its experts. kUsage
// when the hardware does not say what it can do.
absl::StatusOr<Hrm> HrmOf(const PolicyChoice& choice, const DescribedModel& model, const Hardware& hardware);

// Attention and experts of a layer, of a step of the whole batch. What stays where it is computed is not counted as
// read from elsewhere: a larger resident share and a larger batch both raise the intensity (MoE-Lightning,
// section 3.3).
std::vector<HrmPoint> DecodePoints(const PolicyChoice& choice, const DescribedModel& model, const Hrm& hrm,
                                   const Workload& workload);

// From how many sequences on computing takes as long as the transfers of what does not stay, by Klotski's inequalities
// with as many hot experts as a token chooses, in whole micro-batches; 0 when nothing is transferred, none when no
// batch is large enough.
std::optional<int64_t> BatchThatHidesTransfers(const PolicyChoice& choice, const DescribedModel& model,
                                               const Hardware& hardware, const Workload& workload);

}  // namespace penstock
