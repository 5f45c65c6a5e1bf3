#include "penstock/memory/arena.h"

#include <cerrno>

#include <sys/mman.h>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {

absl::StatusOr<Arena> Arena::Map(uint64_t size_bytes) {
  if (size_bytes == 0) return Arena();
  const uint64_t size = RoundUp(size_bytes, kPageBytes);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return ResourceError("cannot map {} of memory: {}; is there a limit on address space (ulimit -v)?",
                         FormatBytes(size), ErrnoText(errno));
  }
  ::madvise(data, size, MADV_HUGEPAGE);  // a hint; refused in some containers
  return Arena(static_cast<std::byte*>(data), size);
}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::byte* ArenaAllocator::TakeBytes(uint64_t size_bytes) {
  const uint64_t start = RoundUp(used_, kCacheLineBytes);
  PENSTOCK_CHECK(start + size_bytes <= arena_->size_bytes());
  used_ = start + size_bytes;
  return arena_->data() + start;
}

}  // namespace penstock
