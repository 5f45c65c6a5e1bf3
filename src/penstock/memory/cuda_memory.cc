#include "penstock/memory/cuda_memory.h"

#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/logging.h"
#include "penstock/kernels/cuda/status.h"

namespace penstock {

absl::StatusOr<std::byte*> CudaMemory::Take(uint64_t size_bytes) {
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_idx_));
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size_bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // clears the error, so that later calls do not report it
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return ResourceError("the GPU has no room for {}: {} of {} are free; give less --gpu-memory",
                         FormatBytes(size_bytes), FormatBytes(free_bytes), FormatBytes(total_bytes));
  }
  PENSTOCK_RETURN_IF_ERROR(PENSTOCK_CUDA_STATUS(error));
  return static_cast<std::byte*>(data);
}

void CudaMemory::Release(std::byte* data, uint64_t) { (void)cudaFree(data); }

// cudaMemcpy() from pageable memory returns when the source has been read, perhaps before the copy ends; other streams
// do not wait for it.
absl::Status CudaMemory::Write(std::byte* to, std::span<const std::byte> from) {
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice));
  return PENSTOCK_CUDA_STATUS(cudaDeviceSynchronize());
}

absl::Status CudaMemory::Read(std::span<std::byte> to, const std::byte* from) {
  return PENSTOCK_CUDA_STATUS(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost));
}

absl::Status CudaMemory::Clear(std::byte* to, uint64_t size_bytes) {
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaMemset(to, 0, size_bytes));
  return PENSTOCK_CUDA_STATUS(cudaDeviceSynchronize());
}

absl::Status CudaMemory::Copy(std::byte* to, std::span<const std::byte> from) {
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyDeviceToDevice));
  return PENSTOCK_CUDA_STATUS(cudaDeviceSynchronize());
}

absl::StatusOr<std::byte*> PageLockedMemory::Take(uint64_t size_bytes) {
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_idx_));
  PENSTOCK_ASSIGN_OR_RETURN(std::byte* const data, TakeFrom(HostMemory(), size_bytes));
  const cudaError_t error = cudaHostRegister(data, size_bytes, cudaHostRegisterDefault);
  if (error == cudaSuccess) {
    locked_.insert(data);
    return data;
  }
  (void)cudaGetLastError();
  if (!has_warned_) {
    LogWarning("{} of memory cannot be page-locked ({}): it crosses the link in two hops, which is slower",
               FormatBytes(size_bytes), cudaGetErrorString(error));
  }
  has_warned_ = true;
  return data;
}

void PageLockedMemory::Release(std::byte* data, uint64_t size_bytes) {
  if (locked_.erase(data) == 1) (void)cudaHostUnregister(data);
  ReleaseTo(HostMemory(), data, size_bytes);
}

// A batched copy takes addresses as they are. So copies from and to pageable memory are made one by one. If the device
// uses other addresses for memory that was locked after its allocation (WSL2), all copies are made one by one.
CudaCopier::CudaCopier(Direction direction, int device_idx, cuda::Stream stream)
    : direction_(direction), stream_(stream) {
#if CUDART_VERSION >= 13000
  int same_address = 0;
  batches_ =
      cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device_idx) == cudaSuccess &&
      same_address == 1;
#else
  (void)device_idx;
#endif
}

absl::Status CudaCopier::Copy(std::span<const ByteCopy> copies) {
  const cudaMemcpyKind kind = direction_ == Direction::kToDevice ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
#if CUDART_VERSION >= 13000
  // Giving a copy to a stream takes longer than a small copy itself, so many copies are given at once.
  constexpr size_t kManyCopies = 4;
  if (batches_ && copies.size() >= kManyCopies &&
      CanRead({direction_ == Direction::kToDevice ? copies[0].from : copies[0].to, 1})) {
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<size_t> sizes;
    for (const ByteCopy& copy : copies) {
      if (copy.num_bytes == 0) continue;
      to.push_back(copy.to);
      from.push_back(copy.from);
      sizes.push_back(copy.num_bytes);
    }
    if (to.empty()) return absl::OkStatus();
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    return PENSTOCK_CUDA_STATUS(
        cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), to.size(), &attributes, &first, 1, stream_));
  }
#endif
  for (const ByteCopy& copy : copies) {
    if (copy.num_bytes == 0) continue;
    PENSTOCK_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(copy.to, copy.from, copy.num_bytes, kind, stream_));
  }
  return absl::OkStatus();
}

bool CudaCopier::CanRead(std::span<const std::byte> bytes) const {
  cudaPointerAttributes attributes = {};
  const bool is_known = cudaPointerGetAttributes(&attributes, bytes.data()) == cudaSuccess;
  if (!is_known) (void)cudaGetLastError();
  return is_known && attributes.type == cudaMemoryTypeHost;
}

}  // namespace penstock
