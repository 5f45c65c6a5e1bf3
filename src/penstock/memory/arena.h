// Memory that the budget accounts for: anonymous mappings, page-aligned, zeroed, given back as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "penstock/base/bytes.h"

namespace penstock {

// Owns one mapping. Move-only; empty by default.
class Arena {
 public:
  Arena() = default;
  // kResources when the machine has no room. `size_bytes` is rounded up to whole pages; 0 gives an empty arena.
  static absl::StatusOr<Arena> Map(uint64_t size_bytes);

  Arena(Arena&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_; }

 private:
  Arena(std::byte* data, uint64_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Hands out cache-line-aligned parts of an arena; never frees.
class ArenaAllocator {
 public:
  explicit ArenaAllocator(const Arena& arena) : arena_(&arena) {}

  // REQUIRES: the parts taken so far and this one fit (the plan has counted them).
  template <typename T>
  std::span<T> Take(int64_t count) {
    return {reinterpret_cast<T*>(TakeBytes(static_cast<uint64_t>(count) * sizeof(T))), static_cast<size_t>(count)};
  }
  std::byte* TakeBytes(uint64_t size_bytes);

 private:
  const Arena* arena_;
  uint64_t used_ = 0;
};

}  // namespace penstock
