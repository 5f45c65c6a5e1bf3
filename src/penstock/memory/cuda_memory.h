// The memory of a CUDA device, page-locked memory of the host, and the link between them.
#pragma once

#include <set>

#include "penstock/kernels/cuda/stream.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/copier.h"

namespace penstock {

// Device memory, which the host can neither read nor write.
class CudaMemory : public Memory {
 public:
  explicit CudaMemory(int device_idx) : device_idx_(device_idx) {}

  bool is_host() const override { return false; }
  absl::Status Write(std::byte* to, std::span<const std::byte> from) override;
  absl::Status Read(std::span<std::byte> to, const std::byte* from) override;
  absl::Status Clear(std::byte* to, uint64_t size_bytes) override;
  absl::Status Copy(std::byte* to, std::span<const std::byte> from) override;

 private:
  absl::StatusOr<std::byte*> Take(uint64_t size_bytes) override;
  void Release(std::byte* data, uint64_t size_bytes) override;

  int device_idx_;
};

// DRAM that the device's copy engines can read and write. If the machine refuses to lock pages (ulimit -l, too little
// memory), this memory warns once and stays ordinary. Copies still work, through buffers.
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

// One direction of the link: copies are given to a stream. CUDA infers the kind of a copy from its addresses.
class CudaCopier : public Copier {
 public:
  enum class Direction : uint8_t { kToDevice, kToHost };
  CudaCopier(Direction direction, int device_idx, cuda::Stream stream);

  absl::Status Copy(std::span<const ByteCopy> copies) override;
  bool CanRead(std::span<const std::byte> bytes) const override;

 private:
  Direction direction_;
  cuda::Stream stream_;
  bool batches_ = false;  // gives copies in batches; only between page-locked memory and the device
};

}  // namespace penstock
