// The runtime that works: bodies run on threads, reads on a disk reader, and everything is measured.
//
// Four kinds of lanes. An *issuer lane* has no thread: its tasks run in the issuer while it waits, so that on a
// machine with one processor no task is handed from thread to thread. A *thread lane* has one of its own; with a rate
// it takes its time, as a link of that rate would. A *disk lane* keeps several reads under way. A *stream lane* gives
// its tasks to a device's stream: between two of them events are left to the device, and only what the host waits for
// comes back to it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "penstock/runtime/device_stream.h"
#include "penstock/runtime/disk_reader.h"
#include "penstock/runtime/lane_account.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

class RealRuntime : public Runtime {
 public:
  RealRuntime();
  // Cancels.
  ~RealRuntime() override;
  RealRuntime(const RealRuntime&) = delete;
  RealRuntime& operator=(const RealRuntime&) = delete;

  LaneIdx AddIssuerLane(std::string name);
  // A task takes at least cost.link_bytes / link_bytes_per_s; 0: no longer than its body.
  LaneIdx AddThreadLane(std::string name, double link_bytes_per_s = 0);
  LaneIdx AddDiskLane(std::string name, std::unique_ptr<DiskReader> reader);
  // All streams are of one device.
  LaneIdx AddStreamLane(std::string name, std::unique_ptr<DeviceStream> stream);

  Event Issue(Task task) override;
  absl::Status Wait(const Event& event) override;
  size_t WaitAny(std::span<const Event> events) override;
  bool Done(const Event& event) const override;
  double Seconds(const Event& event) const override;
  void Cancel() override;
  double now_s() const override;
  std::vector<LaneUsage> Usage() const override;
  void ResetUsage() override;
  void SetSink(TaskSink* sink) override;

 private:
  struct TaskState;
  using TaskRef = std::shared_ptr<TaskState>;
  enum class LaneKind : uint8_t { kIssuer, kThread, kDisk, kStream };
  using Lock = std::unique_lock<std::mutex>;
  // Wakes one thread, which looks out for a moment before it sleeps: waking takes longer than many tasks do.
  class Bell {
   public:
    // REQUIRES: the runtime's mutex.
    void Ring();
    void Wait(Lock& lock);

   private:
    std::condition_variable wake_;
    std::atomic<uint32_t> num_rings_ = 0;
  };
  struct Lane {
    LaneKind kind = LaneKind::kIssuer;
    LaneIdx idx = 0;
    double link_bytes_per_s = 0;
    std::unique_ptr<DiskReader> reader;
    std::unique_ptr<DeviceStream> stream;
    std::thread thread;
    std::thread end_thread;  // of a stream: waits for its tasks to end
    Bell end_bell;
    Bell bell;
    std::deque<TaskRef> queue;     // guarded by mutex_, like all below
    bool is_running = false;       // a task, on its thread or on the one that made it ready
    std::vector<TaskRef> reading;  // on a disk lane: under way; the index is the reads' tag
    int num_reading = 0;
    uint64_t reading_bytes = 0;
    bool in_reader = false;     // the thread waits for the disk
    std::deque<TaskRef> given;  // to the stream, not ended
    double last_end_s = 0;      // of a stream's task
  };

  LaneIdx AddLane(std::string name, std::unique_ptr<Lane> lane);
  static const TaskState* StateOf(const Event& event);
  // The task in front when nothing keeps it from running. Ends tasks in front whose events failed.
  TaskRef TakeReady(Lane& lane, Lock& lock);
  // And, where it may help, a transfer that it made ready and that takes less time than to wake the link's thread.
  void RunBody(Lane& lane, const TaskRef& task, Lock& lock, bool may_help = true);
  // Wakes all lanes that can go on but one that the caller is to `run`, if it may.
  void End(Lane& lane, const TaskRef& task, absl::Status status, Lock& lock, Lane** run = nullptr);
  // Whether the task in front is a transfer that ends before a thread wakes.
  static bool IsShort(const Lane& lane);
  void WakeLane(Lane& lane);
  // Runs what the issuer lanes have until `happened`.
  template <typename Predicate>
  void WorkUntil(Predicate happened);
  void ThreadWork(Lane& lane);
  void DiskWork(Lane& lane);
  // Gives tasks to the stream, and waits for their ends.
  void StreamWork(Lane& lane);
  void StreamEndWork(Lane& lane);
  void GiveToStream(Lane& lane, const TaskRef& task, Lock& lock);
  void BeginReads(Lane& lane, Lock& lock);

  const std::chrono::steady_clock::time_point epoch_;
  mutable std::mutex mutex_;
  Bell issuer_bell_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  LaneAccount account_;         // guarded by mutex_
  int64_t num_unfinished_ = 0;  // tasks
  int64_t num_ended_ = 0;
  bool cancelling_ = false;
  bool stop_ = false;
};

}  // namespace penstock
