// Speed of the GEMMs by rows M, shape [N, K], type of the weights and instruction set, on one thread and on all.
//
// Reports GFLOP/s and GB/s of weights, and both as shares of the machine's peaks. The peaks are measured just before
// and just after (hardware/peaks.h), because the clock frequency changes. With few rows, the weights of successive
// calls come from a ring that does not fit any cache, as in the engine. Threads share a call's columns as in the
// engine.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/probed_rates.h"
#include "penstock/kernels/kernels.h"
#include "penstock/ops/prefetching.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kRingBytes = 256ll << 20;
constexpr int64_t kTaskCols = 128;
struct Shape {
  int64_t num_cols;
  int64_t inner_dim;
};
constexpr Shape kShapes[] = {{512, 1024}, {1024, 3584}, {2048, 5632}, {5632, 2048}};

// Formats of rows and weights that are multiplied together.
struct Kind {
  std::string name;
  RowFormat x_format;
  WeightFormat w_format;
  Arithmetic arithmetic;
};
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{"f32xf32", RowFormat::kF32, WeightFormat::kF32, Arithmetic::kF32},
                             {"f32xbf16", RowFormat::kF32, WeightFormat::kBF16, Arithmetic::kF32},
                             {"bf16xbf16", RowFormat::kBF16, WeightFormat::kBF16, Arithmetic::kBf16},
                             {"bf16xq4_k", RowFormat::kBF16, WeightFormat::kQ4_K, Arithmetic::kBf16}};
  for (const WeightFormatTraits& format : kWeightFormats) {
    const std::string name(format.name);
    if (MultipliesInt8Rows(format.value)) {
      kinds.push_back({"int8x" + name, RowFormat::kInt8, format.value, Arithmetic::kInt8});
    }
    if (IsBlocks(format.value)) kinds.push_back({"f32x" + name, RowFormat::kF32, format.value, Arithmetic::kF32});
  }
  return kinds;
}

void RunGemm(benchmark::State& state, Isa isa, const Kind& kind, int64_t num_rows, Shape shape, int num_threads) {
  const KernelTable& table = KernelsFor(isa);
  ThreadPool pool(num_threads);
  const auto panel_bytes = static_cast<int64_t>(PanelBytes(kind.w_format, shape.inner_dim));
  const auto matrix_bytes = static_cast<int64_t>(PackedBytes(kind.w_format, shape.num_cols, shape.inner_dim));
  const int64_t num_matrices = num_rows <= 16 ? std::max<int64_t>(1, kRingBytes / matrix_bytes) : 1;
  const Arena w = RandomWords(static_cast<uint64_t>(num_matrices * matrix_bytes));
  const Arena source = RandomWords(static_cast<uint64_t>(num_rows * shape.inner_dim * 4));
  const int64_t row_bytes = RowBytes(kind.x_format, shape.inner_dim);
  const Arena x = RandomWords(static_cast<uint64_t>(num_rows * row_bytes));
  table.prepare_rows({.num_rows = num_rows,
                      .dim = shape.inner_dim,
                      .first = 0,
                      .count = shape.inner_dim,
                      .source = reinterpret_cast<const float*>(source.data()),
                      .source_stride = shape.inner_dim,
                      .format = kind.x_format,
                      .target = x.data(),
                      .target_stride_bytes = row_bytes});
  std::vector<float> y(num_rows * shape.num_cols);
  int64_t matrix_idx = 0;
  PrefetchTrials trials;
  const auto multiply = [&] {
    const std::byte* matrix = w.data() + matrix_idx * matrix_bytes;
    pool.ParallelFor(shape.num_cols / kTaskCols, [&](int64_t task_idx, int) {
      trials.Run(table, {.num_rows = num_rows,
                         .num_cols = kTaskCols,
                         .inner_dim = shape.inner_dim,
                         .x_format = kind.x_format,
                         .x = x.data(),
                         .x_stride_bytes = row_bytes,
                         .w_format = kind.w_format,
                         .w = matrix + task_idx * (kTaskCols / kPanelCols) * panel_bytes,
                         .panel_bytes = panel_bytes,
                         .bias = nullptr,
                         .y = y.data() + task_idx * kTaskCols,
                         .y_stride = shape.num_cols});
    });
    matrix_idx = (matrix_idx + 1) % num_matrices;
  };
  while (HasPrefetchingChoice(kind.x_format, kind.w_format, num_rows) && !trials.is_done()) multiply();
  const ProbedRates before(pool, kind.arithmetic);
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) multiply();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const ProbedRates after(pool, kind.arithmetic);
  const double calls_per_s = static_cast<double>(state.iterations()) / seconds;
  SetRates(state, before, after,
           {.ops_per_s = 2.0 * static_cast<double>(num_rows * shape.num_cols * shape.inner_dim) * calls_per_s,
            .bytes_per_s = static_cast<double>(matrix_bytes) * calls_per_s});
}

int RegisterAll() {
  std::vector<int> thread_counts = {1};
  if (NumUsableCpus() > 1) thread_counts.push_back(NumUsableCpus());
  for (const Isa isa : SupportedIsas()) {
    for (const Kind& kind : Kinds()) {
      for (const Shape& shape : kShapes) {
        for (const int64_t num_rows : {1, 4, 8, 16, 64, 256}) {
          for (const int num_threads : thread_counts) {
            const std::string name = std::string(IsaName(isa)) + "/" + kind.name + "/" +
                                     std::to_string(shape.num_cols) + "x" + std::to_string(shape.inner_dim) +
                                     "/M:" + std::to_string(num_rows) + "/threads:" + std::to_string(num_threads);
            benchmark::RegisterBenchmark(
                name.c_str(), [=](benchmark::State& state) { RunGemm(state, isa, kind, num_rows, shape, num_threads); })
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
