// One table per instruction set; a unit exists only where the compiler can make it (all but the scalar one: x86-64, and
// 64-bit ARM for NEON).
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512VnniKernels;
extern const KernelTable kAvx512Bf16Kernels;
extern const KernelTable kNeonKernels;

// Whether VDPBF16PS of this machine sums in the order that kernel_table.h writes down; asked of the instruction itself,
// because no maker promises it. REQUIRES: the machine has AVX512-BF16. A pointer, because units with instruction set
// flags export no code.
extern bool (*const kAvx512Bf16FollowsTheLaw)();

}  // namespace penstock::kernels
