// Chooses who asks for the weights that few rows read: the kernels or the processor.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock {

// Returns the faster way on this machine. The first call measures both with `kernels`, which takes a few milliseconds;
// later calls return its result. Cascade Lake reads a tenth faster when kernels ask; Zen 4 reads 1.2 to 1.7
// times as fast when they do not.
kernels::Prefetching FasterPrefetching(const kernels::KernelTable& kernels);

}  // namespace penstock
