// Lists the measuring loops that this processor can run. The last peak loop is the fastest; the fastest read loop is
// one of the last two.
#pragma once

#include <vector>

#include "penstock/hardware/hardware.h"
#include "penstock/hardware/peak_loops.h"
#include "penstock/hardware/read_loops.h"

namespace penstock {

std::vector<ReadLoop> SupportedReadLoops();

// Returns an empty list when the processor has no instructions for it.
std::vector<const PeakLoop*> SupportedPeakLoops(Arithmetic arithmetic);

}  // namespace penstock
