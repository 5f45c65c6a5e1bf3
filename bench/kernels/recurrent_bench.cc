// Speed of the rules of recurrent layers on states of 128 x 128, by rows of one sequence, on the best instruction set:
// gated DeltaNet's, Kimi Delta Attention's and Mamba-2's.
//
// One row is decoding: the states of successive calls come from a ring that does not fit any cache, as in a batch. A
// call reads and writes its state; compare its GB/s with the machine's read rate, measured just before and just after.
// Several rows are prefill; compare their GFLOP/s (seven operations for each value of the
// state, and five without delta) with the measured
// peak.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/probed_rates.h"
#include "penstock/kernels/kernels.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kDim = 128;  // of keys and values
constexpr int64_t kStateBytes = kDim * kDim * 4;
constexpr int64_t kNumStates = (256ll << 20) / kStateBytes;

struct Rule {
  const char* name;
  bool decays_dims, has_delta;
};

void RunStateRule(benchmark::State& state, Rule rule, int64_t num_rows, int num_threads) {
  const KernelTable& table = KernelsFor(BestIsa());
  ThreadPool pool(num_threads);
  const Arena states = RandomWords(kNumStates * kStateBytes);
  const std::vector<float> rows(num_rows * kDim, 0.05f), gates(num_rows, 0.5f), decays(num_rows * kDim, 0.5f);
  std::vector<float> out(static_cast<size_t>(num_threads) * rows.size());
  const ProbedRates before(pool, Arithmetic::kF32);
  const auto start = std::chrono::steady_clock::now();
  // One iteration is a batch of calls on each thread, whose start then costs little.
  constexpr int64_t kCalls = 32;
  int64_t first = 0;
  for (auto _ : state) {
    pool.ParallelFor(num_threads, [&](int64_t task_idx, int) {
      for (int64_t call = 0; call < kCalls; ++call) {
        const int64_t idx = (first + task_idx * kCalls + call) % kNumStates;
        table.state_rule({.num_rows = num_rows,
                          .key_dim = kDim,
                          .value_dim = kDim,
                          .q = rows.data(),
                          .k = rows.data(),
                          .k_stride = kDim,
                          .v = rows.data(),
                          .v_stride = kDim,
                          .decay = decays.data(),
                          .decay_stride = rule.decays_dims ? kDim : 1,
                          .beta = gates.data(),
                          .beta_stride = 1,
                          .decays_dims = rule.decays_dims,
                          .has_delta = rule.has_delta,
                          .state = reinterpret_cast<float*>(states.data() + idx * kStateBytes),
                          .out = out.data() + task_idx * static_cast<int64_t>(rows.size()),
                          .out_stride = kDim});
      }
    });
    first = (first + num_threads * kCalls) % kNumStates;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const ProbedRates after(pool, Arithmetic::kF32);
  const double calls_per_s =
      static_cast<double>(num_threads * kCalls) * static_cast<double>(state.iterations()) / seconds;
  SetRates(state, before, after,
           {.ops_per_s = (rule.has_delta ? 7.0 : 5.0) * static_cast<double>(num_rows * kDim * kDim) * calls_per_s,
            .bytes_per_s = 2.0 * static_cast<double>(kStateBytes) * calls_per_s});
}

int RegisterAll() {
  std::vector<int> thread_counts = {1};
  if (NumUsableCpus() > 1) thread_counts.push_back(NumUsableCpus());
  for (const Rule& rule : {Rule{"delta", false, true}, Rule{"kimi", true, true}, Rule{"mamba2", false, false}}) {
    for (const int64_t num_rows : {1, 4, 64, 256}) {
      for (const int num_threads : thread_counts) {
        const std::string name =
            std::string(rule.name) + "/rows:" + std::to_string(num_rows) + "/threads:" + std::to_string(num_threads);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=](benchmark::State& state) { RunStateRule(state, rule, num_rows, num_threads); })
            ->Unit(benchmark::kMicrosecond)
            ->UseRealTime();
      }
    }
  }
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace penstock::kernels
