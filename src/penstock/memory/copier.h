// Bytes that cross the link between the host's memory and a device's, in one direction.
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

  // For the body of a task on the lane of this direction: copies, or gives the copies to the lane's stream.
  virtual absl::Status Copy(std::span<const ByteCopy> copies) = 0;
  // Whether these bytes of the host's can cross the link as they lie. What cannot goes through page-locked buffers,
  // which is all that a device's copy engine can read.
  virtual bool CanRead(std::span<const std::byte> bytes) const = 0;
};

// To and from a device that is emulated: its memory is the host's, and page-locked memory is emulated, too.
class HostCopier : public Copier {
 public:
  absl::Status Copy(std::span<const ByteCopy> copies) override {
    for (const ByteCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.num_bytes);
    return absl::OkStatus();
  }
  bool CanRead(std::span<const std::byte>) const override { return false; }
};

}  // namespace penstock
