// A pinned pool of worker threads for one compute lane.
//
// The calling thread is worker 0 and takes part. Workers spin for a short while between regions and then
// sleep, because a forward pass opens thousands of regions a second. A worker whose CPU is taken by another process may
// come too late for a region: then the others do its share, and nobody waits for it. If that happens to a thread within
// a task, a thread that has nothing to do gives it its own CPU. Not thread-safe: one region at a time, opened by one
// thread.
#pragma once

#include <sched.h>
#include <sys/types.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace penstock {

// Returns how many CPUs this process may use (affinity mask and cgroup quota, at least 1).
int NumUsableCpus();
// Restricts the calling thread, and the threads that it starts later, to one of `num_shares` equal shares of its usable
// CPUs. Does nothing if there are fewer CPUs than shares.
void UseShareOfCpus(int share_idx, int num_shares);

class ThreadPool {
 public:
  // `num_threads` >= 1 includes the caller. Worker i is pinned to the i-th usable CPU while there are enough CPUs; kNo
  // is for a pool beside another one. The pool has fewer workers than requested when the system refuses more threads.
  enum class Pinned : uint8_t { kNo, kYes };
  explicit ThreadPool(int num_threads, Pinned pinned = Pinned::kYes);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_workers() const { return static_cast<int>(threads_.size()) + 1; }

  // Keeps the calling thread, for the lifetime of this object, on the CPU that the pinned workers leave free. A caller
  // that sleeps between regions, for example to wait for a disk, would otherwise often wake up on a worker's CPU and
  // compete with it.
  class CallerPin {
   public:
    explicit CallerPin(ThreadPool& pool);
    ~CallerPin();
    CallerPin(const CallerPin&) = delete;
    CallerPin& operator=(const CallerPin&) = delete;

   private:
    ThreadPool& pool_;
    cpu_set_t before_;
  };

  // Calls body(task_idx, worker_idx) once for each task_idx in [0, num_tasks), in any order, and returns when all are
  // done. Each thread begins with its own share of the tasks, always the same of as many. Then it takes tasks of
  // others, one at a time, which balances uneven tasks. `body` must not open a region of the same pool. An exception in
  // `body` ends the process: other workers still use the objects that it would unwind.
  void ParallelFor(int64_t num_tasks, absl::FunctionRef<void(int64_t task_idx, int worker_idx)> body) noexcept;

  // Deals [0, num_tasks) out to the shares in turn: each thread begins with a low index. For regions whose largest
  // tasks come first.
  int64_t DealtIdx(int64_t task_idx, int64_t num_tasks) const;

 private:
  // A thread of the pool, as the others see it.
  struct alignas(64) Member {
    std::atomic<bool> is_inside{false};  // it has tasks of the open region
    std::atomic<int> cpu{-1};            // the one to which it is pinned; -1: it is not
    pid_t thread = 0;                    // these two are set before `cpu`
    clockid_t clock = 0;                 // its CPU time
  };
  using Body = absl::FunctionRef<void(int64_t, int)>;
  // The tasks of a region with which a thread begins. All that it needs for them lies in one cache line.
  struct alignas(64) Share {
    const Body* body = nullptr;
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> end{0};
  };

  // Returns where the share begins. Shares that have a task more than others come first.
  int64_t ShareBegin(int64_t share_idx, int64_t num_tasks) const {
    return share_idx * (num_tasks / num_workers()) + std::min(share_idx, num_tasks % num_workers());
  }
  void Work(int worker_idx);
  // Pins the calling thread as a member of the pool.
  void PinSelf(int worker_idx, int cpu);
  // Returns a thread that is inside and pinned, and gets no time of its CPU; -1: none is found before the next region.
  int FindStuck(int worker_idx, uint32_t epoch) const;
  // The calling worker goes to the CPU of a stuck thread, which comes to this one's.
  void SwapWithStuck(int worker_idx, uint32_t epoch);
  // Waits until nobody is inside; a stuck worker computes on the caller's CPU meanwhile.
  void WaitForInside(uint32_t num_inside);
  // Joins the open region; false if there is none.
  bool Enter();
  void DrainTasks(int worker_idx);

  std::vector<std::thread> threads_;
  std::vector<Member> members_;                 // the caller, then the workers
  std::mutex swap_;                             // held by the thread that moves others
  std::atomic<int> caller_cpu_{-1};             // the CPU that the workers leave to worker 0; -1: they are not pinned
  int num_spins_ = 0;                           // spins before a thread sleeps; set before the first worker starts
  std::vector<Share> shares_;                   // the caller's, then the workers'
  alignas(64) std::atomic<uint32_t> epoch_{0};  // grows by one for each region; workers wait for it
  // Whether workers may enter the current region, and how many are inside besides the caller.
  alignas(64) std::atomic<uint32_t> gate_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace penstock
