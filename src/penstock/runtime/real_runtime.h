// The runtime that does the work: bodies run on threads, reads on a disk reader, and everything is measured.
//
// There are four kinds of lanes:
// - An *issuer lane* has no thread. Its tasks run in the issuer while it waits, so that a machine with one processor
//   hands no task from thread to thread.
// - A *thread lane* has its own thread. Given a rate, its tasks take as long as on a link of that rate.
// - A *disk lane* keeps several reads under way.
// - A *stream lane* gives its tasks to a device's stream. The device handles events between two streams; the host waits
//   only for the events that it needs itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "penstock/runtime/device_stream.h"
#include "penstock/runtime/disk_reader.h"
#include "penstock/runtime/lane_account.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

// How a lane reads.
struct DiskUse {
  int64_t max_reading = kAnyReading;  // tasks that are read at once
  // Whether targets are so few that caches hold them. What caches hold of one is then dropped before it is read into.
  bool cached_targets = false;
};

class RealRuntime : public Runtime {
 public:
  RealRuntime();
  // Calls Cancel().
  ~RealRuntime() override;
  RealRuntime(const RealRuntime&) = delete;
  RealRuntime& operator=(const RealRuntime&) = delete;

  LaneIdx AddIssuerLane(std::string name);
  // A task takes at least cost.link_bytes / link_bytes_per_s seconds. With a rate of 0 it takes as long as its body.
  LaneIdx AddThreadLane(std::string name, double link_bytes_per_s = 0);
  LaneIdx AddDiskLane(std::string name, std::unique_ptr<DiskReader> reader, DiskUse use = {});
  // REQUIRES: all streams belong to one device.
  LaneIdx AddStreamLane(std::string name, std::unique_ptr<DeviceStream> stream);
  // Returns kResources if the system refused a lane its thread. Such a lane never runs a task.
  absl::Status lane_status() const { return lane_status_; }

  Event Issue(Task task) override;
  absl::Status Wait(const Event& event) override;
  size_t WaitAny(std::span<const Event> events) override;
  bool Done(const Event& event) const override;
  double Seconds(const Event& event) const override;
  void Cancel() override;
  double now_s() const override;
  // Begins to count seconds anew. REQUIRES: no task is under way.
  void RestartClock();
  std::vector<LaneUsage> Usage() const override;
  void ResetUsage() override;
  void SetSink(TaskSink* sink) override;

 private:
  struct TaskState;
  using TaskRef = std::shared_ptr<TaskState>;
  enum class LaneKind : uint8_t { kIssuer, kThread, kDisk, kStream };
  using Lock = std::unique_lock<std::mutex>;
  // Wakes one thread. The thread polls for a moment before it sleeps, because waking takes longer than many tasks.
  class Bell {
   public:
    // REQUIRES: the caller holds the runtime's mutex.
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
    std::thread end_thread;  // on a stream lane: waits for tasks to end
    Bell end_bell;
    Bell bell;
    std::deque<TaskRef> queue;     // guarded by mutex_, like all fields below
    bool is_running = false;       // a task runs on the lane's thread or on the thread that made it ready
    std::vector<TaskRef> reading;  // on a disk lane: tasks under way; the index is the tag of their reads
    int64_t num_reading = 0;
    DiskUse use;                             // not guarded, like the next field
    absl::flat_hash_set<std::byte*> filled;  // with use.cached_targets: the targets of earlier reads
    uint64_t reading_bytes = 0;
    bool in_reader = false;     // the thread waits for the disk
    std::deque<TaskRef> given;  // given to the stream, not ended
    double last_end_s = 0;      // end of the last task of the stream

    bool may_read_more() const;
  };

  LaneIdx AddLane(std::string name, std::unique_ptr<Lane> lane);
  void StartLaneThread(std::thread& thread, std::function<void()> body);
  static const TaskState* StateOf(const Event& event);
  // Ends the tasks at the front of the queue whose events failed. Then returns the first task if it can run.
  TaskRef TakeReady(Lane& lane, Lock& lock);
  // Runs the task's body. If `may_help`, also runs a transfer that the task made ready, where that is quicker than
  // waking the link's thread.
  void RunBody(Lane& lane, const TaskRef& task, Lock& lock, bool may_help = true);
  // Ends the task and wakes the lanes that can now continue. If `run` is given, one lane is stored there instead, for
  // the caller to run.
  void End(Lane& lane, const TaskRef& task, absl::Status status, Lock& lock, Lane** run = nullptr);
  // Returns whether the first task of the queue is a transfer that takes less time than waking a thread.
  static bool IsShort(const Lane& lane);
  void WakeLane(Lane& lane);
  // Runs the tasks of the issuer lanes until `happened` returns true.
  template <typename Predicate>
  void WorkUntil(Predicate happened);
  void ThreadWork(Lane& lane);
  void DiskWork(Lane& lane);
  // One thread gives tasks to the stream, another waits for them to end.
  void StreamWork(Lane& lane);
  void StreamEndWork(Lane& lane);
  void GiveToStream(Lane& lane, const TaskRef& task, Lock& lock);
  void BeginReads(Lane& lane, Lock& lock);

  std::chrono::steady_clock::time_point epoch_;
  mutable std::mutex mutex_;
  Bell issuer_bell_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  absl::Status lane_status_;
  LaneAccount account_;         // guarded by mutex_
  int64_t num_unfinished_ = 0;  // tasks
  int64_t num_ended_ = 0;
  bool cancelling_ = false;
  bool stop_ = false;
};

}  // namespace penstock
