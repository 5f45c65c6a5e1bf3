// Memory that the budgets account for: blocks in one tier, freed as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/bytes.h"

namespace penstock {

class Arena;

inline constexpr uint64_t kHugePageBytes = 2 * kMiB;

// A source of arenas: the host's DRAM, or the memory of a device. Must outlive its arenas.
class Memory {
 public:
  virtual ~Memory() = default;

  // Returns an arena of `size_bytes`, rounded up to whole pages; 0 gives an empty arena. kResources when there is no
  // room.
  absl::StatusOr<Arena> Map(uint64_t size_bytes);

  // Returns whether the host can read and write arenas directly. If not, use the functions below, which return when
  // the bytes are there.
  virtual bool is_host() const { return true; }
  virtual absl::Status Write(std::byte* to, std::span<const std::byte> from);
  virtual absl::Status Read(std::span<std::byte> to, const std::byte* from);
  virtual absl::Status Clear(std::byte* to, uint64_t size_bytes);
  // Copies bytes of this memory to another place of it.
  virtual absl::Status Copy(std::byte* to, std::span<const std::byte> from) { return Write(to, from); }

 protected:
  // Take() and Release() of another memory, for memories that are built on it.
  static absl::StatusOr<std::byte*> TakeFrom(Memory& memory, uint64_t size_bytes) { return memory.Take(size_bytes); }
  static void ReleaseTo(Memory& memory, std::byte* data, uint64_t size_bytes) { memory.Release(data, size_bytes); }

 private:
  friend class Arena;
  // REQUIRES: `size_bytes` is a multiple of the page size.
  virtual absl::StatusOr<std::byte*> Take(uint64_t size_bytes) = 0;
  virtual void Release(std::byte* data, uint64_t size_bytes) = 0;
};

// Anonymous pages of DRAM. They read as zeros and are allocated at the first write. Arenas ask for huge pages. Those of
// a huge page or more end with one.
Memory& HostMemory();

// Owns one block. Move-only; a default-constructed arena is empty.
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

// A memory that hands out no more bytes than its budget.
class BudgetedMemory : public Memory {
 public:
  // `name` appears in errors ("device"). `memory` must outlive this object.
  BudgetedMemory(std::string name, Memory& memory, uint64_t budget_bytes)
      : name_(std::move(name)), memory_(&memory), budget_bytes_(budget_bytes) {}

  uint64_t used_bytes() const { return used_bytes_; }
  bool is_host() const override { return memory_->is_host(); }
  absl::Status Write(std::byte* to, std::span<const std::byte> from) override { return memory_->Write(to, from); }
  absl::Status Read(std::span<std::byte> to, const std::byte* from) override { return memory_->Read(to, from); }
  absl::Status Clear(std::byte* to, uint64_t size_bytes) override { return memory_->Clear(to, size_bytes); }
  absl::Status Copy(std::byte* to, std::span<const std::byte> from) override { return memory_->Copy(to, from); }

 private:
  absl::StatusOr<std::byte*> Take(uint64_t size_bytes) override;
  void Release(std::byte* data, uint64_t size_bytes) override;

  std::string name_;
  Memory* memory_;
  uint64_t budget_bytes_;
  uint64_t used_bytes_ = 0;
};

// A memory whose arenas lie beside each other in one block, in the order in which they are mapped. So arenas that are
// smaller than a huge page lie in huge pages, too. The block is given back as a whole.
class JoinedMemory : public Memory {
 public:
  // Takes the block from `memory`, and arenas for which the block has no room. `memory` must outlive this object.
  static absl::StatusOr<std::unique_ptr<JoinedMemory>> Create(Memory& memory, uint64_t size_bytes);

 private:
  JoinedMemory(Memory& memory, Arena block) : memory_(&memory), block_(std::move(block)) {}
  absl::StatusOr<std::byte*> Take(uint64_t size_bytes) override;
  void Release(std::byte* data, uint64_t size_bytes) override;

  Memory* memory_;
  Arena block_;
  uint64_t used_bytes_ = 0;
};

// Hands out parts of an arena, aligned to cache lines; never frees them.
class ArenaAllocator {
 public:
  explicit ArenaAllocator(const Arena& arena) : arena_(&arena) {}

  // REQUIRES: the arena has room for this part. (The memory plan counts all parts.)
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
