// Speed of attention for one query position and one KV head, by context, group and KV type, on the best instruction
// set. The KV of successive calls comes from a ring that no cache holds, as it does in a batch. Reports GB/s of KV read
// and GFLOP/s.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "penstock/kernels/kernels.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kPageTokens = 64;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kRingBytes = 256ll << 20;

void RunAttention(benchmark::State& state, Dtype dtype, int64_t group, int64_t context) {
  const KernelTable& table = KernelsFor(BestIsa());
  const int64_t token_bytes = kHeadDim * static_cast<int64_t>(SizeOf(dtype));
  const int64_t page_bytes = 2 * kPageTokens * token_bytes;
  const int64_t pages_per_call = (context + kPageTokens - 1) / kPageTokens;
  const int64_t num_calls = std::max<int64_t>(1, kRingBytes / (pages_per_call * page_bytes));
  std::mt19937 generator(1);
  std::vector<uint32_t> kv(static_cast<size_t>(num_calls * pages_per_call * page_bytes / 4));
  for (uint32_t& word : kv) word = (generator() & 0x807F807Fu) | 0x3C003C00u;
  std::vector<const std::byte*> pages;
  for (int64_t i = 0; i < num_calls * pages_per_call; ++i) {
    pages.push_back(reinterpret_cast<const std::byte*>(kv.data()) + i * page_bytes);
  }
  const std::vector<float> q(static_cast<size_t>(group * kHeadDim), 0.5f);
  std::vector<float> scratch(static_cast<size_t>(group * context)), out(q.size());
  int64_t call_idx = 0;
  for (auto _ : state) {
    table.attention({.group = group,
                     .head_dim = kHeadDim,
                     .q = q.data(),
                     .q_stride = kHeadDim,
                     .pages = pages.data() + call_idx * pages_per_call,
                     .page_tokens = kPageTokens,
                     .kv_dtype = dtype,
                     .k_offset_bytes = 0,
                     .v_offset_bytes = kPageTokens * token_bytes,
                     .token_stride_bytes = token_bytes,
                     .first_pos = 0,
                     .end_pos = context,
                     .scale = 0.088f,
                     .scratch = scratch.data(),
                     .scratch_stride = context,
                     .out = out.data(),
                     .out_stride = kHeadDim});
    call_idx = (call_idx + 1) % num_calls;
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  const double calls = static_cast<double>(state.iterations());
  state.counters["GB/s"] =
      benchmark::Counter(2.0 * static_cast<double>(context * token_bytes) * calls * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(4.0 * static_cast<double>(group * context * kHeadDim) * calls * 1e-9,
                                                 benchmark::Counter::kIsRate);
}

int RegisterAll() {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (const int64_t group : {1, 4, 8}) {
      for (const int64_t context : {128, 1024, 8192}) {
        const std::string name =
            std::string(DtypeName(dtype)) + "/group:" + std::to_string(group) + "/context:" + std::to_string(context);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          RunAttention(state, dtype, group, context);
        })->Unit(benchmark::kMicrosecond);
      }
    }
  }
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace penstock::kernels
