#include "penstock/ops/prefetching.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <mutex>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/arena.h"

namespace penstock {
namespace {

using kernels::Prefetching;
using kernels::RowFormat;

// More rows than one tile has at most; they read weights from the cache.
constexpr int64_t kManyRows = 16;
constexpr int64_t kFewRows = 4;  // stands for all other numbers above 1

#if defined(__x86_64__)
constexpr int64_t kInputs = 4096;
constexpr uint64_t kWeightBytes = 512 * kKiB;
constexpr int kRounds = 4;
constexpr double kMinGain = 1.03;  // less may be noise

void RemoveFromCaches(const Arena& arena) {
  for (uint64_t i = 0; i < arena.size_bytes(); i += kCacheLineBytes) __builtin_ia32_clflush(arena.data() + i);
  __builtin_ia32_mfence();
}

// Multiplies rows by weights that lie in no cache.
Prefetching Measure(const kernels::KernelTable& table, WeightFormat w_format, RowFormat x_format, int64_t num_rows) {
  const uint64_t panel_bytes = PanelBytes(w_format, kInputs);
  const auto num_cols = static_cast<int64_t>(std::max<uint64_t>(1, kWeightBytes / panel_bytes)) * kPanelCols;
  absl::StatusOr<Arena> weights = HostMemory().Map(PackedBytes(w_format, num_cols, kInputs));
  if (!weights.ok()) return Prefetching::kProcessor;
  // Untouched pages would all be one page of zeros. As weights or scales, these bytes are ordinary numbers.
  std::fill_n(weights->data(), weights->size_bytes(), std::byte{0x3C});
  const uint64_t row_bytes = kernels::RowBytes(x_format, kInputs);
  const std::vector<std::byte> rows(static_cast<size_t>(num_rows) * row_bytes);
  std::vector<float> outputs(static_cast<size_t>(num_rows * num_cols));
  const auto seconds = [&](Prefetching prefetching) {
    RemoveFromCaches(*weights);
    const auto begin = Clock::now();
    table.gemm({.num_rows = num_rows,
                .num_cols = num_cols,
                .inner_dim = kInputs,
                .x_format = x_format,
                .x = rows.data(),
                .x_stride_bytes = static_cast<int64_t>(row_bytes),
                .w_format = w_format,
                .w = weights->data(),
                .panel_bytes = static_cast<int64_t>(panel_bytes),
                .bias = nullptr,
                .y = outputs.data(),
                .y_stride = num_cols,
                .prefetching = prefetching});
    return SecondsSince(begin);
  };
  double least[kernels::kNumPrefetchings];
  std::fill(std::begin(least), std::end(least), std::numeric_limits<double>::infinity());
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kernels::kNumPrefetchings; ++i) {
      least[i] = std::min(least[i], seconds(static_cast<Prefetching>(i)));
    }
  }
  least[static_cast<int>(Prefetching::kProcessor)] /= kMinGain;
  return static_cast<Prefetching>(std::min_element(std::begin(least), std::end(least)) - std::begin(least));
}
#else
Prefetching Measure(const kernels::KernelTable&, WeightFormat, RowFormat, int64_t) { return Prefetching::kProcessor; }
#endif

}  // namespace

Prefetching FasterPrefetching(const kernels::KernelTable& kernels, WeightFormat w_format, RowFormat x_format,
                              int64_t num_rows) {
  constexpr uint8_t kUnknown = 0xFF;
  struct Choice {
    std::atomic<uint8_t> value{kUnknown};
  };
  static Choice choices[std::size(kWeightFormats)][3][2];
  static std::mutex measuring;
  // Rows of floats multiply codes that were unpacked into a cache.
  if (num_rows >= kManyRows || (x_format != RowFormat::kInt8 && TraitsOf(w_format).kind != WeightKind::kFloat)) {
    return Prefetching::kProcessor;
  }
  std::atomic<uint8_t>& choice =
      choices[static_cast<size_t>(w_format)][static_cast<size_t>(x_format)][num_rows > 1 ? 1 : 0].value;
  if (choice.load(std::memory_order_relaxed) == kUnknown) {
    const std::unique_lock lock(measuring, std::try_to_lock);
    if (!lock.owns_lock()) return Prefetching::kProcessor;
    if (choice.load(std::memory_order_relaxed) == kUnknown) {
      const Prefetching faster = Measure(kernels, w_format, x_format, num_rows > 1 ? kFewRows : 1);
      choice.store(static_cast<uint8_t>(faster), std::memory_order_relaxed);
    }
  }
  return static_cast<Prefetching>(choice.load(std::memory_order_relaxed));
}

}  // namespace penstock
