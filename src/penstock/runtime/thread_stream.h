// A device stream without a device: one thread does the work in order. It serves schedules and tests on machines
// without a device. As on a device, the work is done later, and in no fixed order with the host's work.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "penstock/runtime/device_stream.h"

namespace penstock {

class ThreadStream : public DeviceStream {
 public:
  ThreadStream();
  ~ThreadStream() override;  // waits for all work given

  // The thread calls `body`.
  absl::Status Run(const std::function<absl::Status()>& body) override;
  std::shared_ptr<Mark> Record() override;
  void WaitFor(const std::shared_ptr<Mark>& mark) override;
  absl::Status Synchronise(const Mark& mark) override;

 private:
  class ThreadMark;
  void Give(std::function<void()> work);
  void Work();

  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool stop_ = false;                        // guarded by mutex_
  absl::Status status_;                      // status of the work so far; only the thread uses it
  std::thread thread_;
};

}  // namespace penstock
