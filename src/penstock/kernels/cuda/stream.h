// What kernels are launched on: work is done in the order in which it was given to a stream.
#pragma once

#include <cuda_runtime_api.h>  // where kernels are emulated: emulated/cuda_runtime_api.h

namespace penstock::cuda {
using Stream = cudaStream_t;
}  // namespace penstock::cuda
