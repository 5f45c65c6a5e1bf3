#include "penstock/runtime/page_toucher.h"

#include <algorithm>
#include <utility>

#include <sys/mman.h>

#include "penstock/base/checked.h"
#include "penstock/base/thread.h"

namespace penstock {
namespace {

constexpr uint64_t kStepBytes = 2 * kMiB;  // a huge page

}  // namespace

PageToucher::PageToucher(std::span<std::byte> bytes, int num_threads, uint64_t ahead_bytes)
    : bytes_(bytes), ahead_bytes_(ahead_bytes) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < num_threads; ++i) {
    absl::StatusOr<std::thread> thread = StartThread([this] { Work(); });
    if (!thread.ok()) break;
    threads_.push_back(*std::move(thread));
    ++num_working_;
  }
}

PageToucher::~PageToucher() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PageToucher::OnWanted(uint64_t end) {
  {
    const std::lock_guard lock(mutex_);
    const uint64_t size = bytes_.size();
    if (end_ == 0) next_ = std::min(RoundUp(end, kStepBytes), size);
    end_ = std::max(end_, std::min(RoundUp(end + ahead_bytes_, kStepBytes), size));
  }
  changed_.notify_all();
}

void PageToucher::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return num_working_ == 0 || (next_ >= end_ && num_touching_ == 0); });
}

void PageToucher::Work() {
  std::unique_lock lock(mutex_);
  bool is_able = true;
  while (is_able) {
    const auto has_all = [this] { return next_ == bytes_.size(); };
    changed_.wait(lock, [&] { return ends_ || has_all() || next_ < end_; });
    if (ends_ || has_all()) break;
    std::byte* const begin = bytes_.data() + next_;
    const uint64_t size = std::min(kStepBytes, end_ - next_);
    next_ += size;
    ++num_touching_;
    lock.unlock();
    is_able = ::madvise(begin, size, MADV_POPULATE_WRITE) == 0;
    lock.lock();
    --num_touching_;
    changed_.notify_all();
  }
  --num_working_;
  changed_.notify_all();
}

}  // namespace penstock
