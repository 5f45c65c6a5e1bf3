// Chooses who asks for the weights that few rows read: the kernels or the processor.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock {

// Returns the fastest way on this machine for weights and rows of these formats. The first call for a pair of formats,
// with one row or with more, measures all ways with `kernels`, which takes a few milliseconds. Later calls return its
// result; calls of other threads meanwhile, kProcessor.
//
// Examples of one row: Cascade Lake reads a tenth faster with kTwoPages, while Zen 4 reads 1.2 to 1.7 times as fast
// with kProcessor. On Zen 5, kFar is 1.9 times as fast as kProcessor for q4_k.
kernels::Prefetching FasterPrefetching(const kernels::KernelTable& kernels, WeightFormat w_format,
                                       kernels::RowFormat x_format, int64_t num_rows);

}  // namespace penstock
