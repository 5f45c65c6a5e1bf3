// One table per instruction set. A unit exists only where the compiler can make it: all except the scalar one need
// x86-64, NEON needs 64-bit ARM.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512VnniKernels;
extern const KernelTable kAvx512Bf16Kernels;
extern const KernelTable kNeonKernels;

// Says whether this machine's VDPBF16PS sums in the order that kernel_table.h defines. It runs the instruction to find
// out, because no maker guarantees the order. REQUIRES: the machine has AVX512-BF16. It is a pointer because units with
// instruction set flags export no code.
extern bool (*const kAvx512Bf16FollowsTheLaw)();

}  // namespace penstock::kernels
