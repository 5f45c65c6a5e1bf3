// The part of CUDA's runtime that Penstock calls, on the host's threads, for tests. Streams are threads that do their
// work in order. Device memory is memory that the host must not touch; AddressSanitizer enforces that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
  uint32_t x = 1, y = 1, z = 1;
  constexpr dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

#define CUDART_VERSION 13000

using cudaError_t = int;
inline constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2,
                             cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101, cudaErrorNotReady = 600,
                             cudaErrorIllegalAddress = 700, cudaErrorHostMemoryAlreadyRegistered = 712;
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  size_t sharedMemPerBlockOptin;
  int multiProcessorCount;
  int major, minor;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
enum cudaDeviceAttr { cudaDevAttrCanUseHostPointerForRegisteredMem };
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

cudaError_t cudaMalloc(void** data, size_t size);
cudaError_t cudaFree(void* data);
inline constexpr unsigned cudaHostRegisterDefault = 0;
cudaError_t cudaHostRegister(void* data, size_t size, unsigned flags);
cudaError_t cudaHostUnregister(void* data);
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
  cudaMemoryType type;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data);

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventBlockingSync = 1,
                          cudaEventDefault = 0;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
// The null stream copies at once.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream);
enum cudaMemcpySrcAccessOrder { cudaMemcpySrcAccessOrderInvalid, cudaMemcpySrcAccessOrderStream };
struct cudaMemcpyAttributes {
  cudaMemcpySrcAccessOrder srcAccessOrder;
};
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* firsts, size_t num_attributes,
                                 cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind);
cudaError_t cudaMemset(void* data, int value, size_t size);

namespace penstock::cuda::emulated {

// Gives work to a stream; launches of kernels use it.
void Enqueue(cudaStream_t stream, std::function<void()> work);

// The emulated machine as tests observe it and make it fail.
struct Machine {
  size_t memory_bytes = size_t{1} << 30;
  size_t shared_bytes = size_t{227} << 10;  // of a block
  size_t used_bytes = 0;
  size_t max_used_bytes = 0;
  int64_t num_copies = 0;
  int64_t num_pageable_copies = 0;   // asynchronous copies from or to memory that is not page-locked
  int64_t num_synchronisations = 0;  // times that a host thread waited for a stream or the whole device
  bool refuses_page_locking = false;
  // Everything on the device fails from the copy of this number on (0: never).
  int64_t fails_at_copy = 0;
};
// Returns the machine. REQUIRES: no stream is working.
Machine& TheMachine();
// Restores the initial machine after a failure.
void Reset();

}  // namespace penstock::cuda::emulated
