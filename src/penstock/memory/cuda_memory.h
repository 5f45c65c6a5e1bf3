// The memory of a CUDA device, page-locked memory of the host's, and the link between them.
#pragma once

#include <set>

#include "penstock/kernels/cuda/stream.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/copier.h"

namespace penstock {

// On the device: the host neither reads nor writes it.
class CudaMemory : public Memory {
 public:
  explicit CudaMemory(int device_idx) : device_idx_(device_idx) {}

  bool is_host() const override { return false; }
  absl::Status Write(std::byte* to, std::span<const std::byte> from) override;
  absl::Status Clear(std::byte* to, uint64_t size_bytes) override;

 private:
  absl::StatusOr<std::byte*> Take(uint64_t size_bytes) override;
  void Release(std::byte* data, uint64_t size_bytes) override;

  int device_idx_;
};

// DRAM that the device's copy engines reach. Where the machine refuses to lock pages (ulimit -l, too little memory) it
// is ordinary memory, and says so once: copies still work, by way of buffers.
class PageLockedMemory : public Memory {
 public:
  explicit PageLockedMemory(int device_idx) : device_idx_(device_idx) {}

 private:
  absl::StatusOr<std::byte*> Take(uint64_t size_bytes) override;
  void Release(std::byte* data, uint64_t size_bytes) override;

  int device_idx_;
  std::set<const std::byte*> locked_;
  bool has_warned_ = false;
};

// One direction of the link: copies are given to a stream. The kind is told by where the bytes lie.
class CudaCopier : public Copier {
 public:
  enum class Direction : uint8_t { kToDevice, kToHost };
  CudaCopier(Direction direction, int device_idx, cuda::Stream stream);

  absl::Status Copy(std::span<const ByteCopy> copies) override;
  bool CanRead(std::span<const std::byte> bytes) const override;

 private:
  Direction direction_;
  cuda::Stream stream_;
  bool batches_ = false;  // copies between memory that is page-locked
};

}  // namespace penstock
