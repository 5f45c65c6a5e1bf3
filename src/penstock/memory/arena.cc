#include "penstock/memory/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

class Dram : public Memory {
  // Large arenas end with a huge page. Disks that were measured read into huge pages up to twice as fast.
  absl::StatusOr<std::byte*> Take(uint64_t size_bytes) override {
    const uint64_t surplus = size_bytes >= kHugePageBytes ? kHugePageBytes - kPageBytes : 0;
    void* const mapped = ::mmap(nullptr, size_bytes + surplus, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      return ResourceError("cannot map {} of memory: {}; is there a limit on address space (ulimit -v)?",
                           FormatBytes(size_bytes), ErrnoText(errno));
    }
    auto* data = static_cast<std::byte*>(mapped);
    if (surplus > 0) {
      const uint64_t before = -reinterpret_cast<uintptr_t>(data + size_bytes) % kHugePageBytes;
      if (before > 0) ::munmap(data, before);
      data += before;
      if (before < surplus) ::munmap(data + size_bytes, surplus - before);
    }
    ::madvise(data, size_bytes, MADV_HUGEPAGE);  // a hint, which some containers refuse
    return data;
  }
  void Release(std::byte* data, uint64_t size_bytes) override { ::munmap(data, size_bytes); }
};

}  // namespace

Memory& HostMemory() {
  static Dram dram;
  return dram;
}

absl::StatusOr<Arena> Memory::Map(uint64_t size_bytes) {
  if (size_bytes == 0) return Arena();
  const uint64_t size = RoundUp(size_bytes, kPageBytes);
  PENSTOCK_ASSIGN_OR_RETURN(std::byte* const data, Take(size));
  return Arena(*this, data, size);
}

absl::Status Memory::Write(std::byte* to, std::span<const std::byte> from) {
  std::copy(from.begin(), from.end(), to);
  return absl::OkStatus();
}

absl::Status Memory::Read(std::span<std::byte> to, const std::byte* from) {
  std::copy_n(from, to.size(), to.begin());
  return absl::OkStatus();
}

absl::Status Memory::Clear(std::byte* to, uint64_t size_bytes) {
  std::memset(to, 0, size_bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> BudgetedMemory::Take(uint64_t size_bytes) {
  if (size_bytes > budget_bytes_ - used_bytes_) {
    return ResourceError("{} memory: {} of {} are taken, and {} more were wanted", name_, FormatBytes(used_bytes_),
                         FormatBytes(budget_bytes_), FormatBytes(size_bytes));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::byte* const data, TakeFrom(*memory_, size_bytes));
  used_bytes_ += size_bytes;
  return data;
}

void BudgetedMemory::Release(std::byte* data, uint64_t size_bytes) {
  ReleaseTo(*memory_, data, size_bytes);
  used_bytes_ -= size_bytes;
}

absl::StatusOr<std::unique_ptr<JoinedMemory>> JoinedMemory::Create(Memory& memory, uint64_t size_bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(Arena block, memory.Map(size_bytes));
  return std::unique_ptr<JoinedMemory>(new JoinedMemory(memory, std::move(block)));
}

absl::StatusOr<std::byte*> JoinedMemory::Take(uint64_t size_bytes) {
  if (size_bytes > block_.size_bytes() - used_bytes_) return TakeFrom(*memory_, size_bytes);
  used_bytes_ += size_bytes;
  return block_.data() + used_bytes_ - size_bytes;
}

void JoinedMemory::Release(std::byte* data, uint64_t size_bytes) {
  const bool is_of_block = data >= block_.data() && data < block_.data() + block_.size_bytes();
  if (!is_of_block) ReleaseTo(*memory_, data, size_bytes);
}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) memory_->Release(data_, size_);
    memory_ = other.memory_;
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) memory_->Release(data_, size_);
}

std::byte* ArenaAllocator::TakeBytes(uint64_t size_bytes) {
  const uint64_t start = RoundUp(used_, kCacheLineBytes);
  PENSTOCK_CHECK(start + size_bytes <= arena_->size_bytes());
  used_ = start + size_bytes;
  return arena_->data() + start;
}

}  // namespace penstock
