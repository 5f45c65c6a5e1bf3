// Tables that travel to a device in one upload. Each part begins at a cache line.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"

namespace penstock {

class CudaTable {
 public:
  // Adds a part, and returns its offset.
  template <typename Value>
  size_t Add(std::span<const Value> values) {
    const size_t offset = RoundUp(bytes_.size(), kCacheLineBytes);
    const std::span<const std::byte> bytes = std::as_bytes(values);
    bytes_.resize(offset);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return offset;
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace penstock
