// Memory that the budgets account for: blocks of one tier, given back as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/bytes.h"

namespace penstock {

class Arena;

// Where arenas come from: the host's DRAM, or what a device has. Outlives its arenas.
class Memory {
 public:
  virtual ~Memory() = default;

  // kResources when there is no room. `size_bytes` is rounded up to whole pages; 0 gives an empty arena.
  absl::StatusOr<Arena> Map(uint64_t size_bytes);

  // Whether the host can read and write arenas itself. Else Write() and Clear() do; they return when it is done.
  virtual bool is_host() const { return true; }
  virtual absl::Status Write(std::byte* to, std::span<const std::byte> from);
  virtual absl::Status Clear(std::byte* to, uint64_t size_bytes);

 protected:
  // For memories that are made of others.
  static absl::StatusOr<std::byte*> TakeFrom(Memory& memory, uint64_t size_bytes) { return memory.Take(size_bytes); }
  static void ReleaseTo(Memory& memory, std::byte* data, uint64_t size_bytes) { memory.Release(data, size_bytes); }

 private:
  friend class Arena;
  // Of whole pages.
  virtual absl::StatusOr<std::byte*> Take(uint64_t size_bytes) = 0;
  virtual void Release(std::byte* data, uint64_t size_bytes) = 0;
};

// Anonymous pages of DRAM: zeros, there from when they are first written.
Memory& HostMemory();

// Owns one block. Move-only; empty by default.
class Arena {
 public:
  Arena() = default;
  Arena(Arena&& other) noexcept
      : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_; }

 private:
  friend class Memory;
  Arena(Memory& memory, std::byte* data, uint64_t size) : memory_(&memory), data_(data), size_(size) {}

  Memory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// A memory of which no more than a budget is handed out.
class BudgetedMemory : public Memory {
 public:
  // `name`: "device", for errors. `memory` outlives this.
  BudgetedMemory(std::string name, Memory& memory, uint64_t budget_bytes)
      : name_(std::move(name)), memory_(&memory), budget_bytes_(budget_bytes) {}

  uint64_t used_bytes() const { return used_bytes_; }
  bool is_host() const override { return memory_->is_host(); }
  absl::Status Write(std::byte* to, std::span<const std::byte> from) override { return memory_->Write(to, from); }
  absl::Status Clear(std::byte* to, uint64_t size_bytes) override { return memory_->Clear(to, size_bytes); }

 private:
  absl::StatusOr<std::byte*> Take(uint64_t size_bytes) override;
  void Release(std::byte* data, uint64_t size_bytes) override;

  std::string name_;
  Memory* memory_;
  uint64_t budget_bytes_;
  uint64_t used_bytes_ = 0;
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
