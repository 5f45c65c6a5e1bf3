// Bandwidth of reading memory by number of threads: every thread sums its part of 1 GiB. The ceiling for everything
// that streams weights, and the number that other measurements are quoted against.
#include <algorithm>
#include <atomic>
#include <span>

#include <benchmark/benchmark.h>

#include "penstock/base/thread_pool.h"
#include "penstock/memory/arena.h"

namespace penstock {
namespace {

constexpr int64_t kBytes = 1ll << 30;
constexpr int64_t kTaskBytes = 4 << 20;

// Eight streams, each with a sum of its own: additions do not wait for each other, and the prefetchers have enough to
// do.
uint64_t SumOf(std::span<const uint64_t> words) {
  using Pair [[gnu::vector_size(16)]] = uint64_t;
  Pair sums[8] = {};
  const size_t stream_words = words.size() / 8;
  for (size_t i = 0; i < stream_words; i += 8) {
    for (int j = 0; j < 8; ++j) {
      const Pair* line = reinterpret_cast<const Pair*>(words.data() + j * stream_words + i);
      sums[j] += (line[0] + line[1]) + (line[2] + line[3]);
    }
  }
  uint64_t sum = 0;
  for (const Pair& part : sums) sum += part[0] + part[1];
  return sum;
}

void ReadMemory(benchmark::State& state) {
  const Arena arena = Arena::Map(kBytes).value();
  const std::span<uint64_t> words = ArenaAllocator(arena).Take<uint64_t>(kBytes / 8);
  std::fill(words.begin(), words.end(), 1);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    std::atomic<uint64_t> total{0};
    pool.ParallelFor(kBytes / kTaskBytes, [&](int64_t task_idx, int) {
      total += SumOf(words.subspan(task_idx * kTaskBytes / 8, kTaskBytes / 8));
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
