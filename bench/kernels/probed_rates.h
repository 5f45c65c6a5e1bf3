// The baseline of kernel benchmarks: the machine's rates, measured just before and just after each of them because the
// clock frequency changes. Also allocates benchmark memory in large pages, as the engine does.
#pragma once

#include <cstdint>
#include <random>
#include <utility>

#include <benchmark/benchmark.h>

#include "penstock/base/check.h"
#include "penstock/base/thread_pool.h"
#include "penstock/hardware/peaks.h"
#include "penstock/memory/arena.h"

namespace penstock {

struct ProbedRates {
  double ops_per_s;  // 0 where the machine has no instructions for the arithmetic
  double bytes_per_s;

  ProbedRates(ThreadPool& pool, Arithmetic arithmetic) {
    constexpr double kProbeSeconds = 0.03;
    static MemoryProbe memory = [&pool] {
      absl::StatusOr<MemoryProbe> probe = MemoryProbe::Create(pool, 512ull << 20);
      PENSTOCK_CHECK(probe.ok());
      return *std::move(probe);
    }();
    ops_per_s = OpsPerSecond(arithmetic, pool, kProbeSeconds).value_or(0);
    bytes_per_s = memory.BytesPerSecond(Transfer::kRead, pool, kProbeSeconds);
  }
};

struct AchievedRates {
  double ops_per_s;
  double bytes_per_s;
};

inline void SetRates(benchmark::State& state, const ProbedRates& before, const ProbedRates& after,
                     const AchievedRates& achieved) {
  state.counters["GFLOP/s"] = achieved.ops_per_s * 1e-9;
  state.counters["GB/s"] = achieved.bytes_per_s * 1e-9;
  if (before.ops_per_s > 0) {
    state.counters["of_peak"] = 2 * achieved.ops_per_s / (before.ops_per_s + after.ops_per_s);
  }
  state.counters["of_read"] = 2 * achieved.bytes_per_s / (before.bytes_per_s + after.bytes_per_s);
}

// Returns words that are small finite numbers as f32, as two bf16 halves, and as scales of any format.
inline Arena RandomWords(uint64_t num_bytes) {
  absl::StatusOr<Arena> arena = HostMemory().Map(num_bytes);
  PENSTOCK_CHECK(arena.ok());
  std::mt19937 generator(1);
  auto* words = reinterpret_cast<uint32_t*>(arena->data());
  for (uint64_t i = 0; i < num_bytes / 4; ++i) words[i] = (generator() & 0x807F807Fu) | 0x3C003C00u;
  return *std::move(arena);
}

}  // namespace penstock
