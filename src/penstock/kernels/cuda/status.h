// Errors of CUDA's runtime as statuses.
#pragma once

#include <cuda_runtime_api.h>

#include "penstock/base/status.h"

namespace penstock::cuda {

inline absl::Status StatusOf(cudaError_t error, const char* expression, const char* file, int line) {
  if (error == cudaSuccess) return absl::OkStatus();
  if (error == cudaErrorMemoryAllocation) return ResourceError("{}: out of memory", expression);
  return MakeError(Fault::kInternal, fmt::format("{} failed: {} ({}), at {}:{}", expression, cudaGetErrorString(error),
                                                 cudaGetErrorName(error), file, line));
}

}  // namespace penstock::cuda

// Returns the status of a call: out of memory is kResources, any other error is a bug of ours or a fault of the
// machine.
#define PENSTOCK_CUDA_STATUS(expression) ::penstock::cuda::StatusOf((expression), #expression, __FILE_NAME__, __LINE__)
#define PENSTOCK_CUDA_RETURN_IF_ERROR(expression) PENSTOCK_RETURN_IF_ERROR(PENSTOCK_CUDA_STATUS(expression))
