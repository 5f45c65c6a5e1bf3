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

// Formats of rows and weights that go together.
struct Kind {
  const char* name;
  RowFormat x_format;
  WeightFormat w_format;
};
constexpr Kind kKinds[] = {
    {"f32xf32", RowFormat::kF32, WeightFormat::kF32},     {"f32xbf16", RowFormat::kF32, WeightFormat::kBF16},
    {"bf16xbf16", RowFormat::kBF16, WeightFormat::kBF16}, {"int8", RowFormat::kInt8, WeightFormat::kInt8},
    {"hqq4", RowFormat::kInt8, WeightFormat::kHqq4},      {"hqq3", RowFormat::kInt8, WeightFormat::kHqq3}};

struct alignas(64) CacheLine {
  uint32_t words[16];
};

// The bf16 halves of these words are small finite numbers, and so are the words as f32, and as scales of any format.
std::vector<CacheLine> RandomLines(int64_t num_bytes) {
  std::mt19937 generator(1);
  std::vector<CacheLine> lines(static_cast<size_t>(num_bytes / 64 + 1));
  for (CacheLine& line : lines) {
    for (uint32_t& word : line.words) word = (generator() & 0x807F807Fu) | 0x3C003C00u;
  }
  return lines;
}

void RunGemm(benchmark::State& state, Isa isa, const Kind& kind, int64_t num_rows, Shape shape) {
  const KernelTable& table = KernelsFor(isa);
  const auto matrix_bytes = static_cast<int64_t>(PackedBytes(kind.w_format, shape.num_cols, shape.inner_dim));
  const int64_t num_matrices = num_rows <= 16 ? std::max<int64_t>(1, kRingBytes / matrix_bytes) : 1;
  const std::vector<CacheLine> w = RandomLines(num_matrices * matrix_bytes);
  const std::vector<CacheLine> source = RandomLines(num_rows * shape.inner_dim * 4);
  const int64_t row_bytes = RowBytes(kind.x_format, shape.inner_dim);
  std::vector<CacheLine> x(static_cast<size_t>(num_rows * row_bytes / 64));
  table.prepare_rows({.num_rows = num_rows,
                      .dim = shape.inner_dim,
                      .first = 0,
                      .count = shape.inner_dim,
                      .source = reinterpret_cast<const float*>(source.data()),
                      .source_stride = shape.inner_dim,
                      .format = kind.x_format,
                      .target = reinterpret_cast<std::byte*>(x.data()),
                      .target_stride_bytes = row_bytes});
  std::vector<float> y(static_cast<size_t>(num_rows * shape.num_cols));
  int64_t matrix_idx = 0;
  for (auto _ : state) {
    table.gemm({.num_rows = num_rows,
                .num_cols = shape.num_cols,
                .inner_dim = shape.inner_dim,
                .x_format = kind.x_format,
                .x = reinterpret_cast<const std::byte*>(x.data()),
                .x_stride_bytes = row_bytes,
                .w_format = kind.w_format,
                .w = reinterpret_cast<const std::byte*>(w.data()) + matrix_idx * matrix_bytes,
                .panel_bytes = static_cast<int64_t>(PanelBytes(kind.w_format, shape.inner_dim)),
                .bias = nullptr,
                .y = y.data(),
                .y_stride = shape.num_cols});
    matrix_idx = (matrix_idx + 1) % num_matrices;
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  const double flops = 2.0 * static_cast<double>(num_rows * shape.num_cols * shape.inner_dim);
  const double calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(flops * calls * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(matrix_bytes) * calls * 1e-9, benchmark::Counter::kIsRate);
  const double peak = PeakFlops() * (kind.x_format == RowFormat::kInt8 ? 4 : 1);
  state.counters["peak"] = benchmark::Counter(flops * calls / peak, benchmark::Counter::kIsRate);
}

int RegisterAll() {
  for (const Isa isa : SupportedIsas()) {
    for (const Kind& kind : kKinds) {
      for (const Shape& shape : kShapes) {
        for (const int64_t num_rows : {1, 4, 16, 64, 256}) {
          const std::string name = std::string(IsaName(isa)) + "/" + kind.name + "/" + std::to_string(shape.num_cols) +
                                   "x" + std::to_string(shape.inner_dim) + "/M:" + std::to_string(num_rows);
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
