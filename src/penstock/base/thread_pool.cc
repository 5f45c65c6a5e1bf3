#include "penstock/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

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

// About 2 us. A thread whose CPU time stands still for so long within a task does not run.
constexpr int kStuckSpins = 200;

constexpr uint32_t kOpen = 1u << 31;  // more than there can be workers

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

int64_t CpuTime(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Pins a thread (0: the calling one) to a CPU.
bool MoveTo(pid_t thread, int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  return sched_setaffinity(thread, sizeof(mask), &mask) == 0;
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

ThreadPool::ThreadPool(int num_threads, Pinned pinned)
    : members_(static_cast<size_t>(num_threads)), shares_(static_cast<size_t>(num_threads)) {
  PENSTOCK_CHECK(num_threads >= 1);
  const std::vector<int> cpus = UsableCpus();
  num_spins_ = num_threads <= NumUsableCpus() ? kSpins : 0;
  const bool pins = pinned == Pinned::kYes && num_threads <= static_cast<int>(cpus.size());
  if (pins && num_threads > 1) caller_cpu_ = cpus[0];
  for (int worker_idx = 1; worker_idx < num_threads; ++worker_idx) {
    absl::StatusOr<std::thread> thread = StartThread([this, worker_idx, cpu = pins ? cpus[worker_idx] : -1] {
      if (cpu >= 0) PinSelf(worker_idx, cpu);
      Work(worker_idx);
    });
    if (!thread.ok()) break;  // the system refuses more threads; results do not depend on their number
    threads_.push_back(*std::move(thread));
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

ThreadPool::CallerPin::CallerPin(ThreadPool& pool) : pool_(pool) {
  const int cpu = pool.caller_cpu_;
  if (cpu >= 0 && pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_) == 0) pool.PinSelf(0, cpu);
}

ThreadPool::CallerPin::~CallerPin() {
  if (pool_.members_[0].cpu < 0) return;
  const std::lock_guard lock(pool_.swap_);
  pool_.members_[0].cpu = -1;
  pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
}

void ThreadPool::PinSelf(int worker_idx, int cpu) {
  Member& self = members_[worker_idx];
  self.thread = gettid();
  if (pthread_getcpuclockid(pthread_self(), &self.clock) != 0 || !MoveTo(0, cpu)) return;
  self.cpu.store(cpu, std::memory_order_release);
}

int ThreadPool::FindStuck(int worker_idx, uint32_t epoch) const {
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
    const Member& member = members_[i];
    if (epoch_.load(std::memory_order_relaxed) != epoch) return -1;
    if (i == worker_idx || !member.is_inside || member.cpu.load(std::memory_order_acquire) < 0) continue;
    const int64_t before = CpuTime(member.clock);
    for (int spin = 0; spin < kStuckSpins; ++spin) Relax();
    if (member.is_inside && CpuTime(member.clock) == before) return i;
  }
  return -1;
}

void ThreadPool::SwapWithStuck(int worker_idx, uint32_t epoch) {
  const std::unique_lock lock(swap_, std::try_to_lock);
  Member& self = members_[worker_idx];
  const int mine = self.cpu, stuck = lock.owns_lock() && mine >= 0 ? FindStuck(worker_idx, epoch) : -1;
  if (stuck < 0) return;
  Member& other = members_[stuck];
  const int theirs = other.cpu;
  if (!MoveTo(other.thread, mine)) return;
  MoveTo(0, theirs);
  other.cpu = mine;
  self.cpu = theirs;
  if (stuck == 0) caller_cpu_ = mine;
}

void ThreadPool::WaitForInside(uint32_t num_inside) {
  for (int spin = 0; num_inside != 0 && spin < num_spins_; ++spin) {
    Relax();
    num_inside = gate_.load(std::memory_order_acquire);
  }
  if (num_inside == 0) return;
  const std::unique_lock lock(swap_, std::try_to_lock);
  const int mine = members_[0].cpu, stuck = lock.owns_lock() && mine >= 0 ? FindStuck(0, epoch_) : -1;
  const bool lends = stuck > 0 && MoveTo(members_[stuck].thread, mine);
  for (; num_inside != 0; num_inside = gate_.load(std::memory_order_acquire)) {
    gate_.wait(num_inside, std::memory_order_acquire);
  }
  if (lends) MoveTo(members_[stuck].thread, members_[stuck].cpu);
}

void ThreadPool::ParallelFor(int64_t num_tasks, absl::FunctionRef<void(int64_t, int)> body) noexcept {
  if (num_tasks <= 0) return;
  if (threads_.empty() || num_tasks == 1) {
    for (int64_t task_idx = 0; task_idx < num_tasks; ++task_idx) body(task_idx, 0);
    return;
  }
  const int num_shares = num_workers();
  for (int i = 0; i < num_shares; ++i) {
    shares_[i].body = &body;
    shares_[i].next.store(ShareBegin(i, num_tasks), std::memory_order_relaxed);
    shares_[i].end.store(ShareBegin(i + 1, num_tasks), std::memory_order_relaxed);
  }
  gate_.store(kOpen, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  members_[0].is_inside.store(true, std::memory_order_relaxed);
  DrainTasks(0);
  members_[0].is_inside.store(false, std::memory_order_relaxed);
  // All tasks have been handed out. Workers inside finish theirs; others find the gate closed.
  WaitForInside(gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen);
}

int64_t ThreadPool::DealtIdx(int64_t task_idx, int64_t num_tasks) const {
  int64_t share_idx = 0;
  while (task_idx >= ShareBegin(share_idx + 1, num_tasks)) ++share_idx;
  return (task_idx - ShareBegin(share_idx, num_tasks)) * num_workers() + share_idx;
}

bool ThreadPool::Enter() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_relaxed)) return true;
  }
  return false;
}

void ThreadPool::DrainTasks(int worker_idx) {
  const int num_shares = num_workers();
  const Body& body = *shares_[worker_idx].body;
  for (int i = 0; i < num_shares; ++i) {
    Share& share = shares_[(worker_idx + i) % num_shares];
    const int64_t end = share.end.load(std::memory_order_relaxed);
    while (share.next.load(std::memory_order_relaxed) < end) {
      const int64_t task_idx = share.next.fetch_add(1, std::memory_order_relaxed);
      if (task_idx < end) body(task_idx, worker_idx);
    }
  }
}

void ThreadPool::Work(int worker_idx) {
  uint32_t seen_epoch = 0;
  for (;;) {
    for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen_epoch; ++spin) {
      if (spin < num_spins_) {
        Relax();
      } else {
        SwapWithStuck(worker_idx, seen_epoch);
        epoch_.wait(seen_epoch, std::memory_order_acquire);
      }
    }
    seen_epoch = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!Enter()) continue;
    members_[worker_idx].is_inside.store(true, std::memory_order_relaxed);
    DrainTasks(worker_idx);
    members_[worker_idx].is_inside.store(false, std::memory_order_relaxed);
    // The last one out of a closed region wakes the caller.
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
  }
}

}  // namespace penstock
