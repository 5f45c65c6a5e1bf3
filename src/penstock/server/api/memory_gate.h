// Bounds the memory of work that runs on several threads: work waits until others have left enough.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "penstock/base/check.h"

namespace penstock::server {

class MemoryGate {
 public:
  // Holds its bytes while it lives.
  class Hold {
   public:
    Hold(MemoryGate& gate, uint64_t num_bytes) : gate_(&gate), num_bytes_(num_bytes) {}
    Hold(Hold&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), num_bytes_(other.num_bytes_) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (gate_ != nullptr) gate_->Leave(num_bytes_);
    }

   private:
    MemoryGate* gate_;
    uint64_t num_bytes_;
  };

  // REQUIRES: nothing is held.
  void SetMax(uint64_t max_bytes) { max_bytes_ = max_bytes; }
  uint64_t max_bytes() const { return max_bytes_; }
  // Waits for room. REQUIRES: num_bytes <= max_bytes(). A thread that enters several gates does so in the same order as
  // all others.
  Hold Enter(uint64_t num_bytes) {
    PENSTOCK_CHECK(num_bytes <= max_bytes_);
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return held_bytes_ + num_bytes <= max_bytes_; });
    held_bytes_ += num_bytes;
    return {*this, num_bytes};
  }

 private:
  void Leave(uint64_t num_bytes) {
    {
      const std::lock_guard lock(mutex_);
      held_bytes_ -= num_bytes;
    }
    room_.notify_all();
  }

  uint64_t max_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable room_;
  uint64_t held_bytes_ = 0;
};

}  // namespace penstock::server
