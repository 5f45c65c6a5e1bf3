// The bf16 GEMM with the tiles of the AVX512-BF16 unit on machines that only have AVX-512.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

// REQUIRES: Isa::kAvx512 is supported.
void EmulatedAvx512Bf16Gemm(const GemmBf16Args& args);

}  // namespace penstock::kernels
