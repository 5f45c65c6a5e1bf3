#include "penstock/ops/prefetching.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/arena.h"

namespace penstock {
namespace {

using kernels::Prefetching;

#if defined(__x86_64__)
constexpr int64_t kInputs = 4096, kOutputs = 512;  // 2 MiB of weights: a huge page
constexpr int kRounds = 4;
constexpr double kMinGain = 1.03;  // less may be noise

void RemoveFromCaches(const Arena& arena) {
  for (uint64_t i = 0; i < arena.size_bytes(); i += kCacheLineBytes) __builtin_ia32_clflush(arena.data() + i);
  __builtin_ia32_mfence();
}

// Multiplies one row by weights that lie in no cache.
Prefetching Measure(const kernels::KernelTable& table) {
  constexpr WeightFormat kFormat = WeightFormat::kInt8;
  absl::StatusOr<Arena> weights = HostMemory().Map(PackedBytes(kFormat, kOutputs, kInputs));
  if (!weights.ok()) return Prefetching::kProcessor;
  std::fill_n(weights->data(), weights->size_bytes(), std::byte{1});  // untouched pages would all be one page of zeros
  const std::vector<std::byte> row(kernels::RowBytes(kernels::RowFormat::kInt8, kInputs));
  std::vector<float> outputs(kOutputs);
  const auto seconds = [&](Prefetching prefetching) {
    RemoveFromCaches(*weights);
    const auto begin = Clock::now();
    table.gemm({.num_rows = 1,
                .num_cols = kOutputs,
                .inner_dim = kInputs,
                .x_format = kernels::RowFormat::kInt8,
                .x = row.data(),
                .x_stride_bytes = std::ssize(row),
                .w_format = kFormat,
                .w = weights->data(),
                .panel_bytes = static_cast<int64_t>(PanelBytes(kFormat, kInputs)),
                .bias = nullptr,
                .y = outputs.data(),
                .y_stride = kOutputs,
                .prefetching = prefetching});
    return SecondsSince(begin);
  };
  double best[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  for (int round = 0; round < kRounds; ++round) {
    for (const Prefetching prefetching : {Prefetching::kProcessor, Prefetching::kTwoPages}) {
      double& least = best[static_cast<int>(prefetching)];
      least = std::min(least, seconds(prefetching));
    }
  }
  const double gain = best[static_cast<int>(Prefetching::kProcessor)] / best[static_cast<int>(Prefetching::kTwoPages)];
  return gain > kMinGain ? Prefetching::kTwoPages : Prefetching::kProcessor;
}
#else
Prefetching Measure(const kernels::KernelTable&) { return Prefetching::kProcessor; }
#endif

}  // namespace

Prefetching FasterPrefetching(const kernels::KernelTable& kernels) {
  static const Prefetching faster = Measure(kernels);
  return faster;
}

}  // namespace penstock
