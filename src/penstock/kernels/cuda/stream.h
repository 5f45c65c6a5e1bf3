// What kernels are launched on: work is done in the order in which it was given to a stream.
#pragma once

#ifdef PENSTOCK_EMULATED_SIMT
namespace penstock::cuda {
struct Stream {};  // at once (emulated/simt.h)
}  // namespace penstock::cuda
#else
#include <cuda_runtime_api.h>

namespace penstock::cuda {
using Stream = cudaStream_t;
}  // namespace penstock::cuda
#endif
