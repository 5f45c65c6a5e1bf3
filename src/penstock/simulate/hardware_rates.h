// The times that tasks take on described hardware.
#pragma once

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/simulate/pass_simulator.h"

namespace penstock {

// Returns the arithmetic in which a processor computes FFNs. Penstock's own kernels multiply quantised weights as 8-bit
// integers. On a GPU that is only described, not measured, they become 16-bit numbers, as in most programs for GPUs.
Arithmetic FfnArithmetic(const Formats& formats, const ModelFormats& weights, const Processor& processor);

// Returns the time that a task takes on each lane. A processor probed with weights and KV entries in the plan's formats
// takes the measured time, and the time of the shortest call. In a model of several formats, each has its share. Any
// other processor takes the time of its roofline: a call, plus the longer of arithmetic and memory. A transfer takes
// the latency of its link, plus its bytes at the link's rate. An emulated device is the CPU, with the number of threads
// and the link that it was given. kUsage when the hardware lacks rates that the plan needs.
absl::StatusOr<LaneRates> LaneRatesOf(const Hardware& hardware, const EnginePlan& plan, int num_threads);

// Returns the seconds in which the steps of a run touch expert slots and KV cache for the first time. Its threads do so
// while they would compute.
double FirstUseSeconds(const Hardware& hardware, const EnginePlan& plan);

}  // namespace penstock
