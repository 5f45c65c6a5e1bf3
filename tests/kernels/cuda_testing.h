// Shared by the tests of CUDA kernels: memory of the device that runs them, and the host's kernels to compare with.
// The device is a GPU, or the host where it is emulated.
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
#include "penstock/kernels/kernels.h"

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

inline const Stream kStream = {};

inline const kernels::KernelTable& Host() { return kernels::KernelsFor(kernels::Isa::kScalar); }

inline size_t Size(int64_t count) { return static_cast<size_t>(count); }

// Returns rows as the host prepares them.
inline std::vector<std::byte> PreparedOnHost(kernels::RowFormat format, std::span<const float> x, int64_t num_rows,
                                             int64_t dim) {
  const int64_t stride = kernels::RowBytes(format, dim);
  std::vector<std::byte> rows(Size(num_rows * stride));
  Host().prepare_rows({.num_rows = num_rows,
                       .dim = dim,
                       .first = 0,
                       .count = dim,
                       .source = x.data(),
                       .source_stride = dim,
                       .format = format,
                       .target = rows.data(),
                       .target_stride_bytes = stride});
  return rows;
}

}  // namespace penstock::cuda
