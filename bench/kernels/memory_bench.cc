// Bandwidth of reading memory by number of threads: every thread sums its part of 1 GiB. The ceiling for everything that
// streams weights, and the number that other measurements are quoted against.
#include <atomic>
#include <vector>

#include <benchmark/benchmark.h>

#include "penstock/base/thread_pool.h"

namespace penstock {
namespace {

constexpr int64_t kBytes = 1ll << 30;
constexpr int64_t kTaskBytes = 4 << 20;

// Eight independent sums, so that the additions do not wait for each other.
uint64_t SumOf(const uint64_t* words, int64_t count) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < count; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

void ReadMemory(benchmark::State& state) {
  const std::vector<uint64_t> words(kBytes / 8, 1);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    std::atomic<uint64_t> total{0};
    pool.ParallelFor(kBytes / kTaskBytes, [&](int64_t task_idx, int) {
      total += SumOf(words.data() + task_idx * (kTaskBytes / 8), kTaskBytes / 8);
    });
    if (total != kBytes / 8) state.SkipWithError("the sum is wrong");
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(kBytes) * static_cast<double>(state.iterations()) * 1e-9, benchmark::Counter::kIsRate);
}

int RegisterAll() {
  auto* bench = benchmark::RegisterBenchmark("read_memory/threads", ReadMemory);
  const int num_cpus = NumUsableCpus();
  for (int num_threads = 1; num_threads < num_cpus; num_threads *= 2) bench->Arg(num_threads);
  bench->Arg(num_cpus)->UseRealTime()->Unit(benchmark::kMillisecond);
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace penstock
