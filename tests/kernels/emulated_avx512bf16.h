// The GEMM with the tiles of the AVX512-BF16 unit, for machines that only have AVX-512.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

// REQUIRES: Isa::kAvx512 is supported; rows are kBF16 pairs, as EmulatedAvx512Bf16Rows makes them.
void EmulatedAvx512Bf16Gemm(const GemmArgs& args);
void EmulatedAvx512Bf16Rows(const PrepareRowsArgs& args);

}  // namespace penstock::kernels
