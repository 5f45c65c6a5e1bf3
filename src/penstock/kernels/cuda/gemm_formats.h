// The GEMMs of gemm.cu by kind of weights: each kind is a unit of its own, and the units compile side by side.
//
// `Launch` is GemmLaunch or GateUpLaunch (cuda_kernels.h). REQUIRES: at least one group and one row.
#pragma once

#include "penstock/kernels/cuda/cuda_kernels.h"

namespace penstock::cuda {

// f32, f16 or bf16 weights, f32 rows.
template <class Launch>
void LaunchFloats(const Launch& launch, Stream stream);

// bf16 weights, bf16 rows.
template <class Launch>
void LaunchBf16(const Launch& launch, Stream stream);

// int8 weights, rows of any format.
template <class Launch>
void LaunchInt8(const Launch& launch, Stream stream);

// hqq4, hqq3, hqq2 or ternary weights, rows of any format.
template <class Launch>
void LaunchHqq(const Launch& launch, Stream stream);

// Block formats, rows of any format for which they can be multiplied. Each launches only its own formats, and returns
// whether this is one of them.
template <class Launch>
bool LaunchKBlocks(const Launch& launch, Stream stream);
template <class Launch>
bool LaunchSmallBlocks(const Launch& launch, Stream stream);
template <class Launch>
bool LaunchValueBlocks(const Launch& launch, Stream stream);

}  // namespace penstock::cuda
