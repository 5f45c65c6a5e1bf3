// Speed of the GEMMs by rows M, shape [N, K], type of the weights and instruction set.
//
// Reports GFLOP/s, GB/s of weights read, and the share of the peak of one core: 2 FMA ports x 16 lanes x clock, with
// the clock measured by a chain of dependent operations. With few rows the weights of successive calls come from a ring
// that no cache holds, as experts do. Rates are by processor time, so that other programs disturb them less.
#include <time.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "penstock/kernels/kernels.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kRingBytes = 256ll << 20;

struct Shape {
  int64_t num_cols;
  int64_t inner_dim;
};
constexpr Shape kShapes[] = {{256, 224}, {1024, 3584}, {2048, 5632}};

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Cycles per second of the core: a chain of dependent operations takes one cycle each. The best of several, because
// other programs slow it down. The clock under AVX-512 may be lower.
double MeasureClock() {
  constexpr int kLoops = 1'000'000;
  double best = 0;
  for (int trial = 0; trial < 10; ++trial) {
    const double start = ThreadSeconds();
    uint64_t x = 1;
    for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        x ^= 0x55;
        asm volatile("" : "+r"(x));
      }
    }
    best = std::max(best, 16 * kLoops / (ThreadSeconds() - start));
  }
  return best;
}

double PeakFlops() {
  static const double peak = MeasureClock() * 2 * 16 * 2;
  return peak;
}

enum class Kind { kF32, kF32TimesBf16, kBf16 };

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kF32: return "f32xf32";
    case Kind::kF32TimesBf16: return "f32xbf16";
    case Kind::kBf16: return "bf16xbf16";
  }
  return "";
}

// Activations and weights are aligned to cache lines, as the engine's are.
struct alignas(64) CacheLine {
  uint32_t words[16];
};

// The bf16 halves of these words are small finite numbers, and so are the words as f32.
std::vector<CacheLine> RandomLines(int64_t num_bytes) {
  std::mt19937 generator(1);
  std::vector<CacheLine> lines(static_cast<size_t>(num_bytes / 64 + 1));
  for (CacheLine& line : lines) {
    for (uint32_t& word : line.words) word = (generator() & 0x807F807Fu) | 0x3C003C00u;
  }
  return lines;
}

void RunGemm(benchmark::State& state, Isa isa, Kind kind, int64_t num_rows, Shape shape) {
  const KernelTable& table = KernelsFor(isa);
  const int64_t w_size = kind == Kind::kF32 ? 4 : 2;
  const int64_t matrix_bytes = shape.num_cols * shape.inner_dim * w_size;
  const int64_t num_matrices = num_rows <= 16 ? std::max<int64_t>(1, kRingBytes / matrix_bytes) : 1;
  const std::vector<CacheLine> w = RandomLines(num_matrices * matrix_bytes);
  const std::vector<CacheLine> x = RandomLines(num_rows * shape.inner_dim * 4);
  std::vector<float> y(static_cast<size_t>(num_rows * shape.num_cols));
  int64_t matrix_idx = 0;
  for (auto _ : state) {
    const std::byte* matrix = reinterpret_cast<const std::byte*>(w.data()) + matrix_idx * matrix_bytes;
    matrix_idx = (matrix_idx + 1) % num_matrices;
    if (kind == Kind::kBf16) {
      table.gemm_bf16({.num_rows = num_rows,
                       .num_cols = shape.num_cols,
                       .inner_dim = shape.inner_dim,
                       .x = reinterpret_cast<const BF16*>(x.data()),
                       .x_stride = shape.inner_dim,
                       .w = matrix,
                       .w_stride = shape.inner_dim,
                       .bias = nullptr,
                       .y = y.data(),
                       .y_stride = shape.num_cols});
    } else {
      table.gemm_f32({.num_rows = num_rows,
                      .num_cols = shape.num_cols,
                      .inner_dim = shape.inner_dim,
                      .x = reinterpret_cast<const float*>(x.data()),
                      .x_stride = shape.inner_dim,
                      .w_dtype = kind == Kind::kF32 ? Dtype::kF32 : Dtype::kBF16,
                      .w = matrix,
                      .w_stride = shape.inner_dim,
                      .bias = nullptr,
                      .y = y.data(),
                      .y_stride = shape.num_cols});
    }
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  const double flops = 2.0 * static_cast<double>(num_rows * shape.num_cols * shape.inner_dim);
  const double calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(flops * calls * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(matrix_bytes) * calls * 1e-9, benchmark::Counter::kIsRate);
  state.counters["peak"] = benchmark::Counter(flops * calls / PeakFlops(), benchmark::Counter::kIsRate);
}

int RegisterAll() {
  for (const Isa isa : SupportedIsas()) {
    for (const Kind kind : {Kind::kF32, Kind::kF32TimesBf16, Kind::kBf16}) {
      for (const Shape& shape : kShapes) {
        for (const int64_t num_rows : {1, 4, 16, 64, 256}) {
          const std::string name = std::string(IsaName(isa)) + "/" + KindName(kind) + "/" +
                                   std::to_string(shape.num_cols) + "x" + std::to_string(shape.inner_dim) +
                                   "/M:" + std::to_string(num_rows);
          benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
            RunGemm(state, isa, kind, num_rows, shape);
          })->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace penstock::kernels
