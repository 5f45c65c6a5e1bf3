// Memory of the device that runs the kernels under test: a GPU, or the host where they are emulated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/kernels/cuda/stream.h"

namespace penstock::cuda {

#ifdef PENSTOCK_EMULATED_SIMT
inline void* AllocateOnDevice(size_t size_bytes) { return ::operator new (size_bytes, std::align_val_t{64}); }
inline void FreeOnDevice(void* data) { ::operator delete (data, std::align_val_t{64}); }
inline void CopyToDevice(void* target, const void* source, size_t size_bytes) {
  std::memcpy(target, source, size_bytes);
}
inline void CopyFromDevice(void* target, const void* source, size_t size_bytes) {
  std::memcpy(target, source, size_bytes);
}
#else
inline void ExpectNoError(cudaError_t error) { EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }
inline void* AllocateOnDevice(size_t size_bytes) {
  void* data = nullptr;
  ExpectNoError(cudaMalloc(&data, size_bytes));
  return data;
}
inline void FreeOnDevice(void* data) { ExpectNoError(cudaFree(data)); }
inline void CopyToDevice(void* target, const void* source, size_t size_bytes) {
  ExpectNoError(cudaMemcpy(target, source, size_bytes, cudaMemcpyHostToDevice));
}
// Waits for the kernels before it, and reports their errors.
inline void CopyFromDevice(void* target, const void* source, size_t size_bytes) {
  ExpectNoError(cudaGetLastError());
  ExpectNoError(cudaMemcpy(target, source, size_bytes, cudaMemcpyDeviceToHost));
}
#endif

// Elements on the device. Unwritten ones have all bits set: NaN, or -1.
template <typename T>
class OnDevice {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit OnDevice(size_t count) : OnDevice(std::vector<std::byte>(count * sizeof(T), std::byte{0xFF}), count) {}
  explicit OnDevice(std::span<const T> values) : OnDevice(Bytes(values), values.size()) {}
  ~OnDevice() { FreeOnDevice(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return data_; }
  std::vector<T> ToHost() const {
    std::vector<T> values(count_);
    CopyFromDevice(values.data(), data_, count_ * sizeof(T));
    return values;
  }

 private:
  OnDevice(const std::vector<std::byte>& bytes, size_t count)
      : data_(static_cast<T*>(AllocateOnDevice(std::max<size_t>(64, bytes.size())))), count_(count) {
    CopyToDevice(data_, bytes.data(), bytes.size());
  }
  static std::vector<std::byte> Bytes(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
  }

  T* data_;
  size_t count_;
};

}  // namespace penstock::cuda
