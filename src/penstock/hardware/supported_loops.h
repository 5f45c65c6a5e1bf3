// Which of the measuring loops this processor runs. The last of each list is the fastest; of read loops, one of the
// last two.
#pragma once

#include <vector>

#include "penstock/hardware/hardware.h"
#include "penstock/hardware/peak_loops.h"
#include "penstock/hardware/read_loops.h"

namespace penstock {

std::vector<ReadLoop> SupportedReadLoops();

// Empty when the processor has no instructions for it.
std::vector<const PeakLoop*> SupportedPeakLoops(Arithmetic arithmetic);

}  // namespace penstock
