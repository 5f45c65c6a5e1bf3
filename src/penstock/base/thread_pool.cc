#include "penstock/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "penstock/base/cgroup.h"
#include "penstock/base/check.h"
#include "penstock/base/thread.h"

namespace penstock {
namespace {

// About 20 us: longer than the gap between two regions of a layer, shorter than another process's time slice. Spinning
// pays only when every worker has a CPU of its own; otherwise threads sleep at once.
constexpr int kSpins = 4000;

constexpr uint32_t kOpen = 1u << 31;  // more than there can be workers

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

std::vector<int> UsableCpus() {
  std::vector<int> cpus;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace

int NumUsableCpus() {
  const int num_cpus = static_cast<int>(UsableCpus().size());
  const double quota = ReadCgroupLimits().num_cpus;
  return quota < num_cpus ? std::max(1, static_cast<int>(quota + 0.5)) : num_cpus;
}

void UseShareOfCpus(int share_idx, int num_shares) {
  const std::vector<int> cpus = UsableCpus();
  const size_t count = cpus.size(), shares = static_cast<size_t>(num_shares), idx = static_cast<size_t>(share_idx);
  if (count < shares) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (size_t i = count * idx / shares; i < count * (idx + 1) / shares; ++i) CPU_SET(cpus[i], &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
}

ThreadPool::ThreadPool(int num_threads, Pinned pinned) {
  PENSTOCK_CHECK(num_threads >= 1);
  const std::vector<int> cpus = UsableCpus();
  num_spins_ = num_threads <= NumUsableCpus() ? kSpins : 0;
  for (int worker_idx = 1; worker_idx < num_threads; ++worker_idx) {
    absl::StatusOr<std::thread> thread = StartThread([this, worker_idx] { Work(worker_idx); });
    if (!thread.ok()) break;  // the system refuses more threads; results do not depend on their number
    threads_.push_back(*std::move(thread));
    if (pinned == Pinned::kYes && num_threads <= static_cast<int>(cpus.size())) {
      cpu_set_t mask;
      CPU_ZERO(&mask);
      CPU_SET(cpus[worker_idx], &mask);
      pthread_setaffinity_np(threads_.back().native_handle(), sizeof(mask), &mask);
      caller_cpu_ = cpus[0];
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

ThreadPool::CallerPin::CallerPin(const ThreadPool& pool) {
  if (pool.caller_cpu_ < 0 || pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_) != 0) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(pool.caller_cpu_, &mask);
  pinned_ = pthread_setaffinity_np(pthread_self(), sizeof(mask), &mask) == 0;
}

ThreadPool::CallerPin::~CallerPin() {
  if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
}

void ThreadPool::ParallelFor(int64_t num_tasks, absl::FunctionRef<void(int64_t, int)> body) noexcept {
  if (num_tasks <= 0) return;
  if (threads_.empty() || num_tasks == 1) {
    for (int64_t task_idx = 0; task_idx < num_tasks; ++task_idx) body(task_idx, 0);
    return;
  }
  body_ = &body;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  DrainTasks(0);
  // All tasks have been handed out. Workers inside finish theirs; others find the gate closed.
  uint32_t num_inside = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  for (int spin = 0; num_inside != 0; ++spin) {
    if (spin < num_spins_) {
      Relax();
    } else {
      gate_.wait(num_inside, std::memory_order_acquire);
    }
    num_inside = gate_.load(std::memory_order_acquire);
  }
  body_ = nullptr;
}

bool ThreadPool::Enter() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_relaxed)) return true;
  }
  return false;
}

void ThreadPool::DrainTasks(int worker_idx) {
  for (;;) {
    const int64_t task_idx = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task_idx >= num_tasks_) return;
    (*body_)(task_idx, worker_idx);
  }
}

void ThreadPool::Work(int worker_idx) {
  uint32_t seen_epoch = 0;
  for (;;) {
    for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen_epoch; ++spin) {
      if (spin < num_spins_) {
        Relax();
      } else {
        epoch_.wait(seen_epoch, std::memory_order_acquire);
      }
    }
    seen_epoch = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!Enter()) continue;
    DrainTasks(worker_idx);
    // The last one out of a closed region wakes the caller.
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
  }
}

}  // namespace penstock
