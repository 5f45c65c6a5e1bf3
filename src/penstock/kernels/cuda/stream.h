// A stream, on which kernels are launched: it does work in the order in which it was submitted.
#pragma once

#include <cuda_runtime_api.h>  // if kernels are emulated: emulated/cuda_runtime_api.h

namespace penstock::cuda {
using Stream = cudaStream_t;
}  // namespace penstock::cuda
