// Touches the pages of an arena for the first time, shortly before reads fill them.
//
// The first touch of a page takes longer than its read from a fast disk where a virtual machine's host must first find
// memory for it: 0.4 against 3 GB/s were measured. The thread that reads would touch all pages alone, so threads of
// this class go ahead of it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "penstock/base/bytes.h"

namespace penstock {

class PageToucher {
 public:
  // `bytes` must outlive this object and begin with a page. Changes none of them, so others may write them meanwhile.
  // Without threads, or on a kernel before 5.14, the pages are left to those who use them. Touches at most
  // `ahead_bytes` before they are wanted.
  PageToucher(std::span<std::byte> bytes, int num_threads, uint64_t ahead_bytes);
  ~PageToucher();

  // Reports that the bytes before `end` are wanted from now on. Those before the first `end` are left to the caller.
  void OnWanted(uint64_t end);
  // Waits until all is touched that OnWanted() asked for.
  void Wait();

 private:
  void Work();  // a thread

  const std::span<std::byte> bytes_;
  const uint64_t ahead_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0, end_ = 0;  // from one to the other will be touched
  int num_working_ = 0;          // threads that have not ended
  int num_touching_ = 0;         // threads that touch pages now
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
