// A recorded run once more, in virtual time: what its steps would take on a machine that is described, not present.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine/policy.h"
#include "penstock/hardware/hardware.h"
#include "penstock/model/cost.h"

namespace penstock {

struct SimulationInputs {
  const ModelConfig& config;
  ModelFormats formats;
  uint64_t expert_bytes = 0;  // as they are read
  const ChosenPolicy& policy;
  int num_threads = 1;  // of the host
};

// Seconds of each step of a routing trace, by its index; 0 for steps of which the trace has nothing. kInput when the
// trace is damaged or another model's, kUsage when the hardware lacks rates that are needed. Without a device only;
// Klotski begins with an empty correlation table.
absl::StatusOr<std::vector<double>> SimulateTrace(const SimulationInputs& inputs, const Hardware& hardware,
                                                  const std::string& trace_path);

}  // namespace penstock
