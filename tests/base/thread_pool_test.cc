// Proves that a region runs each task exactly once, whatever the number of tasks and threads. Proves that a region sees
// earlier writes and that later code sees the region's writes. Proves that thousands of regions in a row neither hang
// nor lose a task. Proves that threads change CPUs when another process takes that of one, and that each keeps one.
#include "penstock/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace penstock {
namespace {

TEST(ThreadPool, EachTaskRunsOnce) {
  for (const int num_threads : {1, 2, 3, 4, 8}) {
    ThreadPool pool(num_threads);
    ASSERT_EQ(pool.num_workers(), num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 7, 8, 9, 64, 1000, 4097}) {
      std::vector<int> counts(num_tasks,
                              0);  // plain ints: a task that runs twice at once is a race that tsan finds
      pool.ParallelFor(num_tasks, [&](int64_t task_idx, int worker_idx) {
        ASSERT_GE(worker_idx, 0);
        ASSERT_LT(worker_idx, num_threads);
        ++counts.at(static_cast<size_t>(task_idx));
      });
      EXPECT_EQ(counts, std::vector<int>(num_tasks, 1)) << num_threads << " threads, " << num_tasks << " tasks";
    }
  }
}

TEST(ThreadPool, NegativeCountsDoNothing) {
  ThreadPool pool(2);
  pool.ParallelFor(-5, [](int64_t, int) { FAIL(); });
}

TEST(ThreadPool, WorkersDoNotShareAnIndexAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  pool.ParallelFor(2000, [&](int64_t, int worker_idx) {
    EXPECT_EQ(busy[worker_idx].fetch_add(1), 0);
    busy[worker_idx].fetch_sub(1);
  });
}

TEST(ThreadPool, ThousandsOfRegionsSeeEachOther) {
  for (const int num_threads : {2, 4}) {
    ThreadPool pool(num_threads);
    std::vector<int64_t> values(16, 0);
    for (int64_t region = 0; region < 5000; ++region) {
      // Each task reads values that other tasks wrote in the previous region.
      const std::vector<int64_t> before = values;
      pool.ParallelFor(16, [&](int64_t task_idx, int) { values[task_idx] = before[(task_idx + 1) % 16] + 1; });
    }
    EXPECT_EQ(values, std::vector<int64_t>(16, 5000));
  }
}

TEST(ThreadPool, WakesWorkersThatSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than workers spin
    std::atomic<int64_t> sum = 0;
    pool.ParallelFor(100, [&](int64_t task_idx, int) { sum += task_idx; });
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST(ThreadPool, BalancesUnevenTasks) {
  // One task waits until all others are done; this would never end if tasks were assigned in advance.
  ThreadPool pool(2);
  std::atomic<int> num_done = 0;
  pool.ParallelFor(50, [&](int64_t task_idx, int) {
    if (task_idx == 0) {
      while (num_done.load() != 49) std::this_thread::yield();
    } else {
      ++num_done;
    }
  });
  EXPECT_EQ(num_done.load(), 49);
}

TEST(ThreadPool, ComesAndGoes) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + i % 4);
    if (i % 3 == 0) continue;  // a pool that never opens a region must also end
    std::atomic<int> count = 0;
    pool.ParallelFor(i % 7, [&](int64_t, int) { ++count; });
    EXPECT_EQ(count.load(), i % 7);
  }
}

// Returns the CPUs that each thread of the pool may use.
std::vector<cpu_set_t> CpusOfThreads(ThreadPool& pool) {
  std::vector<cpu_set_t> cpus(static_cast<size_t>(pool.num_workers()));
  std::atomic<int> num_started = 0;
  pool.ParallelFor(pool.num_workers(), [&](int64_t, int worker_idx) {
    EXPECT_EQ(::sched_getaffinity(0, sizeof(cpu_set_t), &cpus[worker_idx]), 0);
    ++num_started;
    while (num_started.load() != pool.num_workers()) std::this_thread::yield();  // each worker takes one task
  });
  return cpus;
}

void ExpectACpuEach(ThreadPool& pool) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const cpu_set_t& cpus : CpusOfThreads(pool)) {
    EXPECT_EQ(CPU_COUNT(&cpus), 1);
    CPU_OR(&all, &all, &cpus);
  }
  EXPECT_EQ(CPU_COUNT(&all), pool.num_workers());
}

TEST(ThreadPool, WorkersAndTheirCallerHaveACpuEach) {
  cpu_set_t usable;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(usable), &usable), 0);
  ThreadPool pool(std::min(CPU_COUNT(&usable), 4));
  {
    const ThreadPool::CallerPin pin(pool);
    ExpectACpuEach(pool);
  }
  cpu_set_t after;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&after, &usable));
  ThreadPool free_pool(2, ThreadPool::Pinned::kNo);
  EXPECT_TRUE(CPU_EQUAL(&CpusOfThreads(free_pool)[1], &usable));
}

TEST(ThreadPool, AWorkerTakesTheCpuOfACallerThatWaitsForIt) {
  cpu_set_t usable;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(usable), &usable), 0);
  if (CPU_COUNT(&usable) < 2) GTEST_SKIP() << "needs two CPUs";
  ThreadPool pool(2);
  {
    const ThreadPool::CallerPin pin(pool);
    const cpu_set_t before = CpusOfThreads(pool)[0];
    std::atomic<bool> ends = false;
    std::thread other([&] {  // as another process on the caller's CPU
      ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
      while (!ends) continue;
    });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    cpu_set_t now = before;
    while (CPU_EQUAL(&now, &before) && std::chrono::steady_clock::now() < deadline) {
      pool.ParallelFor(8, [](int64_t, int) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
        while (std::chrono::steady_clock::now() < end) continue;
      });
      ASSERT_EQ(::sched_getaffinity(0, sizeof(now), &now), 0);
    }
    ends = true;
    other.join();
    EXPECT_FALSE(CPU_EQUAL(&now, &before));
    ExpectACpuEach(pool);
  }
  cpu_set_t after;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&after, &usable));
}

TEST(ThreadPool, DealsEachTaskOnceAndTheFirstOnesFirst) {
  for (int num_threads = 1; num_threads <= 5; ++num_threads) {
    ThreadPool pool(num_threads, ThreadPool::Pinned::kNo);
    for (int64_t num_tasks = 1; num_tasks <= 40; ++num_tasks) {
      std::vector<int64_t> dealt;
      for (int64_t i = 0; i < num_tasks; ++i) dealt.push_back(pool.DealtIdx(i, num_tasks));
      EXPECT_EQ(dealt[0], 0);
      const int64_t begin_of_second = (num_tasks + num_threads - 1) / num_threads;
      if (num_threads > 1 && num_tasks > 1) {
        EXPECT_EQ(dealt[static_cast<size_t>(begin_of_second)], 1);
      }
      std::sort(dealt.begin(), dealt.end());
      for (int64_t i = 0; i < num_tasks; ++i) EXPECT_EQ(dealt[static_cast<size_t>(i)], i);
    }
  }
}

TEST(NumUsableCpus, IsPlausible) {
  EXPECT_GE(NumUsableCpus(), 1);
  EXPECT_LE(NumUsableCpus(), 4096);
}

}  // namespace
}  // namespace penstock
