// How long tasks take on hardware that is described.
#pragma once

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/simulate/pass_simulator.h"

namespace penstock {

// In which FFNs are computed. On a device that is only described weights that are quantised become 16-bit numbers, as
// in most programs for GPUs; Penstock's own kernels compute in 8-bit integers.
Arithmetic FfnArithmetic(const Formats& formats, const ModelFormats& weights, bool on_described_device);

// A processor that was probed with weights and KV entries in these formats takes what was measured there; another one
// what the roofline of its peaks and its memory allows (a call, and the longer of arithmetic and memory). A link takes
// its latency and its rate. An emulated device is the CPU, with as many threads and such a link as it was given. kUsage
// when the hardware lacks rates that the plan needs.
absl::StatusOr<LaneRates> LaneRatesOf(const Hardware& hardware, const EnginePlan& plan, int num_threads);

}  // namespace penstock
