// Speed of attention for one KV head, by context, group, rows and KV format, on the best instruction set.
//
// One row is decoding. The KV of successive calls comes from a ring that does not fit any cache, as in a batch. Compare
// its GB/s of KV with the machine's read rate, measured just before and just after. Several rows are prefill; compare
// their GFLOP/s with the measured peak.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/probed_rates.h"
#include "penstock/kernels/kernels.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kHeadDim = 128;
constexpr int64_t kRingBytes = 256ll << 20;

struct Format {
  const char* name;
  KvFormat format;
};
constexpr Format kFormats[] = {{"f32", KvFormat::kF32}, {"bf16", KvFormat::kBF16}, {"int8", KvFormat::kInt8}};

void RunAttention(benchmark::State& state, KvFormat format, int64_t num_rows, int64_t group, int64_t context,
                  int num_threads) {
  const KernelTable& table = KernelsFor(BestIsa());
  ThreadPool pool(num_threads);
  const int64_t block_bytes = KvBlock{format, kHeadDim}.bytes();
  const int64_t pages_per_call = context / kKvPageTokens;
  const int64_t num_calls = std::max<int64_t>(num_threads, kRingBytes / (pages_per_call * block_bytes));
  const Arena kv = RandomWords(static_cast<uint64_t>(num_calls * pages_per_call * block_bytes));
  std::vector<const std::byte*> pages;
  for (int64_t i = 0; i < num_calls * pages_per_call; ++i) pages.push_back(kv.data() + i * block_bytes);
  const std::vector<float> q(num_rows * group * kHeadDim, 0.5f);
  const int64_t scratch_floats = AttentionScratchFloats(num_rows * group, kHeadDim, context);
  std::vector<float> scratch(num_threads * scratch_floats);
  std::vector<float> out(static_cast<size_t>(num_threads) * q.size());
  int64_t call_idx = 0;
  const ProbedRates before(pool, Arithmetic::kF32);
  const auto start = std::chrono::steady_clock::now();
  // One iteration is one call on each thread.
  for (auto _ : state) {
    pool.ParallelFor(num_threads, [&](int64_t task_idx, int) {
      table.attention({.num_rows = num_rows,
                       .group = group,
                       .head_dim = kHeadDim,
                       .q = q.data(),
                       .q_stride = group * kHeadDim,
                       .pages = pages.data() + (call_idx + task_idx) % num_calls * pages_per_call,
                       .kv_format = format,
                       .head_offset_bytes = 0,
                       .pos = context - num_rows,
                       .window = 0,
                       .scale = 0.088f,
                       .scratch = scratch.data() + task_idx * scratch_floats,
                       .out = out.data() + task_idx * static_cast<int64_t>(q.size()),
                       .out_stride = group * kHeadDim});
    });
    call_idx = (call_idx + num_threads) % num_calls;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const ProbedRates after(pool, Arithmetic::kF32);
  const double calls_per_s = num_threads * static_cast<double>(state.iterations()) / seconds;
  SetRates(state, before, after,
           {.ops_per_s = 4.0 * static_cast<double>(num_rows * group * context * kHeadDim) * calls_per_s,
            .bytes_per_s = static_cast<double>(pages_per_call * block_bytes) * calls_per_s});
}

int RegisterAll() {
  std::vector<int> thread_counts = {1};
  if (NumUsableCpus() > 1) thread_counts.push_back(NumUsableCpus());
  for (const Format& format : kFormats) {
    for (const int64_t group : {1, 4, 8}) {
      for (const int64_t num_rows : {int64_t{1}, kAttentionHeads / group}) {
        for (const int64_t context : {256, 2048, 8192}) {
          for (const int num_threads : thread_counts) {
            const std::string name = std::string(format.name) + "/group:" + std::to_string(group) +
                                     "/rows:" + std::to_string(num_rows) + "/context:" + std::to_string(context) +
                                     "/threads:" + std::to_string(num_threads);
            benchmark::RegisterBenchmark(name.c_str(),
                                         [=](benchmark::State& state) {
                                           RunAttention(state, format.format, num_rows, group, context, num_threads);
                                         })
                ->Unit(benchmark::kMicrosecond)
                ->UseRealTime();
          }
        }
      }
    }
  }
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace penstock::kernels
