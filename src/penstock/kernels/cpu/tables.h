// One table per instruction set; a unit exists only where the compiler can make it (x86-64 for all but the scalar one).
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512Bf16Kernels;

}  // namespace penstock::kernels
