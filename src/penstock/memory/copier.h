// Copies bytes over the link between the host's memory and a device's, in one direction.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "absl/status/status.h"

namespace penstock {

struct ByteCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t num_bytes = 0;
};

class Copier {
 public:
  virtual ~Copier() = default;

  // Copies, or gives the copies to the lane's stream. Called by the body of a task on the lane of this direction.
  virtual absl::Status Copy(std::span<const ByteCopy> copies) = 0;
  // Returns whether the link can read these bytes of the host directly. A device's copy engine reads only page-locked
  // memory; other bytes are first copied to page-locked buffers.
  virtual bool CanRead(std::span<const std::byte> bytes) const = 0;
};

// Copies to and from an emulated device: its memory is the host's, and its page-locked memory is emulated, too.
class HostCopier : public Copier {
 public:
  absl::Status Copy(std::span<const ByteCopy> copies) override {
    for (const ByteCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.num_bytes);
    return absl::OkStatus();
  }
  bool CanRead(std::span<const std::byte>) const override { return false; }
};

}  // namespace penstock
